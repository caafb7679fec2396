"""Time and memory of `openrlhf-ebpo data prepare` at the size of DAPO-Math-17K: 1.8 million rows.

Writes made-up rows with DAPO's columns to a temporary folder (about 1 GB), runs the command in a process of its own and
prints rows per second and the most memory that the process held. Twice: as in DAPO, with each question about 100 times,
and the worst case, with every question once.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from lab.tables import head, line
from openrlhf_ebpo.data.clean import MESSAGES
from openrlhf_ebpo.data.questions import DAPO_TEMPLATE

SCHEMA = pa.schema(
    [
        ("data_source", pa.string()),
        ("prompt", MESSAGES),
        ("ability", pa.string()),
        ("reward_model", pa.struct([("ground_truth", pa.string()), ("style", pa.string())])),
        ("extra_info", pa.struct([("index", pa.string())])),
    ]
)
WORDS = [
    "let",
    "a",
    "triangle",
    "with",
    "sides",
    "$x^2+1$",
    "and",
    "angle",
    "\\frac{\\pi}{3}",
    "find",
    "the",
    "sum",
    "of",
    "all",
    "real",
    "roots",
    "modulo",
    "97",
    "where",
]
AT_ONCE = 50_000  # rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_800_000, help="(default: 1.8 million)")
    options = parser.parse_args()
    print(head(["questions", "rows", "seconds", "CPU s", "rows/s", "peak GiB"], numbers=5))
    for questions in (max(options.rows // 103, 1), options.rows):
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory, "rows.parquet")
            write_rows(path, options.rows, questions)
            seconds, cpu, peak = prepare(path, Path(directory, "out"), questions)
        rate = f"{options.rows / seconds:,.0f}"
        print(line([f"{questions:,}", f"{options.rows:,}", f"{seconds:.1f}", f"{cpu:.1f}", rate, f"{peak:.2f}"]))


def write_rows(path: Path, rows: int, questions: int) -> None:
    with pq.ParquetWriter(path, SCHEMA) as writer:
        for start in range(0, rows, AT_ONCE):
            batch = [row(i, questions) for i in range(start, min(start + AT_ONCE, rows))]
            writer.write_table(pa.Table.from_pylist(batch, SCHEMA), 1 << 20)


def row(index: int, questions: int) -> dict:
    """Question index % questions."""
    number = index % questions
    words = random.Random(number).choices(WORDS, k=40)
    return {
        "data_source": "math_dapo",
        "prompt": [{"role": "user", "content": DAPO_TEMPLATE.replace("{question}", f"{number} {' '.join(words)}")}],
        "ability": "MATH",
        "reward_model": {"ground_truth": str(number % 1000), "style": "rule-lighteval/MATH_v2"},
        "extra_info": {"index": f"{index:032x}"},
    }


def prepare(path: Path, output: Path, questions: int) -> tuple[float, float, float]:
    """Seconds, seconds of CPU, and peak GiB of the command, whose result is checked."""
    command = [sys.executable, "-m", "openrlhf_ebpo.cli.data", "prepare", "--validation", "1"]
    command += ["--input", str(path), "--output", str(output)]
    started = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)  # getrusage would give the largest child so far
    seconds = time.perf_counter() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"the command failed: {' '.join(command)}")
    report = json.loads((output / "report.json").read_text())
    assert report["kept"] == questions, report
    return seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 2**20


if __name__ == "__main__":
    main()
