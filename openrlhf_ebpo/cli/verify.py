"""Is a run what it says it is? Reads all of a run directory and of its checkpoints, and writes nothing.

  run          run.json says what ran
  metrics      no step is missing in metrics.jsonl, none is there twice
  rollouts     no step is missing in rollouts/
  advantages   recomputed from the logged rewards, as by `openrlhf-ebpo replay`
  prior        prior.json is the state that the rollouts lead to, here, in checkpoints and beside exported models
  checkpoints  every file is there, with the size and the checksum that the manifest lists
  models       every exported model is whole, without links and pickles, and has the prior of its step
  list         checkpoints.jsonl lists what is complete

  openrlhf-ebpo verify out/run                        check a run
  openrlhf-ebpo verify out/run --ckpt.path elsewhere  its checkpoints are not where the run left them
  openrlhf-ebpo verify out/run --rebuild              write a lost prior.json, list what is not listed

Status 0: nothing is wrong; notes are no problem. Status 1: something is, and is named. Status 2: a mistake on the command line.
A run from elsewhere may be checked: nothing of it is run. A run that is still going on is better
checked when it has ended: what was saved a moment ago may look incomplete.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

from openrlhf_ebpo.cli.logged_run import LoggedRun, dig, spell
from openrlhf_ebpo.command import command
from openrlhf_ebpo.errors import ReportedError, UsageError
from openrlhf_ebpo.estimator import registry, stored
from openrlhf_ebpo.estimator.replay import Difference, replay
from openrlhf_ebpo.extension import is_import_path
from openrlhf_ebpo.files import write_json
from openrlhf_ebpo.models import folder as model_folder
from openrlhf_ebpo.record import checkpoints, manifest, resume, run_lock
from openrlhf_ebpo.record.checkpoints import LIST
from openrlhf_ebpo.record.resume import EXPORT
from openrlhf_ebpo.record.retention import DROPPED
from openrlhf_ebpo.record.run_log import PRIOR

WIDTH = 13
MAX_NAMED = 5  # things of one kind
MAX_STEP = 10**7
EVALUATED = "eval_"  # prefix of an evaluation's metrics, which have rows of their own


class Part(NamedTuple):
    """found: a few words. problems: what is wrong. notes: worth knowing, and not wrong."""

    name: str
    found: str
    problems: Sequence[str] = ()
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class Checked:
    """A run under check. last: its last step by metrics.jsonl. states: step -> the state after it, packed, as the rollouts
    have it."""

    ran: LoggedRun
    ckpt: Path | None
    last: int
    states: dict[int, dict]

    @property
    def folder(self) -> Path:
        return self.ran.folder

    @property
    def complete(self) -> bool:
        return self.ran.json.get("status") == "complete"

    @cached_property
    def groups(self) -> list[Path]:
        return resume.groups(self.ckpt, self.ran.estimator) if self.ckpt else []

    def unlisted(self) -> checkpoints.Differences:
        """How checkpoints.jsonl and the disk differ."""
        if not self.ckpt:
            return checkpoints.Differences([], {})
        return checkpoints.differences(self.folder, self.ckpt, self.last, partial(model_folder.problems, code=False))


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "run_dir", metavar="RUN_DIR", type=Path, help="--logger.run_dir of a training (run.json is in it)"
    )
    parser.add_argument(
        "--ckpt.path",
        dest="ckpt",
        type=Path,
        metavar="DIR",
        help="where the checkpoints are; default: where the run left them, or beside a run directory that was moved with them",
    )
    parser.add_argument(
        "--rebuild",
        action="store_true",
        help="write prior.json as the rollouts say, if it is lost, and bring checkpoints.jsonl in line with the disk; nothing "
        "else is changed, and no training may be at work there",
    )


def run(args: argparse.Namespace) -> None:
    if args.ckpt and not args.ckpt.is_dir():
        raise UsageError(f"--ckpt.path {args.ckpt}: no such folder")
    if args.rebuild:
        run_lock.check_free(args.run_dir)
    ran = LoggedRun.read(args.run_dir)
    rows, last = metrics(args.run_dir)
    checked = Checked(ran, args.ckpt or recorded(ran, "path"), last, {})
    problems = [*show(status(ran)), *show(rows), *show(attempt("rollouts", partial(rollouts, checked)))]
    wrong = show(advantages(checked))
    if args.rebuild:
        with run_lock.held(args.run_dir):  # it was free above; a training may have begun since
            print(*(f"{'written':<{WIDTH}}{line}\n" for line in rebuild(checked, bool(wrong))), sep="", end="")
    problems += wrong
    for name, check in {"prior": prior, "checkpoints": saved, "models": exports, "list": listing}.items():
        problems += show(attempt(name, partial(check, checked)))
    if problems:
        count = f"{len(problems)} problem{'s' if len(problems) > 1 else ''}"
        raise ReportedError(f"{count} in {args.run_dir}; each is named above")
    print("nothing is wrong")


def attempt(name: str, check: Callable[[], Part]) -> Part:
    try:
        return check()
    except (ReportedError, OSError) as error:
        return Part(name, "cannot be checked", [str(error)])


def show(part: Part) -> list[str]:
    """Print a part; return its problems."""
    print(f"{part.name:<{WIDTH}}{part.found}", flush=True)
    for mark, lines in (("note", part.notes), ("PROBLEM", part.problems)):
        print(*(f"{'':<{WIDTH}}{mark}: {line}\n" for line in lines), sep="", end="", flush=True)
    return list(part.problems)


def rebuild(checked: Checked, wrong: bool) -> Iterator[str]:
    """Write what the rollouts and the disk tell; each file in words."""
    path, known = checked.folder / PRIOR, checked.states.get(checked.last)
    if known and not wrong and read_prior(path) is None:
        write_json(path, known)
        yield f"{PRIOR}: the state after step {checked.last:,}"
    found = checked.unlisted()
    checkpoints.bring_in_line(checked.folder, found)
    yield from found.describe()


def recorded(ran: LoggedRun, name: str) -> Path | None:
    """A folder of --ckpt.…, where the run left it or where it was moved with the run directory."""
    found = ran.arg("ckpt", name)
    return checkpoints.beside(ran.folder, found) if isinstance(found, str) and "\0" not in found else None


# What was logged


def status(ran: LoggedRun) -> Part:
    name, ended = ascii(ran.json.get("name"))[:80], ascii(ran.json.get("status"))[:40]
    notes = ["a training is at work here, or was killed"] if ran.running else []
    return Part("run", f"{ran.folder}: {name}, {ran.estimator}, {ended}", notes=notes)


def metrics(run_dir: Path) -> tuple[Part, int]:
    """metrics.jsonl, and its last step."""
    try:
        text = (run_dir / "metrics.jsonl").read_text()
    except FileNotFoundError:
        return Part("metrics", "none yet"), 0
    except (OSError, ValueError) as error:
        return Part("metrics", "unreadable", [f"metrics.jsonl cannot be read ({str(error)[:200]})"]), 0
    lines = text.splitlines(keepends=True)
    torn = ["the last line of metrics.jsonl is torn, as by a crash"] if text and not text.endswith("\n") else []
    parsed = {number: _row(line) for number, line in enumerate(lines[: len(lines) - len(torn)], 1) if line.strip()}
    broken = [number for number, row in parsed.items() if row is None]
    steps = [
        row["step"]
        for row in filter(None, parsed.values())
        if not all(k.startswith(EVALUATED) for k in row.keys() - {"step", "time"})
    ]
    last = max(steps, default=0)
    problems = [f"metrics.jsonl: line {number} is no row of a step" for number in broken[:MAX_NAMED]]
    problems += verb(
        "metrics.jsonl", [step for step, count in Counter(steps).items() if count > 1], "there more than once"
    )
    problems += verb("metrics.jsonl", sorted({*range(1, last + 1)} - {*steps}), "missing")
    backwards = [f"step {b} comes after step {a}" for a, b in itertools.pairwise(steps) if b < a]
    problems += [f"metrics.jsonl: {words}" for words in backwards[:1]]
    return Part("metrics", f"{len({*steps}):,} steps, the last {last:,}", problems, torn), last


def _row(line: str) -> dict | None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) and type(row.get("step")) is int and 0 < row["step"] < MAX_STEP else None


def verb(name: str, steps: Sequence[int], what: str) -> list[str]:
    """NAME: steps 1, 2 are WHAT; nothing for no steps."""
    return [f"{name}: {spell(steps, MAX_NAMED)} {'is' if len(steps) == 1 else 'are'} {what}"] if steps else []


def rollouts(checked: Checked) -> Part:
    """Against the steps in metrics.jsonl, except those that were dropped on purpose. A crash may come between a step's files."""
    files, dropped, every, last = checked.ran.files, checked.ran.dropped, logged_every(checked.ran), checked.last
    missing = [step for step in range(every, last + 1, every) if step not in files and step > dropped]
    beyond = [step for step in files if step > last]
    late = [step for step in (*missing, *beyond) if step >= last and not checked.complete]
    problems = verb("rollouts", [step for step in missing if step not in late], "missing")
    problems += verb("rollouts", [step for step in beyond if step not in late], "not in metrics.jsonl")
    problems += [f"{DROPPED} says that steps up to {dropped:,} were dropped"] if dropped > last else []
    notes = [f"rollouts and metrics.jsonl differ in {spell(late)}: the run is not complete"] if late else []
    notes += [f"those of steps up to {dropped:,} were dropped: --logger.keep_rollouts"] if dropped else []
    return Part("rollouts", f"{len(files):,} steps", problems, notes)


