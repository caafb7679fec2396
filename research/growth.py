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
from lab.statistics import interval
from lab.tables import table
from openrlhf_ebpo.files import append_json_line, read_json_lines
from openrlhf_ebpo.run.run_log import read_metrics

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
    parser.add_argument("--every", type=int, default=5, help="steps between two samples (default 5)")
    parser.add_argument(
        "--samples", type=Path, metavar="FILE", help="keep the samples here; if it is there, only print it"
    )
    options = parser.parse_args()
    if options.samples and options.samples.exists():
        print(report(read_json_lines(options.samples)))
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))  # and end the training
    with tempfile.TemporaryDirectory() as directory:
        samples = options.samples or Path(directory) / "samples.jsonl"
        record(Path(directory), samples, options)
        print(report(read_json_lines(samples)))


def record(directory: Path, samples: Path, options: argparse.Namespace) -> None:
    training.prepare(directory, options.steps)
    output = directory / "out"
    process = training.start(training.command(training.flags(directory, output, "ebpo")), directory / "log")
    try:
        for step, seconds in steps(process, output / "run", options.every):
            found = sample(process.pid, output / "run")
            if any(kind.startswith(TRAINER) for kind in found["memory"]):  # it may be at its end
                append_json_line(samples, {"step": step, "seconds": seconds, **found})
    finally:
        process.terminate()
        process.wait(120)
    if process.returncode and process.returncode > 0:
        sys.exit((directory / "log").read_text()[-3000:])


def steps(process: subprocess.Popen, run_dir: Path, every: int) -> Iterator[tuple[int, float]]:
    """Each `every`-th step, when it is logged, with the seconds of a step since the last one."""
    done, at = 0, time.time()
    while process.poll() is None:
        rows = read_metrics(run_dir)
        if rows and rows[-1]["step"] >= done + every:
            seconds = (rows[-1]["time"] - at) / (rows[-1]["step"] - done)
            done, at = rows[-1]["step"], rows[-1]["time"]
            yield done, seconds
        time.sleep(0.2)


def sample(pid: int, run_dir: Path) -> dict:
    """MB and open files of each kind of process, MB of the folders."""
    memory, files, folders = collections.Counter(), collections.Counter(), {"run directory": size(run_dir)}
    supervisor = psutil.Process(pid)
    for process in [supervisor, *supervisor.children(recursive=True)]:
        try:
            words = process.cmdline()
            kind = "supervisor" if process.pid == pid else kind_of(" ".join(words))
            memory[kind] += grown(process.pid)
            files[kind] += process.num_fds()
        except (psutil.Error, OSError):
            continue
        for word in words:
            name, _, value = word.partition("=")
            if name in ("--session_dir", "--session-dir") and "Ray's folder" not in folders:
                folders["Ray's folder"] = size(Path(value))
    return {"memory": memory, "files": files, "folders": folders}


def size(folder: Path) -> float:
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except OSError:
            continue
    return total / 1e6


def kind_of(words: str) -> str:
    known = next((name for part, name in KINDS if part in words), None)
    return known or words.partition(" ")[0].removeprefix("ray::").partition(".")[0][:40]


def grown(pid: int) -> float:
    fields = (line.split() for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:])
    return sum(int(kib) * 1.024e-3 for name, kib, *_ in fields if name in ("Pss_Anon:", "Pss_Shmem:"))


def report(samples: list[dict]) -> str:
    samples = samples[int(len(samples) * WARM_UP) :]
    at = np.array([each["step"] for each in samples], float)
    rows = []
    for part, unit in (("memory", "MB"), ("files", "files"), ("folders", "MB")):
        names = dict.fromkeys(name for each in samples for name in each[part])
        for name in sorted(names, key=lambda name: -samples[-1][part].get(name, 0)):
            rows.append(row(name, unit, at, [each[part].get(name, 0.0) for each in samples]))
    rows.append(row("time of a step", "s", at, [each["seconds"] for each in samples]))
    return table(["", "unit", f"step {at[0]:.0f}", f"{at[-1]:.0f}", "growth per 100 steps"], rows, numbers=3)


def row(name: str, unit: str, at: np.ndarray, values: list[float]) -> list[str]:
    """The growth is the mean of SPANS spans."""
    edges = np.linspace(0, len(at) - 1, min(SPANS, len(at) - 1) + 1).round().astype(int)
    growth = interval(100 * np.diff(np.array(values)[edges]) / np.diff(at[edges]))
    return [name, unit, f"{values[0]:.2f}", f"{values[-1]:.2f}", growth.text()]


if __name__ == "__main__":
    main()
