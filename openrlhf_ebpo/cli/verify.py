"""Is a run what it says it is? Reads all of a run directory and of its checkpoints, and writes nothing.

  run          run.json says what ran
  metrics      no step is missing in metrics.jsonl, none is there twice
  rollouts     no step is missing in rollouts/
  advantages   recomputed from the logged rewards, as by `openrlhf-ebpo replay`
  prior        prior.json is the state that the rollouts lead to, here, in checkpoints and in exported models
  checkpoints  every file is there, with the size and the checksum that the manifest lists
  models       every exported model is complete, without links and pickles, and has the prior of its step
  list         checkpoints.jsonl lists what is complete

  openrlhf-ebpo verify out/run                        check a run
  openrlhf-ebpo verify out/run --ckpt.path elsewhere  its checkpoints are not where the run left them

Status 0: nothing is wrong; notes are not problems. Status 1: something is, and is named. Status 2: a mistake on the command
line. A run from elsewhere may be checked: no code of it is run. Check a run that is still at work once more when it has
ended: what was saved a moment ago may look incomplete.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

from openrlhf_ebpo.cli.logged_run import LoggedRun, format_steps
from openrlhf_ebpo.command import command
from openrlhf_ebpo.errors import ReportedError, UsageError
from openrlhf_ebpo.estimator import registry, stored
from openrlhf_ebpo.estimator.replay import Difference, replay
from openrlhf_ebpo.extension import is_import_path
from openrlhf_ebpo.models import folder as model_folder
from openrlhf_ebpo.record import checkpoints, manifest, resume
from openrlhf_ebpo.record.run_log import DROPPED, PRIOR, dig

WIDTH = 13
MAX_NAMED = 5  # things of one kind
MAX_STEP = 10**7
EVALUATED = "eval_"  # prefix of an evaluation's metrics, which have rows of their own


class Part(NamedTuple):
    """found: a few words."""

    found: str
    problems: Sequence[str] = ()
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class Checked:
    """A run under check. states: step -> the state after it, packed, once the rollouts are replayed."""

    ran: LoggedRun
    ckpt: Path | None
    states: dict[int, dict] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        return self.ran.json.get("status") == "complete"

    @cached_property
    def lines(self) -> list[str]:
        """Of metrics.jsonl."""
        path = self.ran.folder / "metrics.jsonl"
        return path.read_text(errors="replace").splitlines(keepends=True) if path.exists() else []

    @cached_property
    def steps(self) -> list[int]:
        """In metrics.jsonl, in its order, without those of evaluations."""
        rows = filter(None, map(parse_row, self.lines))
        return [row["step"] for row in rows if not all(k.startswith(EVALUATED) for k in row.keys() - {"step", "time"})]

    @property
    def last(self) -> int:
        return max(self.steps, default=0)


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "run_dir", metavar="RUN_DIR", type=Path, help="--logger.run_dir of a training (run.json is in it)"
    )
    parser.add_argument(
        "--ckpt.path",
        dest="ckpt",
        type=Path,
        metavar="DIR",
        help="where the checkpoints are; default: where the run left them, or where they were moved with the run directory",
    )


def run(args: argparse.Namespace) -> None:
    if args.ckpt and not args.ckpt.is_dir():
        raise UsageError(f"--ckpt.path {args.ckpt}: no such folder")
    ran = LoggedRun.read(args.run_dir)
    checked = Checked(ran, args.ckpt or recorded_path(ran, "path"))
    problems = sum(show(name, check, checked) for name, check in CHECKS.items())
    if problems:
        raise ReportedError(f"{problems} problem{'s' if problems > 1 else ''} in {args.run_dir}; each is named above")
    print("nothing is wrong")


def show(name: str, check, checked: Checked) -> int:
    """Print a part; return the number of its problems."""
    try:
        part = check(checked)
    except (ReportedError, OSError) as error:
        part = Part("cannot be checked", [str(error)])
    print(f"{name:<{WIDTH}}{part.found}", flush=True)
    for mark, lines in (("note", part.notes), ("PROBLEM", part.problems)):
        print(*(f"{'':<{WIDTH}}{mark}: {line}\n" for line in lines), sep="", end="", flush=True)
    return len(part.problems)


def recorded_path(ran: LoggedRun, name: str) -> Path | None:
    """A folder of --ckpt.…, where the run left it or where it was moved with the run directory."""
    found = ran.arg("ckpt", name)
    return checkpoints.beside(ran.folder, found) if checkpoints.is_path(found) else None


# What was logged


def check_run(checked: Checked) -> Part:
    ran = checked.ran
    name, ended = ascii(ran.json.get("name"))[:80], ascii(ran.json.get("status"))[:40]
    notes = ["a training is at work here, or was killed"] if ran.running else []
    return Part(f"{ran.folder}: {name}, {ran.estimator}, {ended}", notes=notes)


def check_metrics(checked: Checked) -> Part:
    lines, steps = checked.lines, checked.steps
    torn = ["the last line of metrics.jsonl is torn, as by a crash"] if lines and not lines[-1].endswith("\n") else []
    entire = lines[: len(lines) - len(torn)]
    broken = [number for number, line in enumerate(entire, 1) if line.strip() and parse_row(line) is None]
    twice = [step for step, count in Counter(steps).items() if count > 1]
    problems = [
        *(f"metrics.jsonl: line {number} is not a row of a step" for number in broken[:MAX_NAMED]),
        *state("metrics.jsonl", twice, "there more than once"),
        *state("metrics.jsonl", sorted({*range(1, checked.last + 1)} - {*steps}), "missing"),
    ]
    return Part(f"{len({*steps}):,} steps, the last {checked.last:,}" if lines else "none yet", problems, torn)


def parse_row(line: str) -> dict | None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) and type(row.get("step")) is int and 0 < row["step"] < MAX_STEP else None


def state(name: str, steps: Sequence[int], what: str) -> list[str]:
    """NAME: steps 1, 2 are WHAT; nothing for no steps."""
    return [f"{name}: {format_steps(steps, MAX_NAMED)} {'is' if len(steps) == 1 else 'are'} {what}"] if steps else []


def check_rollouts(checked: Checked) -> Part:
    """Compare with the steps in metrics.jsonl, except those that were dropped on purpose. A crash may come between a step's
    files."""
    files, dropped, every, last = checked.ran.files, checked.ran.dropped, logging_interval(checked.ran), checked.last
    missing = [step for step in range(every, last + 1, every) if step not in files and step > dropped]
    beyond = [step for step in files if step > last]
    late = [step for step in (*missing, *beyond) if step >= last and not checked.complete]
    problems = [
        *state("rollouts", [step for step in missing if step not in late], "missing"),
        *state("rollouts", [step for step in beyond if step not in late], "not in metrics.jsonl"),
        *([f"{DROPPED} says that steps up to {dropped:,} were dropped"] if dropped > last else []),
    ]
    notes = [f"rollouts and metrics.jsonl differ in {format_steps(late)}: the run is not complete"] if late else []
    notes += [f"those of steps up to {dropped:,} were dropped: --logger.keep_rollouts"] if dropped else []
    return Part(f"{len(files):,} steps", problems, notes)


def logging_interval(ran: LoggedRun) -> int:
    """The interval at which steps were logged, whichever --logger.rollouts_every the run had at the time."""
    resumed = ran.json.get("resumed")
    rows = resumed if isinstance(resumed, list) else []
    known = [ran.arg("logger", "rollouts_every"), *(dig(r, "changed", "logger.rollouts_every", "was") for r in rows)]
    return math.lcm(*(each for each in known if type(each) is int and 0 < each < MAX_STEP))


def check_advantages(checked: Checked) -> Part:
    """Compute every advantage and every state from the rewards in the rollouts; the states go into `checked`."""
    ran, found, twice = checked.ran, {}, []
    if is_import_path(ran.estimator):
        how = f"openrlhf-ebpo replay {ran.folder} --estimator {ran.estimator}"
        return Part("not recomputed", notes=[f"the estimator is code of somebody's own; {how} runs it"])
    try:
        estimator = ran.build()
        for each in replay(estimator, ran.steps(), ran.starts(estimator)):
            step, names = each.logged.step, each.logged.batch.prompt_ids
            found[step] = Difference.of(each)
            twice += [step] * (len({*names}) < len(names))
            if registry.computed_here(estimator.name):
                checked.states[step] = stored.pack(estimator, each.state)
        notes = (
            [f"{format_steps(twice)}: a prompt comes twice in the batch (is it twice in the data?)"] if twice else []
        )
        return Part(ran.verdict(estimator, found), notes=notes)
    except UsageError as error:
        return Part("not recomputed", notes=[str(error)])
    except ReportedError as error:
        return Part(f"{len(found):,} steps recomputed" if found else "not recomputed", [str(error)])


def check_prior(checked: Checked) -> Part:
    """Compare prior.json of the run with the state after its last step."""
    path, last = checked.ran.folder / PRIOR, checked.last
    known = checked.states.get(last) if last == max(checked.states, default=0) else None
    found = read_prior(path)
    if found is None:
        if not path.is_file() and not (last and registry.computed_here(checked.ran.estimator)):
            return Part("none")
        return Part("lost", [f"{PRIOR} {'cannot be read' if path.is_file() else 'is missing'}"])
    if known is None:
        return Part("there; its step's state is not known")
    if found == known:
        return Part(f"{PRIOR} is the state after step {last:,}")
    problem = f"{PRIOR} is not the state after step {last:,}"
    if not checked.complete:
        return Part("another one", notes=[f"{problem}: the run is not complete"])
    return Part("another one", [problem])


def read_prior(path: Path) -> Any:
    """None for a file that is missing or damaged."""
    try:
        return json.loads(path.read_bytes()) or None
    except (OSError, ValueError, RecursionError):
        return None


# What was saved


def prior_problems(checked: Checked, name: str, folder: Path, step: int | None) -> list[str]:
    """Compare prior.json of a checkpoint or an export with its manifest, and with the rollouts."""
    path, listed = folder / PRIOR, manifest.read(folder)
    found = read_prior(path)
    if path.is_file() and found is None:
        return [f"{name}: {PRIOR} cannot be read"]
    if listed and listed.prior and listed.prior != (manifest.state_hash(found) if found else None):
        return [f"{name}: {PRIOR} is not the one that was saved"]
    if found is not None and checked.states.get(step, found) != found:
        return [f"{name}: {PRIOR} is not the state that the rollouts lead to"]
    return []


def check_checkpoints(checked: Checked) -> Part:
    """Every checkpoint, with its contents."""
    groups = resume.groups(checked.ckpt, checked.ran.estimator) if checked.ckpt else []
    tags = resume.tags_of(groups)
    problems, notes, size = [], [], 0
    for folder, tag in itertools.product(groups, tags):
        checkpoint, name = folder / tag, f"{folder.name}/{tag}"
        if why := manifest.damage(checkpoint, contents=True):
            unfinished = checkpoint.is_dir() and manifest.is_unfinished(checkpoint)
            (notes if unfinished else problems).append(f"{name}: {why}")
            continue
        size += sum(path.stat().st_size for path in checkpoint.rglob("*") if path.is_file())
        if folder.name == "_actor":
            problems += prior_problems(checked, name, checkpoint, manifest.step_of(tag))
    found = f"{len(tags):,}, {size / 1e9:,.1f} GB" if tags else "none"
    newest = resume.newest_whole(groups).tag if tags and not problems else None
    return Part(f"{found}; a resume starts from {newest}" if newest else found, problems, notes)


def check_models(checked: Checked) -> Part:
    """Every exported model: complete, inert, with the prior of its step."""
    paths = checked.ckpt.glob(f"*{resume.EXPORT}") if checked.ckpt else ()
    found = {path: step for path in paths if (step := resume.exported_step(path)) is not None}
    found |= {each.model: each.step for each in checkpoints.saved(checked.ran.folder) if each.model}
    if checked.complete and (final := recorded_path(checked.ran, "output_dir")):
        found[final] = checked.last
    found = {path: step for path, step in found.items() if path.is_dir()}
    problems = []
    for path, step in found.items():
        problems += [f"{path.name}: {problem}" for problem in model_folder.problems(path, code=False)]
        problems += prior_problems(checked, path.name, path, step)
    return Part(f"{len(found):,} exported" if found else "none exported", problems)


def check_list(checked: Checked) -> Part:
    """Compare checkpoints.jsonl with the disk."""
    if not checked.ckpt:
        return Part("no --ckpt.path is known")
    complete = partial(model_folder.problems, code=False)
    new = checkpoints.find_unlisted(checked.ran.folder, checked.ckpt, checked.last, complete)
    problems = [f"{row['tag']} is complete and was not in {checkpoints.LIST}; a resume lists it" for row in new]
    return Part(f"{len(checkpoints.rows(checked.ran.folder)):,} lines in {checkpoints.LIST}", problems)


CHECKS = {
    "run": check_run,
    "metrics": check_metrics,
    "rollouts": check_rollouts,
    "advantages": check_advantages,
    "prior": check_prior,
    "checkpoints": check_checkpoints,
    "models": check_models,
    "list": check_list,
}
main = command("openrlhf-ebpo verify", __doc__, add_flags, run)

if __name__ == "__main__":
    main()