def logged_every(ran: LoggedRun) -> int:
    """The interval at which steps were logged, whichever --logger.rollouts_every the run had at the time."""
    resumed = ran.json.get("resumed")
    before = [
        dig(row, "changed", "logger.rollouts_every", "was") for row in (resumed if isinstance(resumed, list) else [])
    ]
    known = (ran.arg("logger", "rollouts_every"), *before)
    return math.lcm(*(each for each in known if type(each) is int and 0 < each < MAX_STEP))


# What the estimator gave


def advantages(checked: Checked) -> Part:
    """Every advantage and every state again, from the rewards in the rollouts; the states go into `checked`."""
    ran, found, twice = checked.ran, {}, []
    if is_import_path(ran.estimator):
        how = f"openrlhf-ebpo replay {ran.folder} --estimator {ran.estimator}"
        return Part("advantages", "not recomputed", notes=[f"the estimator is code of somebody's own; {how} runs it"])
    try:
        estimator = ran.build()
        starts = ran.starts(estimator)
        for each in replay(estimator, ran.steps(), starts):
            found[each.logged.step] = Difference.of(each)
            names = each.logged.batch.prompt_ids
            twice += [each.logged.step] * (len({*names}) < len(names))
            if registry.computed_here(estimator.name):
                checked.states[each.logged.step] = stored.pack(estimator, each.state)
        notes = [f"{spell(twice)}: a prompt comes twice in the batch (is it twice in the data?)"] if twice else []
        return Part("advantages", ran.verdict(estimator, found), notes=notes)
    except UsageError as error:
        return Part("advantages", "not recomputed", notes=[str(error)])
    except ReportedError as error:
        return Part("advantages", f"{len(found):,} steps recomputed" if found else "not recomputed", [str(error)])


