"""Two arms measured in turns: the geometric mean of the pairs' ratios, with Student's interval over the pairs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Ratio(NamedTuple):
    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:.3f}, 95 % interval {self.low:.3f} to {self.high:.3f}"


def ratio(pairs: Sequence[float]) -> Ratio:
    """Of the ratios of two pairs or more.

    Raises:
        ValueError: there are fewer, which have no interval.
    """
    if len(pairs) < 2:
        raise ValueError(f"an interval takes two pairs or more, and there are {len(pairs)}")
    from scipy import stats

    logs = np.log(pairs)
    mean, margin = np.mean(logs), stats.t.ppf(0.975, len(logs) - 1) * stats.sem(logs)
    return Ratio(*(float(value) for value in np.exp([mean, mean - margin, mean + margin])))


def order(arms: Sequence[str], number: int) -> list[str]:
    """The arms of a pair; every other pair has them the other way round, so that neither is always first."""
    return list(arms) if number % 2 == 0 else list(arms)[::-1]
