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
A run from elsewhere may be checked: links are not followed, and nothing of it is run. A run that is still going on is better
checked when it has ended: what was saved a moment ago may look incomplete.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable, Iterator
from pathlib import Path

from openrlhf_ebpo.cli import replay, run_checks, saved_checks
from openrlhf_ebpo.cli.run_checks import Part, Run
from openrlhf_ebpo.command import command
from openrlhf_ebpo.errors import ReportedError, UsageError
from openrlhf_ebpo.files import write_json
from openrlhf_ebpo.record import checkpoints, run_lock
from openrlhf_ebpo.record.run_log import PRIOR, read_run

WIDTH = 13


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
    run_checks.refuse_links(args.run_dir)
    ran = replay.read_ran(args.run_dir)
    metrics, last = run_checks.metrics(args.run_dir)
    found = Run(ran, read_run(args.run_dir) or {}, args.ckpt or recorded_ckpt(args.run_dir), last)
    problems = [*said(running(found)), *said(metrics)]
    problems += said(attempted("rollouts", functools.partial(run_checks.rollouts, found)))
    again = run_checks.advantages(found)
    problems += said(again.part)
    if args.rebuild:
        with run_lock.held(args.run_dir):  # it was free above; a training may have begun since
            print(*(f"{'written':<{WIDTH}}{line}\n" for line in rebuilt(found, again)), sep="", end="")
    for name, check in (
        ("prior", run_checks.prior),
        ("checkpoints", saved_checks.saved),
        ("models", saved_checks.exports),
    ):
        problems += said(attempted(name, functools.partial(check, found, again.states)))
    problems += said(attempted("list", functools.partial(saved_checks.listing, found)))
    if problems:
        count = f"{len(problems)} problem{'s' if len(problems) > 1 else ''}"
        raise ReportedError(f"{count} in {args.run_dir}; each is named above")
    print("nothing is wrong")


def recorded_ckpt(run_dir: Path) -> Path | None:
    recorded = replay.dig(read_run(run_dir), "args", "ckpt", "path")
    return checkpoints.beside(run_dir, recorded) if isinstance(recorded, str) and "\0" not in recorded else None


def running(run: Run) -> Part:
    name, status = ascii(run.json.get("name"))[:80], ascii(run.json.get("status"))[:40]
    notes = ["a training is at work here, or was killed"] if run.ran.running else []
    return Part("run", f"{run.folder}: {name}, {run.ran.estimator}, {status}", notes=notes)


def attempted(name: str, check: Callable[[], Part]) -> Part:
    """What cannot be checked is a problem."""
    try:
        return check()
    except (ReportedError, OSError) as error:
        return Part(name, "cannot be checked", [str(error)])


def said(part: Part) -> list[str]:
    """Prints a part; its problems."""
    print(f"{part.name:<{WIDTH}}{part.found}", flush=True)
    for mark, lines in (("note", part.notes), ("PROBLEM", part.problems)):
        print(*(f"{'':<{WIDTH}}{mark}: {line}\n" for line in lines), sep="", end="", flush=True)
    return list(part.problems)


def rebuilt(run: Run, again: run_checks.Recomputed) -> Iterator[str]:
    """Writes what can be had from what is there; each in words."""
    path, known = run.folder / PRIOR, again.states.get(run.last)
    if known and not again.part.problems and run_checks.read_prior(path) is None:
        write_json(path, known)
        yield f"{PRIOR}: the state after step {run.last:,}"
    differ = saved_checks.differences(run)
    if any(differ):
        checkpoints.bring_in_line(run.folder, differ)
        yield from differ.words()


main = command("openrlhf-ebpo verify", __doc__, add_flags, run)

if __name__ == "__main__":
    main()
