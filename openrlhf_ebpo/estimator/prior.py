"""The prior: what the policy has achieved so far, as running moments of rewards and group means.

EBPO (arXiv 2602.05165, Algorithm 1) keeps two Welford accumulators over the run, one over every
reward, one over every group mean. A rollout batch is merged at once with the parallel form of
Welford's update (Chan, Golub and LeVeque 1983), in float64. Sums are exactly rounded (`math.fsum`), so a
batch gives the same bits on every machine and the prior can be recomputed from a run's logged rewards.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, replace

import numpy as np
from numpy.typing import ArrayLike


@dataclass(frozen=True)
class Moments:
    """Count, mean and sum of squared deviations (M2) of the values seen so far; float64. The count is the sum of
    weights where values are weighted, or older ones discounted."""

    count: float = 0
    mean: float = 0.0
    m2: float = 0.0

    @classmethod
    def of(cls, values: ArrayLike, weights: ArrayLike | None = None) -> Moments:
        """Compute the moments of one batch of any shape, two passes, each sum exactly rounded. Weights are not
        negative."""
        values = np.asarray(values, dtype=np.float64).ravel()
        weights = np.ones_like(values) if weights is None else np.asarray(weights, dtype=np.float64).ravel()
        total = math.fsum(weights)
        if not total:
            return cls()
        mean = math.fsum(weights * values) / total
        count = int(total) if total.is_integer() else total  # as unweighted counts are stored
        return cls(count, mean, math.fsum(weights * (values - mean) ** 2))

    @classmethod
    def from_dict(cls, saved: dict) -> Moments:
        """Raises:
        KeyError, TypeError, ValueError: it is damaged.
        """
        moments = cls(**saved)
        for name, number in saved.items():
            if finite(number) < 0 and name != "mean":
                raise ValueError(f"{name} is {number}: counts and sums of squares are not negative")
        if not moments.count and (moments.mean or moments.m2):
            raise ValueError(f"no values have the moments {moments}")
        return moments

    def merge(self, other: Moments) -> Moments:
        """Return the moments of both sets of values together, by Chan's parallel update."""
        if not other.count:
            return self
        if not self.count:
            return other
        count = self.count + other.count
        delta = other.mean - self.mean
        mean = self.mean + delta * other.count / count
        m2 = self.m2 + other.m2 + delta * delta * self.count * other.count / count
        return Moments(count, mean, m2)

    def discounted(self, factor: float) -> Moments:
        """Return the moments of the same values, each counting `factor` times as much."""
        if factor == 1:
            return self
        return Moments(self.count * factor, self.mean, self.m2 * factor) if self.count * factor else Moments()

    @property
    def variance(self) -> float:
        """Compute the population variance (divisor n), as the released code has it; 0 before any value."""
        return self.m2 / (self.count + (self.count == 0))


@dataclass(frozen=True)
class Prior:
    """Moments of the groups seen so far: immutable, `merge` returns the next one.

    `rewards` holds every valid reward r[m,i]: its mean is μ_glob, its variance σ², pooled. `group_means` holds every
    group mean μ_m: its variance is τ², raw. `batches` is the number of rollout batches that entered. `within` holds the
    unbiased variance s²_m inside every group: its mean is σ², within. `inverse_sizes` holds every 1/G_m, `spread` the
    unbiased variance of group means in every batch. The last three stay empty under a variant that reads none.
    """

    rewards: Moments = field(default_factory=Moments)
    group_means: Moments = field(default_factory=Moments)
    batches: int = 0
    within: Moments = field(default_factory=Moments)
    inverse_sizes: Moments = field(default_factory=Moments)
    spread: Moments = field(default_factory=Moments)

    @classmethod
    def of(
        cls,
        rewards: ArrayLike,
        group_means: ArrayLike,
        reward_weights: ArrayLike | None = None,
        group_weights: ArrayLike | None = None,
    ) -> Prior:
        """Return the prior of one batch alone."""
        return cls(Moments.of(rewards, reward_weights), Moments.of(group_means, group_weights), batches=1)

    def merge(self, batch: Prior) -> Prior:
        """Apply Algorithm 1, line "update moments", for a rollout batch."""
        moments = {name: getattr(self, name).merge(getattr(batch, name)) for name in MOMENTS}
        return Prior(**moments, batches=self.batches + batch.batches)

    def discounted(self, factor: float) -> Prior:
        """Return a prior in which every group counts `factor` times as much."""
        moments = {name: getattr(self, name).discounted(factor) for name in MOMENTS}
        return replace(self, **moments)

    @property
    def empty(self) -> bool:
        return not self.batches

    @property
    def corrected_between_variance(self) -> float:
        """Compute τ² without the noise of the means (method of moments)."""
        return np.maximum(self.group_means.variance - self.within.mean * self.inverse_sizes.mean, 0.0)

    def to_dict(self) -> dict:
        """Return the fields to store, without those that the variant leaves empty."""
        return {
            key: value for key, value in asdict(self).items() if key in ALWAYS_STORED or getattr(self, key) != Moments()
        }

    @classmethod
    def from_dict(cls, saved: dict) -> Prior:
        """Raises:
        KeyError, TypeError, ValueError: it is damaged.
        """
        batches = saved["batches"]
        if type(batches) is not int or batches < 0:
            raise ValueError(f"batches is {batches!r}: it is an integer from 0 on")
        names = [name for name in MOMENTS if name in saved or name in ALWAYS_STORED]
        return cls(**{name: Moments.from_dict(saved[name]) for name in names}, batches=batches)


MOMENTS = ("rewards", "group_means", "within", "inverse_sizes", "spread")
ALWAYS_STORED = {"rewards", "group_means", "batches"}


def finite(number: float) -> float:
    """Return the number, checked.

    Raises:
        TypeError, ValueError: it is not a number, or not finite.
    """
    if isinstance(number, (str, bool)) or not math.isfinite(number):
        raise ValueError(f"{number!r} is not a finite number")
    return number
