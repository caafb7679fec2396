"""Where the time from the command to the first training step goes, on a machine without a GPU.

Runs a tiny training on a Ray of its own and notes when the first line of each phase appears in its output; ends with
`first step N.N`, the seconds until the first step is logged. The engine and the policy start side by side.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from lab import training
from openrlhf_ebpo.record.run_log import read_metrics

MARKS = (
    ("flags, files, OpenRLHF's validation", "no CUDA: "),
    ("Ray is up", "Started a local Ray instance"),
    ("OpenRLHF's train() begins", "namespace("),
    ("rollout actor has imported vLLM", "Resolved architecture"),
    ("vLLM's engine process has started", "(EngineCore pid="),
    ("training data are read", "num_rows"),
    ("first responses are there", "Starting experience making"),
)
STEPS = 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=1, help="launches; the fastest is shown (default 1)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        training.prepare(Path(directory), STEPS)
        runs = [launch(Path(directory), number) for number in range(options.repeats)]
    fastest = min(runs, key=lambda times: times["first step is logged"])
    previous = 0.0
    for phase, seconds in sorted(fastest.items(), key=lambda item: item[1]):
        print(f"{seconds:6.1f} s  (+{seconds - previous:4.1f})  {phase}")
        previous = seconds
    for phase, mark in MARKS:
        if phase not in fastest:
            print(f"   ?              {phase}: no line of the output had {mark!r}")
    print(f"first step {fastest['first step is logged']:.1f}")


def launch(directory: Path, number: int) -> dict[str, float]:
    """Seconds from the command to each phase."""
    output = directory / f"run{number}"
    environment = {**os.environ, "RAY_ADDRESS": "local", "PYTHONUNBUFFERED": "1"}
    started = time.time()
    process = subprocess.Popen(
        training.command(directory, output, "ebpo"),
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    seen: dict[str, float] = {}
    lines: list[str] = []
    reader = threading.Thread(target=note_phases, args=(process.stdout, started, seen, lines))
    reader.start()
    process.wait()
    reader.join()
    if process.returncode:
        sys.exit("".join(lines[-30:]) + f"error: the training failed with exit status {process.returncode}")
    seen["first step is logged"] = read_metrics(output / "run")[0]["time"] - started
    return seen


def note_phases(stream, started: float, seen: dict[str, float], lines: list[str]) -> None:
    for line in stream:
        lines.append(line)
        for phase, mark in MARKS:
            if mark in line and phase not in seen:
                seen[phase] = time.time() - started


if __name__ == "__main__":
    main()
