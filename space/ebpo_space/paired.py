"""Checkpoints that were asked the same questions, compared question by question."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from openrlhf_ebpo.eval.intervals import Estimate, of_average, of_difference
from openrlhf_ebpo.run.score_text import points

from .errors import RunError
from .results import Column, Result, rates
from .runs import Run
from .workspace import Opened

GRPO = "group_norm"


@dataclass(frozen=True)
class Change:
    """Of pass@1 between two checkpoints that were asked the same questions: the mean over tasks, as a fraction, with its paired
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
        found = f"{self.written}, {self.interval}"
        if self.verdict != "open":
            return f"{self.verdict} than chance would explain: {found}, {self.asked}"
        return f"no difference shown: {found}, {self.asked}; less than {self.least} could not be seen"

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
        return f"about {100 * self.needed:.0f} points"


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


@dataclass(frozen=True)
class Compare:
    by: dict[tuple[str, int, str], Result]
    runs: dict[str, Opened]
    problems: list[str]

    def change(self, first: Column, last: Column, tasks: Iterable[str]) -> Change | None:
        """Over the tasks that both have."""
        pairs = [(self.by.get((first.run, first.step, t)), self.by.get((last.run, last.step, t))) for t in tasks]
        before, after = self.runs[first.run].run, self.runs[last.run].run
        try:
            return change((before, a, after, b) for a, b in pairs if a and b)
        except RunError as error:
            self.problems.append(f"{first.run}: {error}")
            return None

    def against(self, ends: dict, tasks: Sequence[str]) -> list[tuple[Column, Column, Change]]:
        """The last columns of the runs against GRPO's where it is among them, else the first run's."""
        lasts = [last for _, last in ends.values()]
        if len(lasts) < 2:
            return []
        base = next((last for last in lasts if self.runs[last.run].estimator == GRPO), lasts[0])
        found = [(base, last, self.change(base, last, tasks)) for last in lasts if last is not base]
        return [each for each in found if each[2]]


def ends_of(columns: Sequence[Column]) -> dict[str, tuple[Column, Column]]:
    """The first and the last column of each run."""
    ends: dict[str, tuple[Column, Column]] = {}
    for column in sorted(columns, key=lambda column: column.step):
        ends[column.run] = (ends.get(column.run, (column,))[0], column)
    return dict(sorted(ends.items(), key=lambda item: item[1][0].number))
