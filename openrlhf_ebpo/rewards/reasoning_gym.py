"""reasoning-gym's own scorer as a reward: `--reward.remote_url .../openrlhf_ebpo/rewards/reasoning_gym.py`.

The kind of task is OPENRLHF_EBPO_REASONING_GYM (default chain_sum); the label column holds the oracle answer.
A response earns the pass reward only where the scorer gives full marks, so rewards are 0 or 1.
"""

from __future__ import annotations

import functools
import os
import re

import torch

SPECIAL = re.compile(r"<\|[^|]*\|>")


@functools.cache
def scorer(kind: str):
    import reasoning_gym

    return reasoning_gym.get_score_answer_fn(kind)


def score(response: str, label: str, kind: str) -> float:
    """reasoning-gym's score of one response, special tokens and surrounding space removed."""
    answer = SPECIAL.sub("", response).strip()
    return float(scorer(kind)(answer, {"answer": label, "metadata": {"source_dataset": kind}}))


def reward_func(queries, prompts, labels, **_kwargs):
    """OpenRLHF's interface: queries are prompt + response texts. Returns rewards (N,) of 0 and 1."""
    kind = os.environ.get("OPENRLHF_EBPO_REASONING_GYM", "chain_sum")
    scores = torch.tensor(
        [score(q[len(p) :], label, kind) for q, p, label in zip(queries, prompts, labels, strict=True)]
    )
    rewards = (scores >= 1.0).float()
    return {"rewards": rewards, "scores": rewards, "extra_logs": {"reasoning_gym_score": scores}}
