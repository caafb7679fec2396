"""Differences as text: with their intervals (eval/differences.py), and what they are over."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from openrlhf_ebpo.eval.differences import of_proportions, of_tasks, spread
from openrlhf_ebpo.run.score_text import percent, points

from .results import Result, rates
from .runs import Run

SHORT, PEAK, MAX_LAST = 20, 3, 3  # steps
PART, FEWEST = 10, 5  # a window is a tenth of a run, of five steps or more


def format_value(value: float, is_share: bool, signed: bool = False) -> str:
    """Write a share in percent, and a difference of shares in points; other rewards as they are."""
    if is_share:
        return f"{points(value)} points" if signed else f"{percent(value)} %"
    return f"{value:+.3g}".replace("-", "−") if signed else f"{value:.3g}".replace("-", "−")


@dataclass(frozen=True)
class Change:
    """A difference and the ends of its interval, fractions if `is_share`. over: what it is taken over, as text."""

    difference: float
    low: float
    high: float
    over: str
    is_share: bool = True
    kind: str = "95% CI"

    @property
    def verdict(self) -> str:
        return "better" if self.low > 0 else "worse" if self.high < 0 else "open"

    @property
    def text(self) -> str:
        return format_value(self.difference, self.is_share, signed=True)

    @property
    def interval(self) -> str:
        low, high = (
            format_value(end, self.is_share, signed=True).removesuffix(" points") for end in (self.low, self.high)
        )
        return f"{self.kind} {low} to {high}"

    @property
    def least(self) -> str:
        """The smallest difference that could have been seen."""
        needed = self.difference - self.low if self.difference >= 0 else self.high - self.difference
        if not self.is_share:
            return f"about {needed:.2g}"
        return f"about {100 * needed:.{0 if needed >= 0.01 else 1}f} points"

    @property
    def sentence(self) -> str:
        if self.verdict != "open":
            return f"{self.verdict} by more than chance would explain, over {self.over}"
        return f"no difference shown over {self.over}; less than {self.least} could not be seen"


def over_questions(pairs: Iterable[tuple[Run, Result, Run, Result]]) -> Change | None:
    """Compare pass@1 from the first of each pair to the second, paired by question; one pair a task. None where no
    question is in both.

    Raises:
        RunError: samples cannot be read.
    """
    found, count = [], 0
    for run_a, a, run_b, b in pairs:
        before, after = rates(run_a, a), rates(run_b, b)
        both = [key for key in before if key in after]
        if both:
            x, y = (np.array([of[key] for key in both]) for of in (before, after))
            found.append((x, y, min(a.samples, b.samples)))
            count += len(both)
    tasks = f" of {len(found)} tasks" if len(found) > 1 else ""
    return Change(*of_tasks(found), f"{count:,} question{'' if count == 1 else 's'}{tasks}") if found else None


def over_seeds(differences: np.ndarray, is_share: bool = True) -> Change:
    """Average the (n,) differences of two runs of one seed each, n of 2 or more."""
    kind, paired = ("range", "") if len(differences) == 2 else ("95% CI", ", paired by seed")
    low, high = map(float, spread(differences))
    return Change(float(differences.mean()), low, high, f"{len(differences)} seeds{paired}", is_share, kind)


class Fall(NamedTuple):
    """From the mean of the steps start to start + PEAK, as positions, to the mean of the last ones."""

    start: int
    peak: float
    end: float
    low: float
    high: float


def sudden_fall(values: np.ndarray, draws: np.ndarray) -> Fall | None:
    """Find the best steps from which the last ones, one to MAX_LAST, fell by more than chance explains; by a test of
    two proportions, since one jump in few steps is most of the noise that `of_steps` sees. None for longer curves.

    Args:
        values: (N,) shares, one a step.
        draws: (N,) independent answers in each.
    """
    count, falls = len(values), []
    if count >= SHORT or not (draws > 0).all():
        return None
    for last in range(1, min(MAX_LAST, count - PEAK) + 1):
        weights = np.convolve(draws[:-last], np.ones(PEAK), "valid")
        peaks = np.convolve((values * draws)[:-last], np.ones(PEAK), "valid") / weights
        start, end = int(peaks.argmax()), float(np.average(values[-last:], weights=draws[-last:]))
        peak = float(peaks[start])
        found = of_proportions(peak, weights[start], end, draws[-last:].sum(), MAX_LAST * count)
        falls.append(Fall(start, peak, end, found.low, found.high))
    found = min(falls, key=lambda fall: fall.high, default=None)
    return found if found and found.high < 0 else None


def window(count: int) -> int:
    """Return a tenth of so many steps, not less than five, and not more than half."""
    return max(min(max(count // PART, FEWEST), count // 2), 1)
