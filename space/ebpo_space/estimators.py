"""Every estimator of the registry on one batch, and the error of EBPO's baselines in theory.

What a batch gets comes from the code that trains (openrlhf_ebpo/estimator), without torch. A baseline that is linear in
the group's mean has an error in closed form: one entry of WEIGHTS.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.estimator.config import EstimatorConfig
from openrlhf_ebpo.estimator.contract import Batch
from openrlhf_ebpo.estimator.registry import ESTIMATORS, offline
from openrlhf_ebpo.estimator.replay import ReplayError, keeps_state, stepped
from openrlhf_ebpo.estimator.shrinkage import shrinkage_weight

LONG_HISTORY = 10**12  # rewards: beside them a batch changes nothing that can be seen
OTHERS = 63  # prompts in a batch beside the visitor's


@dataclass(frozen=True)
class Setting:
    """What EBPO knows when a group comes: prior mean μ_glob, within-group variance σ², between-group variance τ²."""

    prior_mean: float
    within: float
    between: float

    def shrinkage(self, size: int) -> float:
        return float(shrinkage_weight(self.within, self.between, size, 1.0))

    def state(self) -> dict:
        """As EBPO saves it."""
        variances = {"rewards": self.within, "group_means": self.between}
        moments = {
            name: {"count": LONG_HISTORY, "mean": self.prior_mean, "m2": variance * LONG_HISTORY}
            for name, variance in variances.items()
        }
        return {**moments, "batches": 1}


@dataclass(frozen=True)
class Given:
    """What one estimator of the registry gives to a batch. baselines, advantages: (M, G). alone: it would know more than
    this batch in a run, and does not here."""

    baselines: np.ndarray
    advantages: np.ndarray
    alone: bool = False


def given(name: str, batch: Batch, config: EstimatorConfig, saved: dict | None = None) -> Given | None:
    """What this estimator gives, from a saved state or its first one; None where only training can tell.

    Raises:
        UsageError, ReplayError: it cannot work with these settings, or with this batch.
    """
    estimator = offline(name, config)
    if estimator is None:
        return None
    state = estimator.restore(saved) if saved else estimator.initial()
    result = stepped(estimator, batch, state, "this batch")
    baselines = np.broadcast_to(result.baselines, result.advantages.shape)
    return Given(baselines, result.advantages, keeps_state(estimator) and not saved)


def under_every(
    batch: Batch, config: EstimatorConfig, saved: Mapping[str, Any] | None = None
) -> tuple[dict[str, Given], list[str]]:
    """name -> what it gives, in the registry's order; and the names of those that cannot work with this batch."""
    found, left_out = {}, []
    for name in ESTIMATORS:
        try:
            if one := given(name, batch, config, (saved or {}).get(name)):
                found[name] = one
        except (UsageError, ReplayError):
            left_out.append(name)
    return found, left_out


def binary_batch(successes: np.ndarray, size: int) -> Batch:
    """Groups with 0/1 rewards, the right answers first."""
    rewards = (np.arange(size) < np.asarray(successes)[:, None]).astype(float)
    ids = tuple(f"prompt {number}" for number in range(len(rewards)))
    return Batch.of(rewards, np.ones_like(rewards, dtype=bool), ids, (None,) * len(ids))


@dataclass(frozen=True)
class World:
    """Success rates p of prompts follow a Beta distribution with this mean and variance; a response succeeds with p."""

    mean: float
    between: float  # Var p = τ²

    @property
    def within(self) -> float:
        """E[p(1 − p)]: the true within-group variance."""
        return self.mean * (1 - self.mean) - self.between

    def __post_init__(self):
        if not (0 < self.mean < 1 and 0 < self.between < self.mean * (1 - self.mean)):
            raise ValueError("a Beta distribution needs 0 < mean < 1 and 0 < variance < mean·(1 − mean)")


def others(world: World, size: int) -> np.ndarray:
    """Right answers of OTHERS further groups: quantiles of the Beta-binomial distribution."""
    total = world.mean * (1 - world.mean) / world.between - 1
    a, b = world.mean * total, (1 - world.mean) * total

    def log_beta(x: float, y: float) -> float:
        return math.lgamma(x) + math.lgamma(y) - math.lgamma(x + y)

    logs = [math.log(math.comb(size, k)) + log_beta(k + a, size - k + b) - log_beta(a, b) for k in range(size + 1)]
    below = np.cumsum(np.exp(logs))
    return np.minimum(np.searchsorted(below, (np.arange(OTHERS) + 0.5) / OTHERS), size)


def bayes_weight(world: World, size: int) -> float:
    """The S of the posterior mean, which no baseline can beat."""
    return float(shrinkage_weight(world.within, world.between, size, 1.0))


def paper_weight(world: World, size: int) -> float:
    """S of preset `paper`: σ² is the variance of all rewards, τ² that of group means, both known exactly."""
    pooled = world.mean * (1 - world.mean)
    return float(shrinkage_weight(pooled, world.between + world.within / size, size, 1.0))


def within_raw_weight(world: World, size: int) -> float:
    """σ² within groups, τ² still that of group means."""
    return float(shrinkage_weight(world.within, world.between + world.within / size, size, 1.0))


def beta_binomial_weight(world: World, size: int) -> float:
    """S of the revision's Beta-Binomial prior, fitted by moments to group means: ν / (ν + G)."""
    spread = world.between + world.within / size
    total = world.mean * (1 - world.mean) / spread - 1
    return total / (total + size)


WEIGHTS: dict[str, Callable[[World, int], float]] = {
    "group mean (GRPO, Dr. GRPO)": lambda world, size: 0.0,
    "EBPO, as in the paper": paper_weight,
    "within σ², raw τ²": within_raw_weight,
    "Beta-Binomial (revision)": beta_binomial_weight,
    "within σ², corrected τ²": bayes_weight,
}


def error_ratio(world: World, size: int, weight: float) -> float:
    """Mean squared error of the baseline (1 − S)·μ + S·mean against p, divided by the Bayes risk."""
    noise = world.within / size
    error = (1 - weight) ** 2 * noise + weight**2 * world.between
    return error / (noise * world.between / (noise + world.between))


def error_curves(world: World, sizes: np.ndarray) -> dict[str, np.ndarray]:
    return {
        name: np.array([error_ratio(world, int(size), weight(world, int(size))) for size in sizes])
        for name, weight in WEIGHTS.items()
    }


def centred_batch(successes: np.ndarray, size: int, setting: Setting) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """One batch of groups with 0/1 rewards under EBPO: baselines (M,), and the final, standardised advantages of a right
    and of a wrong answer of each group (M,), NaN where the group has none."""
    found = given("ebpo", binary_batch(successes, size), EstimatorConfig(size), setting.state())
    right = np.where(successes > 0, found.advantages[:, 0], np.nan)
    wrong = np.where(successes < size, found.advantages[:, -1], np.nan)
    return found.baselines[:, 0], right, wrong
