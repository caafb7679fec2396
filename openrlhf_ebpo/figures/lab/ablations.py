"""Estimators with one thing taken away, to see what it was worth."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from openrlhf_ebpo.estimator.contract import Batch, Estimator, Step
from openrlhf_ebpo.estimator.ebpo import EBPO


class SilentFailures(Estimator):
    """EBPO, with advantage 0 for groups that failed entirely: what do they contribute?"""

    def __init__(self, config, name: str = ""):
        super().__init__(config, name)
        self.ebpo = EBPO(config, name)

    def initial(self):
        return self.ebpo.initial()

    def step(self, batch: Batch, state) -> Step:
        step = self.ebpo.step(batch, state)
        return replace(step, advantages=np.where(batch.rewards.any(1, keepdims=True), step.advantages, 0.0))
