"""The walkthrough's held-out sums: the response is right if it is the sum, as in its training."""

from pathlib import Path

from openrlhf_ebpo.eval.tasks import Benchmark
from openrlhf_ebpo.rewards.math.math import response_of


def reward_func(queries: list[str], prompts: list[str], labels: list[str]) -> dict:
    answer = response_of(queries[0], prompts[0]).strip()
    return {"rewards": float(answer == labels[0]), "extracted": answer or None}


TASK = Benchmark("sums", question=("question",), answer=("answer",), reward=Path(__file__))