def prior(checked: Checked) -> Part:
    """prior.json of the run: the state after its last step."""
    path, last = checked.folder / PRIOR, checked.last
    known = checked.states.get(last) if last == max(checked.states, default=0) else None
    found, there = read_prior(path), path.is_file()
    if found is None:
        if not there and not (registry.computed_here(checked.ran.estimator) and last):
            return Part("prior", "none")
        problem = f"{PRIOR} {'cannot be read' if there else 'is missing'}{'; --rebuild writes it' if known else ''}"
        return Part("prior", "lost", [problem])
    if known is None:
        return Part("prior", "there; its step's state is not known")
    if found == known:
        return Part("prior", f"{PRIOR} is the state after step {last:,}")
    problem = f"{PRIOR} is not the state after step {last:,}"
    if checked.complete:
        return Part("prior", "another one", [problem])
    return Part("prior", "another one", notes=[f"{problem}: the run is not complete"])


def read_prior(path: Path) -> Any:
    """None for a file that is missing or damaged."""
    try:
        return json.loads(path.read_bytes()) or None
    except (OSError, ValueError, RecursionError):
        return None


def prior_problems(checked: Checked, name: str, folder: Path, step: int | None) -> list[str]:
    """Hold prior.json of a checkpoint or an export against its manifest, and against the rollouts."""
    path, listed = folder / PRIOR, manifest.read(folder)
    found = read_prior(path)
    if path.is_file() and found is None:
        return [f"{name}: {PRIOR} cannot be read"]
    if listed and listed.prior and listed.prior != (manifest.state_hash(found) if found else None):
        return [f"{name}: {PRIOR} is not the one that was saved"]
    if found is not None and checked.states.get(step, found) != found:
        return [f"{name}: {PRIOR} is not the state that the rollouts lead to"]
    return []


