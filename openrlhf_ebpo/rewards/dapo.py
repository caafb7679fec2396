"""DAPO's reward for mathematics: `--reward.remote_url dapo`, the label column holds the gold answer.

It is the definition of verl's `math_dapo`, with which EBPO's authors trained, written anew. Of a response without its special
tokens the last 300 characters count, and of these what follows the last "Answer:" on its line, or on the next one that is not
empty. It is right where its text equals the gold's after Minerva's normalisation (arXiv 2206.14858, appendix D.1) of both; a box
alone is no answer, and nothing is computed. A right response earns 1, any other −1. Logged beside the reward: `dapo_no_answer`.

`scores`, by which --algo.dynamic_filtering_enable chooses, are 1 and 0, as in verl, where DAPO filters by accuracy.
"""

from __future__ import annotations

import torch

from openrlhf_ebpo.rewards.grading import GoldError
from openrlhf_ebpo.rewards.math import as_text, response_of
from openrlhf_ebpo.rewards.minerva import answer_of, is_right


def reward_func(queries, prompts, labels, **_kwargs):
    """OpenRLHF's interface: queries are prompt + response texts. Returns rewards (N,) of −1 and 1.

    Raises:
        RewardError: a prompt cannot be found in its query. GoldError: a label is no text.
    """
    answers = [answer_of(response_of(query, prompt)) for query, prompt in zip(queries, prompts, strict=True)]
    right = torch.tensor([is_right(gold_of(label), each) for label, each in zip(labels, answers, strict=True)]).float()
    no_answer = torch.tensor([float(each is None) for each in answers])
    return {"rewards": 2 * right - 1, "scores": right, "extra_logs": {"dapo_no_answer": no_answer}}


def gold_of(label) -> str:
    gold = as_text(label)
    if not isinstance(gold, str):
        raise GoldError(f"the gold answer must be a text, not {type(gold).__name__} {str(gold)[:200]!r}")
    return gold
