"""Differences in words: with their intervals (eval/differences.py), and what they are over."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from openrlhf_ebpo.eval.differences import of_tasks
from openrlhf_ebpo.run.score_text import percent, points

from .results import Result, rates
from .runs import Run

PART, FEWEST = 10, 5  # a window is a tenth of a run, of five steps or more


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
            found.append((x, y, min(a.samples, b.samples)))
            count += len(both)
    tasks = f" of {len(found)} tasks" if len(found) > 1 else ""
    return Change(*of_tasks(found), f"{count:,} question{'' if count == 1 else 's'}{tasks}") if found else None


def window(count: int) -> int:
    """Return a tenth of so many steps, not less than five, and not more than half."""
    return max(min(max(count // PART, FEWEST), count // 2), 1)