# What was saved


def saved(checked: Checked) -> Part:
    """Every checkpoint, with its contents."""
    tags = resume.tags_of(checked.groups)
    problems, notes, size = [], [], 0
    for folder, tag in itertools.product(checked.groups, tags):
        checkpoint, name = folder / tag, f"{folder.name}/{tag}"
        if why := manifest.damage(checkpoint, contents=True):
            unfinished = checkpoint.is_dir() and manifest.is_unfinished(checkpoint)
            (notes if unfinished else problems).append(f"{name}: {why}")
            continue
        size += sum(path.stat().st_size for path in checkpoint.rglob("*") if path.is_file())
        if folder.name == "_actor":
            problems += prior_problems(checked, name, checkpoint, manifest.step_of(tag))
    newest = resume.newest_whole(checked.groups, contents=True).tag if checked.groups and not problems else None
    found = f"{len(tags):,}, {size / 1e9:,.1f} GB" if tags else "none"
    return Part("checkpoints", f"{found}; a resume goes on from {newest}" if newest else found, problems, notes)


def exports(checked: Checked) -> Part:
    """Every exported model: complete, inert, with the prior of its step."""
    paths = checked.ckpt.glob(f"*{EXPORT}") if checked.ckpt else ()
    tags = {path: path.name.removesuffix(EXPORT) for path in paths}
    found = {path: manifest.step_of(tag) for path, tag in tags.items() if manifest.TAG.fullmatch(tag)}
    found |= {each.model: each.step for each in checkpoints.saved(checked.folder) if each.model}
    if checked.complete and (final := recorded(checked.ran, "output_dir")):
        found[final] = checked.last
    found = {path: step for path, step in found.items() if path.is_dir()}
    problems = []
    for path, step in found.items():
        problems += [f"{path.name}: {problem}" for problem in model_folder.problems(path, code=False)]
        problems += prior_problems(checked, path.name, path, step)
    return Part("models", f"{len(found):,} exported" if found else "none exported", problems)


def listing(checked: Checked) -> Part:
    """checkpoints.jsonl against the disk."""
    if not checked.ckpt:
        return Part("list", "no --ckpt.path is known")
    found = checked.unlisted()
    unlisted = [f"{words}; --rebuild lists it" for words in found._replace(gone={}).describe()]
    gone = found._replace(new=[]).describe()  # mostly to make room: a long run has hundreds
    notes = [*gone[-MAX_NAMED:], *([f"and {len(gone) - MAX_NAMED:,} before"] if len(gone) > MAX_NAMED else [])]
    return Part("list", f"{len(checkpoints.rows(checked.folder)):,} lines in {LIST}", unlisted, notes)


main = command("openrlhf-ebpo verify", __doc__, add_flags, run)

if __name__ == "__main__":
    main()
