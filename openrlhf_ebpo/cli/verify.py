"""Check a run: read all of its run directory and its checkpoints, and write nothing.

  run          run.json says what ran
  metrics      every step is in metrics.jsonl, once
  rollouts     every step is in rollouts/
  advantages   recomputed from the logged rewards, as by `openrlhf-ebpo replay`
  prior        prior.json is the state that the rollouts lead to, here, in checkpoints and in exported models
  checkpoints  every file has the size and the checksum that the manifest lists
  models       every exported model is complete, without links and pickles, and has the prior of its step
  list         checkpoints.jsonl lists the complete checkpoints and models

  openrlhf-ebpo verify out/run                        check a run
  openrlhf-ebpo verify out/run --ckpt.path elsewhere  its checkpoints are not where the run left them

Exit status 0: no problem (notes are not problems). 1: problems, which are named. 2: a mistake on the command line.
No code of the run is executed, so a run from elsewhere can be checked. Check a run that is still training again when it
has ended: a step that is being saved may look incomplete.
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

from openrlhf_ebpo import model_folder
from openrlhf_ebpo.cli.logged_run import LoggedRun, format_steps
from openrlhf_ebpo.command import command
from openrlhf_ebpo.errors import ReportedError, UsageError
from openrlhf_ebpo.estimator import registry, stored
from openrlhf_ebpo.estimator.replay import Difference, replay
from openrlhf_ebpo.run import checkpoint_list, manifest, resume
from openrlhf_ebpo.run.run_log import PRIOR, get_nested, read_prior

WIDTH = 13
MAX_NAMED = 5  # things of one kind
MAX_STEP = 10**7
EVALUATED = "eval_"  # prefix of an evaluation's metrics, which have separate rows


class Report:
    """Prints what is found, a part at a time."""

    def __init__(self):
        self.problems = 0

    def found(self, part: str, text: str) -> None:
        print(f"{part:<{WIDTH}}{text}", flush=True)

    def note(self, text: str) -> None:
        print(f"{'':<{WIDTH}}note: {text}", flush=True)

    def problem(self, text: str) -> None:
        self.problems += 1
        print(f"{'':<{WIDTH}}PROBLEM: {text}", flush=True)

    def steps(self, file: str, steps: Sequence[int], what: str) -> None:
        """A problem of these steps, if there are any."""
        if steps:
            self.problem(f"{file}: {format_steps(steps, MAX_NAMED)} {'is' if len(steps) == 1 else 'are'} {what}")


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
        """Lines of metrics.jsonl."""
        path = self.ran.folder / "metrics.jsonl"
        return path.read_text(errors="replace").splitlines(keepends=True) if path.exists() else []

    @cached_property
    def steps(self) -> list[int]:
        """Steps in metrics.jsonl, in its order, without the rows of evaluations."""
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
        help=(
            "where the checkpoints are; default: where the run left them, or where they were moved with the run "
            "directory"
        ),
    )


def run(args: argparse.Namespace) -> None:
    if args.ckpt and not args.ckpt.is_dir():
        raise UsageError(f"--ckpt.path {args.ckpt}: no such folder")
    ran = LoggedRun.read(args.run_dir)
    checked = Checked(ran, args.ckpt or recorded_path(ran, "path"))
    report = Report()
    for part, check in CHECKS.items():
        try:
            check(checked, report)
        except (ReportedError, OSError) as error:
            report.found(part, "cannot be checked")
            report.problem(str(error))
    if found := report.problems:
        raise ReportedError(f"{found} problem{'s' if found > 1 else ''} in {args.run_dir}; each is named above")
    print("nothing is wrong")


def recorded_path(ran: LoggedRun, name: str) -> Path | None:
    """A folder of --ckpt.…, where the run left it or where it was moved with the run directory."""
    found = ran.arg("ckpt", name)
    return (
        checkpoint_list.next_to_run(ran.folder, found, checkpoint_list.recorded_run_dir(ran.folder))
        if checkpoint_list.is_path(found)
        else None
    )


# What was logged


def check_run(checked: Checked, report: Report) -> None:
    ran = checked.ran
    name, ended = ascii(ran.json.get("name"))[:80], ascii(ran.json.get("status"))[:40]
    report.found("run", f"{ran.folder}: {name}, {ran.estimator}, {ended}")
    if ran.running:
        report.note("a training is running here, or was killed")


def check_metrics(checked: Checked, report: Report) -> None:
    lines, steps, last = checked.lines, checked.steps, checked.last
    report.found("metrics", f"{len({*steps}):,} steps, the last {last:,}" if lines else "none yet")
    if lines and not lines[-1].endswith("\n"):
        report.note("the last line of metrics.jsonl is torn, as by a crash")
    entire = (each for each in enumerate(lines, 1) if each[1].endswith("\n") and each[1].strip())
    for number in [number for number, line in entire if parse_row(line) is None][:MAX_NAMED]:
        report.problem(f"metrics.jsonl: line {number} is not a row of a step")
    report.steps("metrics.jsonl", [s for s, count in Counter(steps).items() if count > 1], "there more than once")
    report.steps("metrics.jsonl", sorted({*range(1, last + 1)} - {*steps}), "missing")


def parse_row(line: str) -> dict | None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) and type(row.get("step")) is int and 0 < row["step"] < MAX_STEP else None


def check_rollouts(checked: Checked, report: Report) -> None:
    """Compare with the steps in metrics.jsonl. A crash may come between a step's files."""
    ran, files, last = checked.ran, checked.ran.files, checked.last
    resumed = ran.json.get("resumed")
    intervals = [ran.arg("logger", "rollouts_every")]  # and those that the run had before it was resumed
    for row in resumed if isinstance(resumed, list) else []:
        intervals.append(get_nested(row, "changed", "logger.rollouts_every", "was"))
    every = math.lcm(*(each for each in intervals if type(each) is int and 0 < each < MAX_STEP))
    missing = [step for step in range(every, last + 1, every) if step not in files]
    beyond = [step for step in files if step > last]
    late = [step for step in (*missing, *beyond) if step >= last and not checked.complete]
    report.found("rollouts", f"{len(files):,} steps")
    if late:
        report.note(f"rollouts and metrics.jsonl differ in {format_steps(late)}: the run is not complete")
    report.steps("rollouts", [step for step in missing if step not in late], "missing")
    report.steps("rollouts", [step for step in beyond if step not in late], "not in metrics.jsonl")


