"""BNPO: rewards less the group's mean, divided by a Beta density at that mean."""

from __future__ import annotations

import math

import numpy as np

from openrlhf_ebpo.estimator.contract import Batch, Step
from openrlhf_ebpo.estimator.groups import GroupEstimator, deviations, successes
from openrlhf_ebpo.estimator.shrinkage import DEGENERATE, group_mean

LARGEST_WEIGHT = 1e6  # the released code's
EDGE = 1e-12  # success rates of 0 and 1 are moved here: their groups get 0 anyway


class BNPO(GroupEstimator):
    """A = (x − p_m) / f(p_m; α, β), x the reward from 0 (fail) to 1 (pass), p_m the group's mean, f the Beta density.

    With p̄ and v the mean and the unbiased variance of the batch's group means: a = (p̄(1 − p̄)/v − 1)·p̄ and
    b = (p̄(1 − p̄)/v − 1)·(1 − p̄), the Beta distribution of these moments; α = max(1 + a/3, 1), β = max(1 + b/3, 1). 1/f is at
    most 1e6. α = β = 1 is Dr. GRPO, α = β = 3/2 GRPO up to a constant.

    Xiao et al., "BNPO: Beta Normalization Policy Optimization", arXiv 2506.02864. Formula after the released code,
    changyi7231/BNPO, recipe/bnpo/src/bnpo_ray_trainer.py, compute_bnpo_outcome_advantage; of the paper the abstract was at hand.
    The advantage decomposition for several rewards is left out: there is one reward here.

    Chosen here: α = β = 1 where v vanishes (the released code gives NaN) or only one group is left (as there).
    """

    def step(self, batch: Batch, state: dict) -> Step:
        shares = successes(batch, self.config)
        rates = group_mean(shares, batch.valid)
        weights = 1 / np.maximum(density(rates, *parameters(rates[batch.valid.any(-1)])), 1 / LARGEST_WEIGHT)
        baselines = self.config.fail_reward + self.config.reward_range * rates
        return Step(baselines, weights * deviations(shares, rates, batch.valid, 1.0), state)


def parameters(rates: np.ndarray) -> tuple[float, float]:
    """α and β from the success rates of the batch's groups."""
    variance = rates.var(ddof=1) if rates.size > 1 else 0.0
    if variance <= DEGENERATE**2:
        return 1.0, 1.0
    mean = rates.mean()
    size = mean * (1 - mean) / variance - 1
    return max(1 + size * mean / 3, 1.0), max(1 + size * (1 - mean) / 3, 1.0)


def density(rates: np.ndarray, alpha: float, beta: float) -> np.ndarray:
    """Beta(α, β) at these rates."""
    inside = np.clip(rates, EDGE, 1 - EDGE)
    constant = math.lgamma(alpha + beta) - math.lgamma(alpha) - math.lgamma(beta)
    return np.exp(constant + (alpha - 1) * np.log(inside) + (beta - 1) * np.log1p(-inside))
