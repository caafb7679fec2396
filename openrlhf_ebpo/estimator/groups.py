"""Statistics of the groups of a rollout batch: over valid responses, which EBPO, methods/ and upstream.py share; and
what the batch tells the prior, with the weight of each response and each group.

M is the number of groups in a rollout batch, G the responses of a group.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from openrlhf_ebpo.estimator.contract import Batch, Estimator
from openrlhf_ebpo.estimator.prior import Moments, Prior
from openrlhf_ebpo.estimator.shrinkage import DEGENERATE, EPSILON

if TYPE_CHECKING:
    from openrlhf_ebpo.estimator.config import EstimatorConfig
    from openrlhf_ebpo.estimator.contract import PerGroup, PerResponse

LEAST_WEIGHT = 1e-6  # of a valid response, relative to the batch's mean weight: a group without any would have no mean


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


def by_root_mean_square(raw: PerResponse, batch: Batch, reward_range: float) -> PerResponse:
    """Compute A / (sqrt(mean A²) + 1e-6) over the valid responses, (M, G); 0 where all rewards of the batch are equal.
    raw: 0 where not valid."""
    if np.ptp(batch.rewards[batch.valid]) <= DEGENERATE * reward_range:
        return np.zeros_like(raw)
    return raw / (np.sqrt((raw[batch.valid] ** 2).mean()) + EPSILON)


def successes(batch: Batch, config: EstimatorConfig) -> PerResponse:
    """Scale rewards to 0 (fail) to 1 (pass), (M, G), 0 where not valid: for what is defined for binary rewards. Length
    penalties can take a reward out of this range; it is cut off there."""
    share = (batch.rewards - config.fail_reward) / config.reward_range
    return np.where(batch.valid, np.clip(share, 0.0, 1.0), 0.0)


@dataclass(frozen=True)
class Groups:
    """The groups of a batch.

    rewards, weights: (M, G), weight 0 where not valid. means, sizes: (M, 1). `sizes` are the numbers of
    valid responses; under unequal weights the effective ones, (Σw)²/Σw² (Kish). alive: (M, 1) bool, True with a valid
    response. clusters: M names, or (). weighted: responses have different weights.
    """

    rewards: PerResponse
    weights: PerResponse
    means: PerGroup
    sizes: PerGroup
    alive: PerGroup
    clusters: tuple[str | None, ...] = ()
    weighted: bool = False

    @classmethod
    def of(cls, batch: Batch, given: PerResponse | None) -> Groups:
        """Args:
        given: (M, G) weights of the responses, 0 where not valid; None: they are equal.
        """
        weights = batch.valid.astype(np.float64) if given is None else given
        total = weights.sum(-1, keepdims=True)
        alive = total > 0
        means = (batch.rewards * weights).sum(-1, keepdims=True) / np.where(alive, total, 1)
        sizes = total**2 / np.where(alive, (weights**2).sum(-1, keepdims=True), 1)
        sizes = np.maximum(sizes, 1)
        return cls(batch.rewards, weights, means, sizes, alive, batch.clusters, given is not None)

    @property
    def count(self) -> int:
        """Prompts with a valid response."""
        return int(self.alive.sum())

    @property
    def totals(self) -> PerGroup:
        """Weight of each group among the others: its responses' mean weight, relative to the batch's."""
        weight = self.weights.sum(-1, keepdims=True) / self.sizes
        return weight / weight[self.alive].mean()

    @property
    def variances(self) -> PerGroup:
        """s²_m, unbiased; 0 for a single response."""
        squares = (self.weights * (self.rewards - self.means) ** 2).sum(-1, keepdims=True)
        return squares / np.where(self.freedom > DEGENERATE, self.weights.sum(-1, keepdims=True) * self.freedom, 1)

    @property
    def freedom(self) -> PerGroup:
        """Degrees of freedom of s²_m as a fraction of the size, 1 − 1/G_m."""
        return 1 - 1 / self.sizes

    def evidence(self, detailed: bool) -> Prior:
        """Return the prior of this batch alone. detailed: with the moments inside groups."""
        present, alive, totals = self.weights > 0, self.alive, self.totals
        simple = Prior.of(self.rewards[present], self.means[alive], self.weights[present], totals[alive])
        if not detailed:
            return simple
        totals, freedom = totals[alive], np.where(self.freedom > DEGENERATE, self.freedom, 0.0)[alive]
        between = totals.sum() - (totals**2).sum() / totals.sum()  # degrees of freedom of the group means
        return replace(
            simple,
            within=Moments.of(self.variances[alive], totals * freedom),
            inverse_sizes=Moments.of(1 / self.sizes[alive], totals),
            spread=Moments(between, simple.group_means.m2 / between) if between > DEGENERATE else Moments(),
        )

    def are_binary(self, config: EstimatorConfig) -> bool:
        """Return True if every valid reward is the fail or the pass value."""
        present = self.rewards[self.weights > 0]
        distance = np.minimum(abs(present - config.fail_reward), abs(present - config.pass_reward))
        return bool(distance.max() <= DEGENERATE * config.reward_range)


def score_weights(batch: Batch) -> PerResponse:
    """Return Σ_t (1 − π_old(y_t))² of each valid response, 0 of the others: the reward's mean under these weights is
    the constant baseline with the least gradient variance (Weaver and Tao 2001; Greensmith, Bartlett and Baxter
    2004)."""
    mean = batch.score_weights[batch.valid].mean()
    return np.maximum(batch.score_weights, LEAST_WEIGHT * mean) * batch.valid if mean > 0 else batch.valid.astype(float)
