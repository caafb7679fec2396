"""Check that everything runs on this machine's GPU: `bash scripts/gpu_check.sh` (docs/gpus.md).

The parts run in their order, and each is recorded in the report as soon as it ends.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gpu import check_report, trainings
from gpu.modes import MODES
from gpu.work import ROOT, PartFailed, Work, tail
from openrlhf_ebpo.command import command, interrupted_once
from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.run.run_log import timestamp
from openrlhf_ebpo.upstream.cpu import native
from openrlhf_ebpo.upstream.stack import is_cpu_stack

MACHINE = "machine"
CPU_PATIENCE = 4  # a rehearsal takes so many times as long, on a few cores
PAIRS = 3
OWN_PACKAGES = ("psutil", "pyarrow", "pytest", "pytest_timeout", "reasoning_gym", "scipy", "wrapt")  # besides the stack
ABOUT = """Check that everything runs on this machine's GPU: versions, the tests marked gpu, training, kill, resume and
verify in every mode, trainer against vLLM, EBPO's time and memory against group_norm's. Writes REPORT_DIR/report.md and
report.json.

Under 15 minutes on one H100-class GPU (an estimate). A repeated command keeps the parts that have passed and runs the
others; after a change of code, versions or machine name another REPORT_DIR. docs/gpus.md describes each part.

exit status: 0 all parts passed, 1 a part failed, 2 a wrong flag"""


@dataclass(frozen=True)
class Part:
    """One part of the check.

    Attributes:
        seconds: an estimate for one H100-class GPU; a start of the stack is taken as 40 s.
        limit: seconds after which it is ended.
        run: returns what the report shows of it; raises PartFailed.
    """

    what: str
    seconds: int
    limit: int
    run: Callable[[Work], dict]


def check_machine(work: Work) -> dict:
    work.run([sys.executable, "-m", "openrlhf_ebpo.cli.doctor"])
    return {"doctor": tail(work.log)}


def run_tests(work: Work) -> dict:
    """Raises PartFailed: a test failed, or all were skipped although there is a GPU."""
    words = ["-m", "pytest", "-m", "gpu", "-rs", "--durations=10", "-p", "no:cacheprovider", "tests/gpu"]
    work.run([sys.executable, *words])
    summary = tail(work.log, 1)[0]
    if not work.cpu and " passed" not in summary:
        raise PartFailed(f"no test has run: {summary}")
    return {"summary": summary}


def time_pairs(work: Work) -> dict:
    shutil.rmtree(work.output, ignore_errors=True)  # measured with other code
    steps, prompts = ("12", "16") if work.cpu else ("40", "64")
    words = ["--pairs", str(PAIRS), "--steps", steps, "--prompts", prompts, "--output", str(work.output)]
    work.run([sys.executable, str(ROOT / "research" / "overhead.py"), *words], RAY_ADDRESS="local")
    return {"table": (work.output / "overhead.md").read_text()}


PARTS = {
    MACHINE: Part("openrlhf-ebpo doctor: versions, GPU, compiler, libraries, memory, disk", 30, 400, check_machine),
    **{
        name: Part(mode.what, mode.seconds, 400, functools.partial(trainings.train, name=name))
        for name, mode in MODES.items()
    },
    "tests": Part("the tests marked gpu", 170, 500, run_tests),
    "speed": Part(f"EBPO against group_norm in {PAIRS} pairs: time of a step, GPU memory", 255, 900, time_pairs),
}


def add_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("report_dir", nargs="?", type=Path, default=Path("runs/gpu_check"), metavar="REPORT_DIR")
    add("--only", nargs="+", metavar="PART", choices=[*PARTS], help=f"these alone, again: {', '.join(PARTS)}")
    add("--cpu", action="store_true", help="a rehearsal without a GPU: the same commands without what CUDA needs")


def run(options: argparse.Namespace) -> None:
    folder = options.report_dir.absolute()
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"REPORT_DIR {folder} is a file; name a folder")
    if missing := [name for name in OWN_PACKAGES if importlib.util.find_spec(name) is None]:
        raise UsageError(f"not installed: pip install {' '.join(missing).replace('_', '-')}")
    if not options.cpu and (cause := no_gpu()):
        raise UsageError(
            f"no GPU can be used here: {cause}. `openrlhf-ebpo doctor` says more; --cpu rehearses without one"
        )
    state = check_report.begin(folder, options.cpu)
    with interrupted_once():
        for name in options.only or PARTS:
            if not options.only and state["parts"].get(name, {}).get("outcome") == check_report.PASSED:
                print(f"{name}: has passed before", flush=True)
                continue
            state["parts"][name] = found = outcome(name, folder, state)
            check_report.write(folder, state)
            if name == MACHINE and found["outcome"] == check_report.FAILED:
                break  # nothing else would run
    failed = [name for name, part in state["parts"].items() if part["outcome"] == check_report.FAILED]
    print(f"report: {folder / 'report.md'}")
    if failed:
        sys.exit(f"failed: {', '.join(failed)}; logs: {folder / 'logs'}")


def outcome(name: str, folder: Path, state: dict) -> dict:
    """Run a part; an error, also one of ours, fails it and not the rest."""
    part = PARTS[name]
    limit = part.limit * (CPU_PATIENCE if state["kind"] == check_report.REHEARSAL else 1)
    work = Work(name, folder, limit, state["kind"] == check_report.REHEARSAL, state["machine"]["visible"])
    print(f"{name}: {part.what} (about {part.seconds} s on a GPU, at most {limit} s) ...", flush=True)
    work.log.unlink(missing_ok=True)
    facts, reason = None, None
    try:
        facts = part.run(work)
    except PartFailed as error:
        reason = str(error)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
    found = {
        "outcome": check_report.FAILED if reason else check_report.PASSED,
        "reason": reason,
        "facts": facts,
        "ended": timestamp(),
        "commit": check_report.commit(),
        "seconds": round(time.monotonic() - work.began, 1),
        "commands": work.commands,
        "log": tail(work.log) if reason else [],
    }
    line = f"{name}: {found['outcome']} after {found['seconds']} s" + (f": {reason}" if reason else "")
    print("\n  ".join([line, *found["log"]]), flush=True)
    return found


def no_gpu() -> str | None:
    """Describe why this machine cannot run anything on a GPU; None if it can."""
    if is_cpu_stack():
        return "the installed torch is built without CUDA"
    return native.failing_import("import torch; assert torch.cuda.is_available(), 'torch finds no GPU'")


main = command("gpu_check.sh", ABOUT, add_flags, run)

if __name__ == "__main__":
    main()
