"""Estimators with one thing changed, for learning.py: `--estimators lab.variants:NAME`."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from openrlhf_ebpo.estimator.config import EstimatorConfig
from openrlhf_ebpo.estimator.contract import Batch, Step
from openrlhf_ebpo.estimator.ebpo import EBPO


class SilentFailures(EBPO):
    """EBPO, with advantage 0 for groups that failed entirely: what do they contribute?"""

    def step(self, batch: Batch, state) -> Step:
        step = super().step(batch, state)
        return replace(step, advantages=np.where(batch.rewards.any(1, keepdims=True), step.advantages, 0.0))


class RobustPerSequence(EBPO):
    """Preset `robust` with score weights divided by the squared length: where the loss is a mean over the tokens of
    each response, the gradient of a response is its score over its length."""

    def __init__(self, config: EstimatorConfig, *rest):
        super().__init__(replace(config, preset="robust"), *rest)

    def step(self, batch: Batch, state) -> Step:
        weights = batch.score_weights / np.maximum(batch.lengths, 1) ** 2
        return super().step(replace(batch, give_score_weights=lambda: weights), state)
