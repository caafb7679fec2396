"""Measure how long the `math` reward takes for 2,816 different answers, in one process.

    python benchmarks/grading.py
    PYTHONPATH=OTHER_CHECKOUT python benchmarks/grading.py     # the same answers, graded by another version

The answers are the labelled ones of tests/data, with other digits in gold and answer until there are enough. Those that
take all their time on purpose are left out.
"""

from __future__ import annotations

import json
import random
import time
from pathlib import Path

from openrlhf_ebpo.rewards.pool import Pool

DATA = Path(__file__).parents[1] / "tests" / "data" / "math_pairs.jsonl"
COUNT = 2816


def answers() -> list[tuple[str, str]]:
    """Return pairs of gold and response, the same in every run."""
    rows = [json.loads(line) for line in DATA.read_text().splitlines()]
    pairs = [(row["gold"], row["response"]) for row in rows if not row["trap"].startswith("hostile")]
    drawn, found = random.Random(0), dict.fromkeys(pairs)
    while len(found) < COUNT:
        gold, response = drawn.choice(pairs)
        digits = dict(zip("23456789", drawn.sample("23456789", 8), strict=True))
        table = str.maketrans(digits)
        found[gold.translate(table), response.translate(table)] = None
    return list(found)[:COUNT]


def main() -> None:
    pool, pairs = Pool(workers=1), answers()
    pool.grade("2", r"\boxed{x}")  # the process starts
    started = time.perf_counter()
    right, errors = 0, 0
    for gold, response in pairs:
        try:
            right += pool.grade(gold, response).correct
        except ValueError:  # a gold that cannot be read
            errors += 1
    seconds = time.perf_counter() - started
    pool.close()
    print(f"{len(pairs):,} answers in {seconds:.1f} s ({right:,} right, {errors} with an unreadable gold)")


if __name__ == "__main__":
    main()
