"""The prior: what the policy has achieved so far, as running moments of rewards and group means.

EBPO (arXiv 2602.05165, Algorithm 1) keeps two Welford accumulators over the whole run, one over every
reward, one over every group mean. A rollout batch is merged at once with the parallel form of
Welford's update (Chan, Golub and LeVeque 1983), in float64. Sums are exactly rounded (`math.fsum`), so a
batch gives the same bits on every machine and the prior can be recomputed from a run's logged rewards.
"""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import ArrayLike


@dataclass(frozen=True)
class Moments:
    """Count, mean and sum of squared deviations (M2) of the values seen so far; float64."""

    count: int = 0
    mean: float = 0.0
    m2: float = 0.0

    @classmethod
    def of(cls, values: ArrayLike) -> Moments:
        """Moments of one batch of any shape, two passes, each sum exactly rounded."""
        values = np.asarray(values, dtype=np.float64).ravel()
        if not values.size:
            return cls()
        mean = math.fsum(values) / values.size
        return cls(values.size, mean, math.fsum((values - mean) ** 2))

    def merge(self, other: Moments) -> Moments:
        """Chan's parallel update: the moments of both sets of values together."""
        if not other.count:
            return self
        if not self.count:
            return other
        count = self.count + other.count
        delta = other.mean - self.mean
        mean = self.mean + delta * other.count / count
        m2 = self.m2 + other.m2 + delta * delta * self.count * other.count / count
        return Moments(count, mean, m2)

    @property
    def variance(self) -> float:
        """Population variance (divisor n), as the released code has it; 0 before any value."""
        return self.m2 / self.count if self.count else 0.0


@dataclass(frozen=True)
class Prior:
    """Immutable state of the estimator; `update` returns the next one.

    `rewards` holds every valid reward r[m,i], `group_means` every group mean μ_m, `batches` the number of
    rollout batches that entered.
    """

    rewards: Moments = field(default_factory=Moments)
    group_means: Moments = field(default_factory=Moments)
    batches: int = 0

    def update(self, rewards: ArrayLike, group_means: ArrayLike) -> Prior:
        """Merge one trained rollout batch (Algorithm 1, line "update moments")."""
        return replace(
            self,
            rewards=self.rewards.merge(Moments.of(rewards)),
            group_means=self.group_means.merge(Moments.of(group_means)),
            batches=self.batches + 1,
        )

    @property
    def mean(self) -> float:
        """μ_glob, the mean of all rewards so far."""
        return self.rewards.mean

    @property
    def within_variance(self) -> float:
        """σ², pooled: the variance of all rewards so far."""
        return self.rewards.variance

    @property
    def between_variance(self) -> float:
        """τ², raw: the variance of all group means so far."""
        return self.group_means.variance

    @classmethod
    def from_dict(cls, saved: dict) -> Prior:
        """Restore exactly what `dataclasses.asdict` gave.

        Raises:
            KeyError, TypeError, ValueError: it is damaged.
        """
        if saved.keys() != {"rewards", "group_means", "batches"}:
            raise ValueError(f"it has {sorted(saved)}")
        return cls(_moments(saved["rewards"]), _moments(saved["group_means"]), _count(saved["batches"]))


def _moments(saved: dict) -> Moments:
    moments = Moments(**saved)
    _count(moments.count)
    for number in (moments.mean, moments.m2):
        if isinstance(number, (str, bool)) or not math.isfinite(number):
            raise ValueError(f"{number!r} is no finite number")
    if moments.m2 < 0 or (not moments.count and (moments.mean or moments.m2)):
        raise ValueError(f"no values have the moments {moments}")
    return moments


def _count(number: int) -> int:
    if isinstance(number, bool) or operator.index(number) < 0:
        raise ValueError(f"{number!r} is no count")
    return number
