"""Differences with their 95 % intervals: over questions, over the steps of a curve, over seeds. numpy alone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from openrlhf_ebpo.eval.intervals import Estimate, of_average, of_difference
from openrlhf_ebpo.run.score_text import percent, points

from .results import Result, rates
from .runs import Run

PART, FEWEST = 10, 5  # a window is a tenth of a run, of five steps or more
LEAST_STEPS = 6  # of fewer nobody can say how noisy they are
# Student's t at 97.5 %, 1 to 9 degrees of freedom
_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)


def format_value(value: float, is_share: bool, signed: bool = False) -> str:
    """Write a share in percent, and a difference of shares in points; other rewards as they are."""
    if is_share:
        return f"{points(value)} points" if signed else f"{percent(value)} %"
    return f"{value:+.3g}".replace("-", "−") if signed else f"{value:.3g}".replace("-", "−")


@dataclass(frozen=True)
class Change:
    """A difference and the ends of its interval, fractions if `is_share`. over: what it is taken over, in words."""

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
            ends = of_difference(x, y, min(a.samples, b.samples))
            found.append(Estimate(float(y.mean() - x.mean()), *map(float, ends)))
            count += len(both)
    tasks = f" of {len(found)} tasks" if len(found) > 1 else ""
    return Change(*of_average(found), f"{count:,} question{'' if count == 1 else 's'}{tasks}") if found else None


def window(count: int) -> int:
    """Return a tenth of so many steps, not less than five, and not more than half."""
    return max(min(max(count // PART, FEWEST), count // 2), 1)


def half_width(values: np.ndarray, size: int, means: int = 2) -> float | None:
    """Return half of the 95 % interval of one mean of `size` steps of a curve, or of the difference of two; None of few
    steps.

    The noise of a step is that of successive differences, var = mean((x[t+1] − x[t])²) / 2 (von Neumann 1941): a
    trend, which moves little from step to step, adds next to nothing to it.
    """
    if len(values) < LEAST_STEPS:
        return None
    with np.errstate(all="ignore"):  # a run may hold 1e308
        variance = float((np.diff(values) ** 2).mean()) / 2
    half = t_quantile(2 * (len(values) - 1) / 3) * (means * variance / size) ** 0.5
    return half if np.isfinite(half) else None


def widening(choices: int) -> float:
    """Compute how much longer a 95 % interval is if it shall hold for the best of so many points (Bonferroni)."""
    return NormalDist().inv_cdf(1 - 0.025 / max(choices, 1)) / NormalDist().inv_cdf(0.975)


def t_quantile(degrees: float) -> float:
    """Return the 97.5 % quantile of Student's t; above nine degrees by the first terms of its expansion
    (Cornish-Fisher)."""
    if degrees < 1:
        return float("inf")
    if degrees <= len(_T):
        return float(np.interp(degrees, np.arange(1, len(_T) + 1), _T))
    z = 1.959964
    return z + (z**3 + z) / (4 * degrees) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees**2)
