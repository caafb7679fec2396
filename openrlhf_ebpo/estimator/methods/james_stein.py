"""The James–Stein baseline, leave-one-out on two levels."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from openrlhf_ebpo.estimator.contract import Batch, Step
from openrlhf_ebpo.estimator.groups import GroupEstimator, deviations, others_in_group
from openrlhf_ebpo.estimator.shrinkage import DEGENERATE, group_mean

if TYPE_CHECKING:
    from openrlhf_ebpo.estimator.contract import PerGroup, PerResponse


class JamesStein(GroupEstimator):
    """b_ij = (1 − λ_i)·μ_i^{−j} + λ_i·μ_{−i}, A = r − b, not normalised.

    μ_i^{−j}: mean of the group's other responses. μ_{−i}: mean of the other prompts' means.
    λ_i = (n − 1)/n · v_{−i} / (v_{−i} + s_{−i}) with n prompts; v_{−i}: mean of s²_k/m_k over the other prompts (s²
    unbiased, m responses); s_{−i}: variance (divisor n − 1, their number) of the other prompts' means. So b_ij does not
    depend on r_ij, and the gradient stays unbiased.

    Zeng et al., "Shrinking the Variance: Shrinkage Baselines for RLVR", arXiv 2511.03710, equations 10 and 13 to 16 of
    v1. The authors' code is not released, and the paper's own text was not at hand: formulas and numbers are from two
    independent accounts of it that agree.

    Chosen here: n counts the prompts with a valid response. Prompts with one response tell nothing about v; their own
    baseline is μ_{−i}. λ = 0 if v and s both vanish, or without another prompt.
    """

    def step(self, batch: Batch, state: dict) -> Step:
        rewards, valid = batch.rewards, batch.valid
        weights = shrinkage(rewards, valid, self.config.reward_range)
        others = _without_own(group_mean(rewards, valid), valid.any(-1, keepdims=True))  # μ_{−i}
        baselines = (1 - weights) * others_in_group(rewards, valid) + weights * others
        return Step(baselines, deviations(rewards, baselines, valid, self.config.reward_range), state, weights)


def shrinkage(rewards: PerResponse, valid: PerResponse, reward_range: float) -> PerGroup:
    """Compute λ, (M, 1)."""
    means, sizes = group_mean(rewards, valid), valid.sum(-1, keepdims=True)
    alive = sizes > 0
    squares = (np.where(valid, rewards - means, 0.0) ** 2).sum(-1, keepdims=True)
    noise = _without_own(squares / np.maximum(sizes * (sizes - 1), 1), sizes > 1)
    n = alive.sum()
    away = np.where(alive, means - means[alive].mean(), 0.0)  # a deviance is downdated: no difference of large sums
    spread = np.maximum((away**2).sum() - n / max(n - 1, 1) * away**2, 0.0) / max(n - 1, 1)
    total = noise + spread
    known = (n > 1) & (total > (DEGENERATE * reward_range) ** 2)
    weights = np.where(known, (n - 1) / n * noise / np.where(known, total, 1.0), 0.0)
    return np.where((sizes == 1) & (n > 1), 1.0, weights)


def _without_own(values: PerGroup, counted: PerGroup) -> PerGroup:
    """Compute the mean over the other groups of those that count; 0 if no other counts."""
    others = counted.sum() - counted
    return np.where(others > 0, ((values * counted).sum() - values * counted) / np.maximum(others, 1), 0.0)
