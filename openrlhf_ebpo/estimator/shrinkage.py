"""Shrinkage weights, baselines and normalisation: the formulas of EBPO, nothing else.

Every function is pure and works on numpy and torch arrays alike (neither is imported); M is the number of
groups in a rollout batch, G the responses of a group. Source: arXiv 2602.05165, Algorithm 1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from openrlhf_ebpo.estimator.shapes import PerGroup, PerResponse

EPSILON = 1e-6  # the released code's, in (A - mean) / (std + ε)
DEGENERATE = 1e-6  # relative to the reward range; below it a spread counts as none


def group_mean(rewards: PerResponse, valid: PerResponse) -> PerGroup:
    """Mean reward of each group over its valid samples, shape (M, 1); 0 for a group without any.

    Args:
        rewards: (M, G); invalid entries may hold anything finite.
        valid: (M, G), 1 where the sample counts and 0 where it does not, in the dtype of `rewards`.
    """
    size = valid.sum(-1)[:, None]
    return (rewards * valid).sum(-1)[:, None] / (size + (size == 0))


def shrinkage_weight(
    within_variance: float, between_variance: float, group_size: PerGroup | float, reward_range: float
) -> PerGroup | float:
    """S = (σ²/G) / (σ²/G + τ²): how far a group's mean moves towards the prior mean; 1 where nothing
    distinguishes the groups (σ²/G + τ² ≤ 1e-6 × range²).

    Args:
        group_size: number of valid samples, a number or an array of any shape, at least 1.
        reward_range: pass reward minus fail reward.
    """
    noise = within_variance / group_size
    total = noise + between_variance
    degenerate = (total <= DEGENERATE * reward_range**2) * 1.0
    return degenerate + (1 - degenerate) * (noise / (total + degenerate))


def shrunk_baseline(mean: PerGroup, prior_mean: float, shrinkage: PerGroup | float) -> PerGroup:
    """V_m = (1 − S)·μ_m + S·μ_glob, in the shape that `mean` and `shrinkage` broadcast to."""
    return (1 - shrinkage) * mean + shrinkage * prior_mean


def standardise(advantages: PerResponse, valid: PerResponse, reward_range: float) -> PerResponse:
    """(A − mean A) / (std A + ε) over the valid responses of the batch, one value per response; invalid ones
    get 0. The standard deviation is the sample one (n − 1). All 0 where std A ≤ 1e-6 × range.

    Args:
        advantages: (M, G) raw advantages.
        valid: (M, G) of 0 and 1, same dtype.
    """
    count = valid.sum()
    centred = (advantages - (advantages * valid).sum() / count) * valid
    std = ((centred**2).sum() / max(float(count) - 1.0, 1.0)) ** 0.5
    return centred * float(std > DEGENERATE * reward_range) / (std + EPSILON)
