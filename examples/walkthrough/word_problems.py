"""The walkthrough's word problems with their own reward: the last number of a response is its answer.

PYTHONPATH=examples/walkthrough openrlhf-ebpo eval --model MODEL --template raw --chat_template --tasks
word_problems:TASK \
    --protocol greedy --output_dir results
"""

import re
from pathlib import Path

from openrlhf_ebpo.eval.tasks import Benchmark
from openrlhf_ebpo.rewards.math.math import response_of

NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")


def reward_func(queries: list[str], prompts: list[str], labels: list[str]) -> dict:
    numbers = [each.replace(",", "") for each in NUMBER.findall(response_of(queries[0], prompts[0]))]
    right = bool(numbers) and float(numbers[-1]) == float(labels[0])
    return {"rewards": float(right), "extracted": numbers[-1] if numbers else None}


TASK = Benchmark("word-problems", copies=(Path(__file__).with_name("maths.jsonl"),), reward=Path(__file__))
