"""Checkpoints that were asked the same questions, compared question by question."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from openrlhf_ebpo.eval.intervals import Estimate, of_average, of_difference
from openrlhf_ebpo.run.score_text import points

from .results import Column, Result, rates
from .runs import Run

GRPO = "group_norm"


@dataclass(frozen=True)
class Change:
    """Change of pass@1 between two checkpoints that were asked the same questions: the mean over tasks, as a fraction, with its paired
    95 % interval over questions."""

    difference: float
    low: float
    high: float
    questions: int
    tasks: int = 1

    @property
    def verdict(self) -> str:
        return "better" if self.low > 0 else "worse" if self.high < 0 else "open"

    @property
    def needed(self) -> float:
        """The smallest difference that these questions could have shown."""
        return self.difference - self.low if self.difference >= 0 else self.high - self.difference

    @property
    def words(self) -> str:
        """The verdict, and over what."""
        if self.verdict != "open":
            return f"{self.verdict} than chance would explain, {self.asked}"
        return f"no difference shown, {self.asked}; less than {self.least} could not be seen"

    @property
    def written(self) -> str:
        return f"{points(self.difference)} points"

    @property
    def interval(self) -> str:
        return f"95% CI {points(self.low)} to {points(self.high)}"

    @property
    def asked(self) -> str:
        """200 questions of 2 tasks"""
        asked = f"{self.questions:,} question{'s' if self.questions != 1 else ''}"
        return asked + (f" of {self.tasks} tasks" if self.tasks > 1 else "")

    @property
    def least(self) -> str:
        needed = 100 * self.needed
        return f"about {needed:.{0 if needed >= 1 else 1}f} points"


def change(pairs: Iterable[tuple[Run, Result, Run, Result]]) -> Change | None:
    """From the first of each pair to the second; one pair a task. None where no question is in both.

    Raises:
        RunError: samples cannot be read.
    """
    found, asked = [], 0
    for run_a, a, run_b, b in pairs:
        before, after = rates(run_a, a), rates(run_b, b)
        both = [key for key in before if key in after]
        if both:
            x, y = (np.array([of[key] for key in both]) for of in (before, after))
            ends = of_difference(x, y, min(a.samples, b.samples))
            found.append(Estimate(float(y.mean() - x.mean()), *map(float, ends)))
            asked += len(both)
    return Change(*of_average(found), asked, len(found)) if found else None


def ends_of(columns: Sequence[Column]) -> dict[str, tuple[Column, Column]]:
    """The first and the last column of each run."""
    ends: dict[str, tuple[Column, Column]] = {}
    for column in sorted(columns, key=lambda column: column.step):
        ends[column.run] = (ends.get(column.run, (column,))[0], column)
    return dict(sorted(ends.items(), key=lambda item: item[1][0].number))
