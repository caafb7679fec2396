"""Evidence of a rollout batch about its groups, and the weight of each response and each group in it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from openrlhf_ebpo.estimator.prior import Moments, Prior
from openrlhf_ebpo.estimator.shrinkage import DEGENERATE

if TYPE_CHECKING:
    from openrlhf_ebpo.estimator.config import EstimatorConfig
    from openrlhf_ebpo.estimator.contract import Batch, PerGroup, PerResponse

LEAST_WEIGHT = 1e-6  # of a valid response, relative to the batch's mean weight: a group without any would have no mean


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
