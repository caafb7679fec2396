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
TEXT = "let a triangle with sides $x^2+1$ and angle \\frac{\\pi}{3} find the sum of all real roots modulo 97 where"
WORDS = TEXT.split()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_800_000, help="(default: 1.8 million)")
    parser.add_argument("--format", choices=("parquet", "jsonl"), default="parquet", help="of the input")
    options = parser.parse_args()
    print(f"{options.rows:,} rows, {options.format}")
    print(f"{'questions':>10} {'input':>9} {'seconds':>8} {'CPU s':>8} {'rows/s':>9} {'peak memory':>12}")
    for questions in (options.rows // 103, options.rows):
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory, f"rows.{options.format}")
            write_rows(path, options.rows, questions)
            seconds, cpu, peak = prepare(path, Path(directory, "out"), questions)
            size = path.stat().st_size / 2**20
        print(
            f"{questions:>10,} {size:>5.0f} MiB {seconds:>8.1f} {cpu:>8.1f} {options.rows / seconds:>9,.0f} {peak:>8.2f} GiB"
        )


def write_rows(path: Path, rows: int, questions: int, batch: int = 50_000) -> None:
    """Question i % questions in row i."""
    batches = (range(start, min(start + batch, rows)) for start in range(0, rows, batch))
    if path.suffix == ".jsonl":
        with open(path, "w") as file:
            for indices in batches:
                file.writelines(json.dumps(row(i, questions)) + "\n" for i in indices)
        return
    with pq.ParquetWriter(path, SCHEMA) as writer:
        for indices in batches:
            writer.write_table(pa.Table.from_pylist([row(i, questions) for i in indices], SCHEMA), 1 << 20)


def row(index: int, questions: int) -> dict:
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
    command = [sys.executable, "-m", "openrlhf_ebpo.cli.data", "prepare", "--input", str(path), "--output", str(output)]
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
