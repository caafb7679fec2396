"""The variance of the policy gradient under a baseline, from two numbers: the success rate p and the ratio of squared
score norms

    κ = E[‖s‖² | fail] / E[‖s‖² | pass],    s = ∇ log π(y).

Premises: responses are independent, E[s] = 0 (on-policy), rewards are 1 or 0, p is known, λ is fixed, and ‖∇p‖² is
small against p·E[‖s‖² | pass]. All variances are in units of that without a baseline, p·E[‖s‖² | pass] averaged over
prompts. docs/estimator.md derives them.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

Rates: TypeAlias = np.ndarray | float  # the success rate of each prompt, or of all


def variance(rates: Rates, kappa: float, shrinkage: float, group: int, target: float | None = None) -> float:
    """With the baseline (1 − λ)·(mean of the G − 1 others) + λ·target.

    Args:
        shrinkage: λ, from 0 (leave-one-out) to 1 (a constant).
        target: what it shrinks to; the prompt's own success rate if it is not given.
    """
    p = np.asarray(rates, float)
    mean = (1 - shrinkage) * p + shrinkage * (p if target is None else target)
    noise = (1 - shrinkage) ** 2 * p * (1 - p) / (group - 1) if shrinkage < 1 else 0.0
    return with_baseline(p, kappa, mean, noise)


def with_baseline(rates: Rates, kappa: float, mean: Rates, noise: Rates = 0.0) -> float:
    """With a baseline of this mean and variance for each prompt, which the response itself does not enter."""
    p, b = np.asarray(rates, float), np.asarray(mean, float)
    passes, failures = p * ((1 - b) ** 2 + noise), (1 - p) * kappa * (b**2 + noise)
    return float((passes + failures).mean() / p.mean())


def of_a_group(variance: float, shared: float, gradient: float, shrinkage: float, group: int) -> float:
    """The variance of the mean over a group of G responses, which share their prompt's own gradient; the premise that
    ‖∇p‖² is small is not needed.

    Args:
        variance: E‖(r − b)s‖² of a response, as `variance` gives it.
        shared: the mean over prompts of ‖∇p_m‖², in the same units.
        gradient: ‖∇p‖² of all prompts together, likewise.
    """
    between = shared * (1 + ((1 - shrinkage) / (group - 1)) ** 2)
    return (variance - gradient) / group + (group - 1) / group * (between - gradient)


def best_constant(rates: Rates, kappa: float) -> float:
    """E[r‖s‖²] / E[‖s‖²]: the constant baseline of least variance (Weaver and Tao 2001)."""
    p = float(np.mean(rates))
    return p / (p + (1 - p) * kappa)


def threshold(p: float) -> float:
    """No baseline has less variance than the true success rate exactly where κ is larger than this."""
    return (2 - p) / (1 - p)


def leave_one_out_shrinkage(shrinkage: float, group: int) -> float:
    """The λ towards the target that EBPO's S is, whose group mean contains the response itself."""
    return shrinkage * group / (group - 1 + shrinkage)
