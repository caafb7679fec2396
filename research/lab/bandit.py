"""A softmax bandit: prompts with a table of logits each in place of a network, so that they share nothing.

A step draws prompts and responses for each, rewards 1 or 0, and makes one optimizer step on the policy gradient, by the
advantages that the package computes. Under Adam a table of logits is misleading: it divides each logit's gradient by
its size and so acts like a sign, and answers that are hardly ever drawn drift up by any push against what fails.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from lab.learner import build
from openrlhf_ebpo.estimator.contract import Batch

RIGHT = 0  # the right answer's place in the table
OPTIMIZERS = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}


@dataclass(frozen=True)
class Bandit:
    """start: logits of the right answer, added to normal ones of standard deviation `spread`; batch: prompts a step."""

    start: float
    optimizer: str = "adam"
    spread: float = 2.0
    group: int = 4
    steps: int = 400
    prompts: int = 512
    batch: int = 64
    answers: int = 64


def train(bandit: Bandit, estimator: str, lr: float, seed: int) -> torch.Tensor:
    """The mean success rate of all prompts after the last step."""
    random = torch.Generator().manual_seed(seed)
    logits = first_logits(bandit, seed).requires_grad_()
    optimizer = OPTIMIZERS[bandit.optimizer]([logits], lr=lr)
    computed, _ = build(estimator, bandit.group)
    state = computed.initial()
    for _ in range(bandit.steps):
        chosen = torch.randperm(bandit.prompts, generator=random)[: bandit.batch]
        log_probs = logits[chosen].log_softmax(-1)
        responses = torch.multinomial(log_probs.detach().exp(), bandit.group, replacement=True, generator=random)
        rewards = (responses == RIGHT).double().numpy()
        step = computed.step(Batch.of(rewards, np.ones_like(rewards, dtype=bool)), state)
        state = step.state
        optimizer.zero_grad()
        (-torch.tensor(step.advantages) * log_probs.gather(1, responses)).mean().backward()
        optimizer.step()
    return logits.detach().softmax(-1)[:, RIGHT].mean()


def first_logits(bandit: Bandit, seed: int) -> torch.Tensor:
    random = torch.Generator().manual_seed(1000 + seed)
    logits = bandit.spread * torch.randn(bandit.prompts, bandit.answers, generator=random)
    logits[:, RIGHT] += bandit.start
    return logits
