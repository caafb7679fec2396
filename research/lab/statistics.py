"""Means with 95 % t-intervals, and the smallest difference that could have been seen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

POWER = 0.8


class Interval(NamedTuple):
    """half: of the interval's width. visible: a true difference of this size would be found, at this noise and with so
    many values, four times in five."""

    mean: float
    half: float
    visible: float

    @property
    def sign(self) -> int:
        """1 or -1 where the interval leaves 0 out, otherwise 0."""
        return int(np.sign(self.mean)) if abs(self.mean) > self.half else 0

    def text(self, digits: int = 3) -> str:
        return f"{self.mean:+.{digits}f} ± {self.half:.{digits}f}"


class Ratio(NamedTuple):
    """A geometric mean, and the ends of its interval."""

    mean: float
    low: float
    high: float


def interval(values: np.ndarray) -> Interval:
    """Of the mean of (seeds,) values; of differences, where they are paired.

    Raises:
        ValueError: fewer than two values.
    """
    from scipy import stats

    from openrlhf_ebpo.eval.differences import of_seeds

    if len(values) < 2:
        raise ValueError(f"an interval needs two values or more, and there are {len(values)}")
    mean, _, high = map(float, of_seeds(values))
    power = stats.t.ppf(POWER, len(values) - 1) * values.std(ddof=1) / len(values) ** 0.5
    return Interval(mean, high - mean, float(high - mean + power))


def ratio(pairs: Sequence[float]) -> Ratio:
    """Of the ratios of pairs of measurements, by the interval of their logarithms.

    Raises:
        ValueError: fewer than two pairs.
    """
    found = interval(np.log(pairs))
    ends = np.exp([found.mean, found.mean - found.half, found.mean + found.half])
    return Ratio(*map(float, ends))


def alternated(arms: Sequence[str], number: int) -> list[str]:
    """The arms of pair `number`: every other pair has them the other way round, so that neither is always first."""
    return list(arms) if number % 2 == 0 else list(arms)[::-1]
