"""The command: which parts, for how long, and where the report goes."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from gpu import machine, report
from gpu.parts import MACHINE, Part, parts
from gpu.work import PartFailed, PartSkipped, TimeIsUp, Work, shell_command, tail
from openrlhf_ebpo.command import command, interrupted_once
from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.run.run_log import timestamp

MINUTES = 15
CPU_PATIENCE = 4  # a rehearsal takes so many times as long, on a few cores
SOMETHING_FAILED, SOMETHING_IS_LEFT = 1, 3
ABOUT = """Does everything run on this machine's GPU? Checks versions, runs the tests marked gpu, trains, kills, resumes and verifies
in every mode, compares trainer and vLLM, times EBPO against group_norm, and writes REPORT_DIR/report.md and report.json.

Under 15 minutes on one H100-class GPU (an estimate). Called again it resumes with what is left or has failed: parts that have passed
are kept, until the code, the versions or the GPU change. docs/gpus.md says what each part is.

exit status: 0 everything passed (or cannot be run here), 1 something failed, 2 a mistake in the flags, 3 something is left to run"""


def add_flags(parser: argparse.ArgumentParser) -> None:
    names = list(parts())
    parser.add_argument("report_dir", nargs="?", type=Path, default=Path("runs/gpu_check"), metavar="REPORT_DIR")
    parser.add_argument(
        "--only", nargs="+", metavar="PART", choices=names, help=f"these alone, again: {', '.join(names)}"
    )
    parser.add_argument(
        "--minutes",
        type=minutes,
        metavar="N",
        help=f"begin no part that does not fit any more ({MINUTES}; with --large no limit)",
    )
    parser.add_argument(
        "--large", action="store_true", help="also the long parts: benchmarks larger than tiny, half an hour and more"
    )
    parser.add_argument("--dry_run", action="store_true", help="print the parts and their commands, and stop")
    parser.add_argument(
        "--cpu", action="store_true", help="a rehearsal without a GPU: the same commands, with what CUDA needs left out"
    )


def minutes(text: str) -> float:
    number = float(text)
    if not number > 0:
        raise argparse.ArgumentTypeError(f"{text}: give more than 0")
    return number


def run(options: argparse.Namespace) -> None:
    folder, chosen = options.report_dir.absolute(), choose(options)
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"REPORT_DIR {folder} is a file; name a folder")
    if options.dry_run:
        print("\n".join(planned(folder, chosen, options.cpu)))
        return
    if not options.cpu and (why := machine.why_no_gpu()):
        raise UsageError(
            f"no GPU can be used here: {why}. `openrlhf-ebpo doctor` says more; --cpu rehearses without one"
        )
    found = machine.described(options.cpu)
    state = report.begin(folder, found, options.cpu)
    limit = options.minutes or (float("inf") if options.large or options.cpu else MINUTES)
    until = time.monotonic() + 60 * limit
    with interrupted_once():
        for part in chosen:
            if report.is_done(state, part.name) and part.name not in (options.only or ()):
                print(f"{part.name}: has passed before", flush=True)
                continue
            if why := cannot_begin(state, part, until):
                print(f"{part.name}: left, {why}", flush=True)
                state["parts"].pop(part.name, None)
            else:
                seconds = part.limit * (CPU_PATIENCE if options.cpu else 1)
                execute(state, part, Work(part.name, folder, seconds, options.cpu, found["visible"], until))
            report.write(folder, state, everything(state, chosen))
    end(folder, state, chosen)


def choose(options: argparse.Namespace) -> list[Part]:
    """In the order of the table, with what they need."""
    every = parts()
    if not options.only:
        return [part for part in every.values() if options.large or not part.large]
    alone = {name: replace(part, needs=tuple({*part.needs} - {MACHINE})) for name, part in every.items()}
    wanted = {*options.only, *(need for name in options.only for need in alone[name].needs)}
    return [part for part in alone.values() if part.name in wanted]


def everything(state: dict, chosen: Sequence[Part]) -> list[Part]:
    """The parts of the report: the long ones only where they were asked for once."""
    names = {*state["parts"], *(part.name for part in chosen)}
    return [part for part in parts().values() if not part.large or part.name in names]


def cannot_begin(state: dict, part: Part, until: float) -> str | None:
    missing = [name for name in part.needs if not report.is_done(state, name)]
    if missing:
        return f"since {' and '.join(missing)} has not passed"
    remaining = until - time.monotonic()
    if remaining < part.seconds:
        return f"since about {part.seconds} s do not fit into the {max(remaining, 0):.0f} s of --minutes that remain"
    return None


def execute(state: dict, part: Part, work: Work) -> None:
    """Run a part and record its outcome; one that --minutes interrupts is left for the next call."""
    print(f"{part.name}: {part.what} (about {part.seconds} s on a GPU, at most {work.seconds} s) ...", flush=True)
    work.log.unlink(missing_ok=True)
    found = {"outcome": report.PASSED, "reason": None, "facts": None}
    try:
        found["facts"] = part.run(work)
    except TimeIsUp as error:
        print(f"{part.name}: left, {error}", flush=True)
        state["parts"].pop(part.name, None)
        return
    except PartSkipped as error:
        found |= {"outcome": report.SKIPPED, "reason": str(error)}
    except PartFailed as error:
        found |= {"outcome": report.FAILED, "reason": str(error)}
    except Exception as error:  # of ours: the rest is still worth running
        found |= {"outcome": report.FAILED, "reason": f"{type(error).__name__}: {error}"}
    found |= {
        "began": timestamp(),
        "seconds": round(time.monotonic() - work.began, 1),
        "commands": work.commands,
        "log": tail(work.log) if found["outcome"] == report.FAILED else [],
    }
    state["parts"][part.name] = found
    print(
        f"{part.name}: {found['outcome']} after {found['seconds']} s"
        + (f": {found['reason']}" if found["reason"] else ""),
        flush=True,
    )


def planned(folder: Path, chosen: Sequence[Part], cpu: bool) -> list[str]:
    lines = []
    for part in chosen:
        lines.append(f"# {part.name}: {part.what} (about {part.seconds} s, at most {part.limit} s)")
        work = Work(part.name, folder, part.limit, cpu)
        lines += [shell_command({"command": words, "environment": {}}) for words in part.plan(work)]
    total = sum(part.seconds for part in chosen)
    return [*lines, f"# {len(chosen)} parts, about {total / 60:.0f} minutes on one H100-class GPU (an estimate)"]


def end(folder: Path, state: dict, chosen: Sequence[Part]) -> None:
    failed, left = report.failed(state), report.left(state, chosen)
    print(f"report: {folder / 'report.md'}")
    if left:
        print(f"left: {', '.join(left)}; repeat the command to resume")
    if failed:
        print(f"failed: {', '.join(failed)}; their logs are in {folder / 'logs'}")
    if failed or left:
        sys.exit(SOMETHING_FAILED if failed else SOMETHING_IS_LEFT)


main = command("gpu_check.sh", ABOUT, add_flags, run)
