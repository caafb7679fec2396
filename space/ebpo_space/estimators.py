"""Every estimator of the registry on one batch. What it gets comes from the code that trains (openrlhf_ebpo/estimator), without torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
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
