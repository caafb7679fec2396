"""Memory growth over a long run: a tiny training, and the memory of each of its processes as the steps go by.

A table with a row for each kind of process: its memory in MB (anonymous and shared memory, what is shared in part; libraries, which
are mapped from files, do not grow) at the first and the last sample after a warm-up, and its growth in MB per 100 steps. The
growth is the mean over spans of equal length, with a 95 % t-interval over the spans. Below it the open files, Ray's folder, the
run directory, and the seconds of a step.
"""

from __future__ import annotations

import argparse
import collections
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil

from lab import training
from lab.statistics import Interval, interval
from openrlhf_ebpo.files import append_json_line, read_json_lines
from openrlhf_ebpo.record.run_log import read_metrics

TRAINER = "EBPOTrainer"
WARM_UP = 0.2  # of the samples
SPANS = 8
KINDS = (  # (in the command line, name)
    ("openrlhf_ebpo.hub.pusher", "pusher"),
    ("openrlhf_ebpo.cli.train_ppo_ray", "driver"),
    ("gcs_server", "GCS"),
    ("raylet/raylet", "raylet"),
    ("dashboard/dashboard.py", "dashboard"),
    ("log_monitor", "log monitor"),
    ("autoscaler", "autoscaler monitor"),
    ("ray::IDLE", "idle worker"),
    ("multiprocessing", "resource tracker"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=500, help="training steps (default 500)")
    parser.add_argument(
        "--seconds", type=float, default=3600, help="stop after these, if steps are left (default 3600)"
    )
    parser.add_argument("--every", type=int, default=5, help="steps between two samples (default 5)")
    parser.add_argument(
        "--samples", type=Path, metavar="FILE", help="keep the samples here; if it is there, only print it"
    )
    parser.add_argument("flags", nargs="*", help="more flags of the training, after --")
    options = parser.parse_args()
    if options.samples and options.samples.exists():
        print(table(read_json_lines(options.samples)))
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))  # and end the training
    with tempfile.TemporaryDirectory() as directory:
        samples = options.samples or Path(directory) / "samples.jsonl"
        record(Path(directory), samples, options)
        print(table(read_json_lines(samples)))


def record(directory: Path, samples: Path, options: argparse.Namespace) -> None:
    training.prepare(directory, options.steps)
    output = directory / "out"
    words = training.command(directory, output, "ebpo", *options.flags)
    process = training.start(words, directory / "log")
    end = time.monotonic() + options.seconds
    try:
        for step, row in steps(process, output / "run", options.every):
            found = sample(process.pid, output / "run")
            if any(kind.startswith(TRAINER) for kind in found["memory"]):  # it may be at its end
                append_json_line(samples, {**row, "step": step, **found})
            if time.monotonic() > end:
                break
    finally:
        process.terminate()
        process.wait(120)
    if process.returncode and process.returncode > 0:
        sys.exit((directory / "log").read_text()[-3000:])


def steps(process: subprocess.Popen, run_dir: Path, every: int) -> Iterator[tuple[int, dict]]:
    """Each `every`-th step, when it is logged, with the seconds of a step since the last one."""
    done, at = 0, time.time()
    while process.poll() is None:
        rows = read_metrics(run_dir)
        if rows and rows[-1]["step"] >= done + every:
            seconds = (rows[-1]["time"] - at) / (rows[-1]["step"] - done)
            done, at = rows[-1]["step"], rows[-1]["time"]
            yield done, {"seconds": seconds}
        time.sleep(0.2)


def sample(pid: int, run_dir: Path) -> dict:
    """MB and open files of each kind of process, MB of the folders."""
    memory, files = collections.Counter(), collections.Counter()
    supervisor = psutil.Process(pid)
    family = [supervisor, *supervisor.children(recursive=True)]
    for process in family:
        try:
            kind = kind_of(process, pid)
            memory[kind] += grown(process.pid)
            files[kind] += process.num_fds()
        except (psutil.Error, OSError):
            continue
    session = next((Path(word) for word in map(session_of, family) if word), None)
    folders = {"run directory": size(run_dir)} | ({"Ray's folder": size(session)} if session else {})
    return {"memory": memory, "files": files, "folders": folders}


def session_of(process: psutil.Process) -> str:
    words = (word.partition("=") for word in process.cmdline())
    return next((value for name, _, value in words if name in ("--session_dir", "--session-dir")), "")


def size(folder: Path) -> float:
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except OSError:
            continue
    return total / 1e6


def kind_of(process: psutil.Process, supervisor: int) -> str:
    if process.pid == supervisor:
        return "supervisor"
    words = " ".join(process.cmdline())
    known = next((name for part, name in KINDS if part in words), None)
    return known or words.partition(" ")[0].removeprefix("ray::").partition(".")[0][:40]


def grown(pid: int) -> float:
    fields = (line.split() for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:])
    return sum(int(kib) * 1.024e-3 for name, kib, *_ in fields if name in ("Pss_Anon:", "Pss_Shmem:"))


# What comes out


def table(samples: list[dict]) -> str:
    samples = samples[int(len(samples) * WARM_UP) :]
    first, last = samples[0]["step"], samples[-1]["step"]
    lines = [f"steps {first} to {last}", f"{'':>22} {'first':>9} {'last':>9}  growth per 100 steps"]
    for part, unit in (("memory", "MB"), ("files", "files"), ("folders", "MB")):
        names = {name: None for each in samples for name in each[part]}
        for name in sorted(names, key=lambda name: -samples[-1][part].get(name, 0)):
            values = [each[part].get(name, 0.0) for each in samples]
            lines.append(row(f"{name}", [each["step"] for each in samples], values, unit))
    seconds = [each["seconds"] for each in samples]
    lines.append(row("time of a step", [each["step"] for each in samples], seconds, "s"))
    return "\n".join(lines)


def row(name: str, at: list[int], values: list[float], unit: str) -> str:
    found = growth(np.array(at, float), np.array(values))
    return f"{name:>22} {values[0]:>9.2f} {values[-1]:>9.2f}  {found.text()} {unit}"


def growth(at: np.ndarray, values: np.ndarray) -> Interval:
    """Of the growth per 100 steps, over SPANS spans."""
    edges = np.linspace(0, len(at) - 1, min(SPANS, len(at) - 1) + 1).round().astype(int)
    each = 100 * np.diff(values[edges]) / np.diff(at[edges])
    return interval(each)


if __name__ == "__main__":
    main()
