"""What a figure shows, before it is drawn or written: panels of series with a value for each seed, and what they say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

import numpy as np

from openrlhf_ebpo.figures.statistics import Interval, interval

REPORTED = "reported by the authors"


class Verdict(Enum):
    AGREES = "As the paper says."
    UNSEEN = "**No difference that could be seen.**"
    DIFFERS = "**Not as the paper says.**"


@dataclass(frozen=True)
class Series:
    """A line, or the bars of one kind.

    values: (seeds, len(x)); of numbers that the authors report (1, len(x)), without an interval.
    colour: a name of COLOURS in draw.py, the same for an estimator in every figure.
    """

    label: str
    colour: str
    x: Sequence[float | str]
    values: np.ndarray
    reported: bool = False
    dashed: bool = False

    def intervals(self) -> list[Interval]:
        if len(self.values) < 2:
            return [Interval(float(value), 0.0, 0.0) for value in self.values[0]]
        return [interval(column) for column in self.values.T]


@dataclass(frozen=True)
class Panel:
    """bars: x holds names. level: a quiet horizontal line, such as no difference. powers: x is 2, 4, 8, …"""

    title: str
    x_label: str
    y_label: str
    series: Sequence[Series]
    bars: bool = False
    powers: bool = False
    level: float | None = None


@dataclass(frozen=True)
class Finding:
    """A sentence with a number. verdict: beside what the paper says; None where it does not say."""

    text: str
    verdict: Verdict | None = None


@dataclass(frozen=True)
class Content:
    panels: Sequence[Panel]
    findings: Sequence[Finding] = field(default_factory=list)


def compared(what: str, found: Interval, expected: int, unit: str = "", digits: int = 3) -> Finding:
    """A paired difference as a finding.

    Args:
        expected: the sign that the paper says, or 0 where it says nothing.
    """
    unit = f" {unit}" if unit else ""
    text = f"{what}: {found.shown(digits)}{unit} (smallest visible {found.visible:.{digits}f})"
    if not expected:
        return Finding(text)
    return Finding(text, {0: Verdict.UNSEEN, expected: Verdict.AGREES, -expected: Verdict.DIFFERS}[found.sign])
