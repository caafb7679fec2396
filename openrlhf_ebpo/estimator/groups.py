"""Statistics over valid responses that EBPO, methods/ and upstream.py share, and nothing that a paper claims.

Every function is pure; M is the number of groups in a rollout batch, G the responses of a group.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from openrlhf_ebpo.estimator.contract import Batch, Estimator
from openrlhf_ebpo.estimator.shrinkage import DEGENERATE

if TYPE_CHECKING:
    from openrlhf_ebpo.estimator.config import EstimatorConfig
    from openrlhf_ebpo.estimator.contract import PerGroup, PerResponse


class GroupEstimator(Estimator):
    """Base of those that compare the responses to one prompt with each other.

    Raises:
        ValueError: fewer than 2 responses per prompt.
    """

    def __init__(self, config: EstimatorConfig, name: str = ""):
        super().__init__(config, name)
        if config.n_samples_per_prompt < 2:
            raise ValueError(
                f"--rollout.n_samples_per_prompt is {config.n_samples_per_prompt}: {self.name} needs at least 2. It "
                "compares the responses to one prompt with each other."
            )


def weighted_mean(values: PerResponse, weights: PerResponse, valid: PerResponse) -> PerGroup:
    """Compute Σ w·r / Σ w over the valid responses of each row, (M, 1); the plain mean where all weights are 0, 0 where
    none is valid."""
    weights = np.where(valid, weights, 0.0)
    weights = np.where(weights.any(-1, keepdims=True), weights, valid)
    total = weights.sum(-1, keepdims=True)
    return (values * weights).sum(-1, keepdims=True) / np.where(total == 0, 1.0, total)


def others_in_group(rewards: PerResponse, valid: PerResponse) -> PerResponse:
    """Compute the mean reward of the group's other valid responses, (M, G); the response's own reward if it is alone,
    so that its advantage is 0."""
    others = valid.sum(-1, keepdims=True) - 1
    total = (rewards * valid).sum(-1, keepdims=True)
    return np.where(others > 0, (total - rewards) / np.maximum(others, 1), rewards)


def deviations(
    rewards: PerResponse, baselines: PerGroup | PerResponse, valid: PerResponse, reward_range: float
) -> PerResponse:
    """Compute r − b, (M, G), 0 where not valid. Up to 1e-6 of the range it counts as none: the mean of eight times 0.3
    is not 0.3, and what divides by a small spread would enlarge the rounding."""
    difference = np.where(valid, rewards - baselines, 0.0)
    return np.where(np.abs(difference) <= DEGENERATE * reward_range, 0.0, difference)


def successes(batch: Batch, config: EstimatorConfig) -> PerResponse:
    """Scale rewards to 0 (fail) to 1 (pass), (M, G), 0 where not valid: for what is defined for binary rewards. Length
    penalties can take a reward out of this range; it is cut off there."""
    share = (batch.rewards - config.fail_reward) / config.reward_range
    return np.where(batch.valid, np.clip(share, 0.0, 1.0), 0.0)
