"""The walkthrough's held-out sums: the response is right if it is the sum, as the reward reads it."""

from collections.abc import Mapping

from openrlhf_ebpo.eval.tasks import Benchmark


def score(response: str, gold: str, row: Mapping) -> bool:
    return response.strip() == gold


TASK = Benchmark(
    "sums", question=("question",), answer=("answer",), score=score, extract=lambda text: text.strip() or None
)