def check_advantages(checked: Checked, report: Report) -> None:
    """Compute every advantage and every state from the rewards in the rollouts; the states go into `checked`."""
    ran, found, twice = checked.ran, {}, []
    try:
        estimator = ran.build()
        for each, result in replay(estimator, ran.steps(), ran.starts(estimator)):
            step, names = each.step, each.batch.prompt_ids
            found[step] = Difference.of(each, result)
            twice += [step] * (len({*names}) < len(names))
            if registry.computed_here(estimator.name):
                checked.states[step] = stored.pack(estimator, result.state)
        report.found("advantages", ran.verdict(estimator, found))
        if twice:
            report.note(f"{format_steps(twice)}: a prompt comes twice in the batch (is it twice in the data?)")
    except UsageError as error:
        report.found("advantages", "not recomputed")
        report.note(str(error))
    except ReportedError as error:
        report.found("advantages", f"{len(found):,} steps recomputed" if found else "not recomputed")
        report.problem(str(error))


def check_prior(checked: Checked, report: Report) -> None:
    """Compare prior.json of the run with the state after its last step."""
    path, last = checked.ran.folder / PRIOR, checked.last
    known = checked.states.get(last) if last == max(checked.states, default=0) else None
    found = read_prior(path.parent)
    if found is None:
        lost = path.is_file() or (last and registry.computed_here(checked.ran.estimator))
        report.found("prior", "lost" if lost else "none")
        if lost:
            report.problem(f"{PRIOR} {'cannot be read' if path.is_file() else 'is missing'}")
    elif known is None:
        report.found("prior", "there; its step's state is not known")
    elif found == known:
        report.found("prior", f"{PRIOR} is the state after step {last:,}")
    else:
        report.found("prior", "another one")
        problem = f"{PRIOR} is not the state after step {last:,}"
        report.problem(problem) if checked.complete else report.note(f"{problem}: the run is not complete")


# What was saved


def check_saved_prior(checked: Checked, report: Report, name: str, folder: Path, step: int | None) -> None:
    """Compare prior.json of a checkpoint or an export with its manifest, and with the rollouts."""
    path, listed = folder / PRIOR, manifest.read(folder)
    found = read_prior(folder)
    if path.is_file() and found is None:
        report.problem(f"{name}: {PRIOR} cannot be read")
    elif listed and listed.prior and listed.prior != (manifest.state_hash(found) if found else None):
        report.problem(f"{name}: {PRIOR} is not the one that was saved")
    elif found is not None and checked.states.get(step, found) != found:
        report.problem(f"{name}: {PRIOR} is not the state that the rollouts lead to")


def check_checkpoints(checked: Checked, report: Report) -> None:
    """Every checkpoint, with its contents."""
    groups = resume.groups(checked.ckpt, checked.ran.estimator) if checked.ckpt else []
    tags = resume.tags_of(groups)
    size = sum(path.stat().st_size for g in groups for tag in tags for path in (g / tag).rglob("*") if path.is_file())
    newest = resume.newest_complete(groups, contents=True).tag if groups else None
    more = f"; a resume starts from {newest}" if newest else ""
    report.found("checkpoints", f"{len(tags):,}, {size / 1e9:,.1f} GB{more}" if tags else "none")
    for folder, tag in itertools.product(groups, tags):
        checkpoint, name = folder / tag, f"{folder.name}/{tag}"
        if why := manifest.damage(checkpoint, contents=tag != newest):
            unfinished = checkpoint.is_dir() and manifest.is_unfinished(checkpoint)
            (report.note if unfinished else report.problem)(f"{name}: {why}")
        elif folder.name == "_actor":
            check_saved_prior(checked, report, name, checkpoint, manifest.step_of(tag))


def check_models(checked: Checked, report: Report) -> None:
    """Every exported model: complete, inert, with the prior of its step."""
    paths = checked.ckpt.glob(f"*{resume.EXPORT}") if checked.ckpt else ()
    found = {path: step for path in paths if (step := resume.exported_step(path)) is not None}
    found |= {each.model: each.step for each in checkpoint_list.saved_steps(checked.ran.folder) if each.model}
    if checked.complete and (final := recorded_path(checked.ran, "output_dir")):
        found[final] = checked.last
    found = {path: step for path, step in found.items() if path.is_dir()}
    report.found("models", f"{len(found) or 'none'} exported")
    for path, step in found.items():
        for problem in model_folder.problems(path, code=False):
            report.problem(f"{path.name}: {problem}")
        check_saved_prior(checked, report, path.name, path, step)


def check_list(checked: Checked, report: Report) -> None:
    """Compare checkpoints.jsonl with the disk."""
    listed = checkpoint_list.rows(checked.ran.folder)
    report.found("list", f"{len(listed):,} lines in {checkpoint_list.LIST}")
    if checked.ckpt:
        complete = partial(model_folder.problems, code=False)
        for row in checkpoint_list.find_unlisted(checked.ran.folder, checked.ckpt, checked.last, complete):
            report.problem(f"{row['tag']} is complete and was not in {checkpoint_list.LIST}; a resume lists it")


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
