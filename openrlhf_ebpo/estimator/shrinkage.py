"""Shrinkage weights, baselines and normalisation: the formulas of EBPO, nothing else.

Every function is pure; M is the number of groups in a rollout batch, G the responses of a group. Source: arXiv
2602.05165, Algorithm 1.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from openrlhf_ebpo.estimator.contract import PerGroup, PerResponse

EPSILON = 1e-6  # the released code's, in (A - mean) / (std + ε)
DEGENERATE = 1e-6  # relative to the reward range; below it a spread counts as none


def group_mean(rewards: PerResponse, valid: PerResponse) -> PerGroup:
    """Compute the mean reward of each group over its valid samples, shape (M, 1); 0 for a group without any.

    Args:
        rewards: (M, G); invalid entries may hold anything finite.
        valid: (M, G) bool.
    """
    return (rewards * valid).sum(-1, keepdims=True) / np.maximum(valid.sum(-1, keepdims=True), 1)


def shrinkage_weight(
    within_variance: float, between_variance: float, group_size: PerGroup | float, reward_range: float
) -> PerGroup | float:
    """Compute S = (σ²/G) / (σ²/G + τ²): how far a group's mean moves towards the prior mean; 1 where nothing
    distinguishes the groups (σ²/G + τ² ≤ 1e-6 × range²).

    Args:
        group_size: number of valid samples, a number or an array of any shape, at least 1.
        reward_range: pass reward minus fail reward.
    """
    noise = within_variance / group_size
    total = noise + between_variance
    degenerate = total <= DEGENERATE * reward_range**2
    return np.where(degenerate, 1.0, noise / np.where(degenerate, 1.0, total))


def shrunk_baseline(mean: PerGroup, prior_mean: float, shrinkage: PerGroup | float) -> PerGroup:
    """Compute V_m = (1 − S)·μ_m + S·μ_glob, in the shape that `mean` and `shrinkage` broadcast to."""
    return (1 - shrinkage) * mean + shrinkage * prior_mean


def standardise(advantages: PerResponse, valid: PerResponse, reward_range: float) -> PerResponse:
    """Compute (A − mean A) / (std A + ε) over the valid responses of the batch, one value per response; invalid ones
    get 0. The standard deviation is the sample one (n − 1). All 0 where std A ≤ 1e-6 × range. Sums are exactly rounded,
    so the result has the same bits on every machine.

    Args:
        advantages: (M, G) raw advantages.
        valid: (M, G) bool.
    """
    mean, std = _mean_and_std(advantages[valid])
    return (advantages - mean) * valid * (std > DEGENERATE * reward_range) / (std + EPSILON)


def scale(advantages: PerResponse, valid: PerResponse, reward_range: float) -> PerResponse:
    """Compute A / (std A + ε): `standardise` without the centring."""
    _, std = _mean_and_std(advantages[valid])
    return advantages * valid * (std > DEGENERATE * reward_range) / (std + EPSILON)


def _mean_and_std(present: PerResponse) -> tuple[float, float]:
    mean = math.fsum(present) / present.size
    return mean, math.sqrt(math.fsum((present - mean) ** 2) / max(present.size - 1, 1))
