"""Estimators with one thing taken away, for learning.py: `--estimators lab.variants:NAME`."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from openrlhf_ebpo.estimator.contract import Batch, Estimator, Step
from openrlhf_ebpo.estimator.ebpo import EBPO
from openrlhf_ebpo.estimator.shrinkage import DEGENERATE, EPSILON


class SilentFailures(EBPO):
    """EBPO, with advantage 0 for groups that failed entirely: what do they contribute?"""

    def step(self, batch: Batch, state) -> Step:
        step = super().step(batch, state)
        return replace(step, advantages=np.where(batch.rewards.any(1, keepdims=True), step.advantages, 0.0))


class NoBaseline(Estimator):
    """The reward itself, divided by its root mean square: what no baseline at all does."""

    def step(self, batch: Batch, state: dict) -> Step:
        varied = np.ptp(batch.rewards) > DEGENERATE * self.config.reward_range
        advantages = batch.rewards * varied / (np.sqrt((batch.rewards**2).mean()) + EPSILON)
        return Step(np.zeros((len(batch.rewards), 1)), advantages, state)
