"""Estimators with one thing taken away, for learning.py: `--estimators lab.variants:NAME`."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from openrlhf_ebpo.estimator.contract import Batch, Step
from openrlhf_ebpo.estimator.ebpo import EBPO


class SilentFailures(EBPO):
    """EBPO, with advantage 0 for groups that failed entirely: what do they contribute?"""

    def step(self, batch: Batch, state) -> Step:
        step = super().step(batch, state)
        return replace(step, advantages=np.where(batch.rewards.any(1, keepdims=True), step.advantages, 0.0))
