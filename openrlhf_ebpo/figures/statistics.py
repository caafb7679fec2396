"""Means over seeds with 95 % t-intervals, and the smallest difference that could have been seen."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

CONFIDENCE, POWER = 0.95, 0.8


class Interval(NamedTuple):
    """visible: a true difference of this size would be found, at this noise and with so many seeds, four times in five."""

    mean: float
    half: float
    visible: float

    @property
    def sign(self) -> int:
        """1 or -1 where the interval leaves 0 out, otherwise 0."""
        return int(np.sign(self.mean)) if abs(self.mean) > self.half else 0

    def shown(self, digits: int = 3) -> str:
        return f"{self.mean:+.{digits}f} ± {self.half:.{digits}f}"


def interval(values: np.ndarray) -> Interval:
    """Of the mean of (seeds,) values; of differences, where they are paired.

    Raises:
        ValueError: fewer than two values.
    """
    from scipy import stats

    if len(values) < 2:
        raise ValueError("an interval needs two values or more")
    free = len(values) - 1
    error = values.std(ddof=1) / len(values) ** 0.5
    outer, inner = stats.t.ppf(0.5 + CONFIDENCE / 2, free), stats.t.ppf(POWER, free)
    return Interval(float(values.mean()), float(outer * error), float((outer + inner) * error))
