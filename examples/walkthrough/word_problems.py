"""The walkthrough's word problems with their own scorer: the last number of a response is its answer.

PYTHONPATH=examples/walkthrough openrlhf-ebpo eval --model MODEL --template raw --chat_template --tasks
word_problems:TASK \
    --protocol greedy --output_dir results
"""

import re
from collections.abc import Mapping
from pathlib import Path

from openrlhf_ebpo.eval.tasks import Benchmark

NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")


def last_number(response: str) -> str | None:
    """Return the answer of a response; None if it has none, which counts as wrong."""
    numbers = NUMBER.findall(response)
    return numbers[-1].replace(",", "") if numbers else None


def score(response: str, gold: str, row: Mapping) -> bool:
    found = last_number(response)
    return found is not None and float(found) == float(gold)


TASK = Benchmark(
    "word-problems",
    copies=(Path(__file__).with_name("maths.jsonl"),),
    score=score,
    extract=last_number,
)
