"""What a rollout batch says about its groups, and how much each response and each group counts in it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from openrlhf_ebpo.estimator.prior import Moments, Prior
from openrlhf_ebpo.estimator.shrinkage import DEGENERATE

if TYPE_CHECKING:
    from openrlhf_ebpo.estimator.config import EstimatorConfig
    from openrlhf_ebpo.estimator.contract import Batch
    from openrlhf_ebpo.estimator.shapes import PerGroup, PerResponse

LEAST_WEIGHT = 1e-6  # of a valid response, relative to the batch's mean weight: a group without any would have no mean


@dataclass(frozen=True)
class Groups:
    """The groups of a batch.

    rewards, weights: (M, G), weight 0 where not valid. means, sizes, importance: (M, 1). `sizes` are the numbers of
    valid responses; under unequal weights the effective ones, (Σw)²/Σw² (Kish). alive: (M, 1) bool, whether there is any.
    clusters: M names, or ().
    """

    rewards: PerResponse
    weights: PerResponse
    means: PerGroup
    sizes: PerGroup
    alive: PerGroup
    importance: PerGroup
    clusters: tuple[str | None, ...] = ()

    @classmethod
    def of(cls, batch: Batch, weights: PerResponse) -> Groups:
        total = weights.sum(-1, keepdims=True)
        alive = total > 0
        means = (batch.rewards * weights).sum(-1, keepdims=True) / np.where(alive, total, 1)
        sizes = total**2 / np.where(alive, (weights**2).sum(-1, keepdims=True), 1)
        return cls(batch.rewards, weights, means, np.maximum(sizes, 1), alive, batch.importance, batch.clusters)

    @property
    def count(self) -> int:
        """Prompts with a valid response."""
        return int(self.alive.sum())

    @property
    def totals(self) -> PerGroup:
        """How much each group counts among the others: its responses' mean weight, relative to the batch's, times its
        importance."""
        weight = self.weights.sum(-1, keepdims=True) / self.sizes
        return self.importance * weight / weight[self.alive].mean()

    @property
    def variances(self) -> PerGroup:
        """s²_m, unbiased; 0 where there is but one response."""
        squares = (self.weights * (self.rewards - self.means) ** 2).sum(-1, keepdims=True)
        return squares / np.where(self.freedom > DEGENERATE, self.weights.sum(-1, keepdims=True) * self.freedom, 1)

    @property
    def freedom(self) -> PerGroup:
        """Degrees of freedom of s²_m as a fraction of the size, 1 − 1/G_m."""
        return 1 - 1 / self.sizes

    def evidence(self, detailed: bool) -> Prior:
        """This batch alone; the moments inside groups only where they are asked for."""
        present, alive, totals = self.weights > 0, self.alive, self.totals
        responses = (self.weights * self.importance)[present]
        simple = Prior.of(self.rewards[present], self.means[alive], responses, totals[alive])
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
        """Whether every valid reward is the fail or the pass value."""
        present = self.rewards[self.weights > 0]
        distance = np.minimum(abs(present - config.fail_reward), abs(present - config.pass_reward))
        return bool(distance.max() <= DEGENERATE * config.reward_range)


def equal_weights(batch: Batch) -> PerResponse:
    return batch.valid.astype(np.float64)


def score_weights(batch: Batch) -> PerResponse:
    """Σ_t (1 − π_old(y_t))² of each valid response: the reward's mean under these weights is the constant baseline with the
    least gradient variance (Weaver and Tao 2001; Greensmith, Bartlett and Baxter 2004)."""
    mean = batch.score_weights[batch.valid].mean()
    if not mean > 0:
        return equal_weights(batch)
    return np.maximum(batch.score_weights, LEAST_WEIGHT * mean) * batch.valid
