"""The paper's figures by name: its claim, the measurements, and the panels and findings made of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from lab.measured import Job, Measured
from lab.plots import Panel
from lab.statistics import Interval

REPORTED = "reported by the authors"


class Verdict(Enum):
    AGREES = "As the paper says."
    UNSEEN = "**No difference that could be seen.**"
    DIFFERS = "**Not as the paper says.**"


@dataclass(frozen=True)
class Finding:
    """A sentence with a number. verdict: compared with the paper's claim; None where it does not say."""

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
    text = f"{what}: {found.text(digits)}{unit} (smallest visible {found.visible:.{digits}f})"
    if not expected:
        return Finding(text)
    return Finding(text, {0: Verdict.UNSEEN, expected: Verdict.AGREES, -expected: Verdict.DIFFERS}[found.sign])


class Size(NamedTuple):
    """The amount that is measured. steps: of a training of the small network."""

    name: str
    seeds: int
    steps: int
    group_steps: int  # of a training in the comparison of group sizes, where a step has up to 1,024 responses


QUICK = Size("quick", 6, 150, 60)
FULL = Size("full", 20, 600, 150)
REAL_SEEDS = 3  # at most, in OpenRLHF


@dataclass(frozen=True)
class Figure:
    """A figure of the paper, made again.

    claim: what the paper says, with its source. setting: what was run. alt: what a reader who does not see it is told.
    real: it trains in OpenRLHF, so it is part of --full alone, with a few seeds.
    """

    title: str
    claim: str
    setting: str
    alt: str
    jobs: Callable[[Size], Sequence[Job]]
    content: Callable[[Measured, Size], Content]
    real: bool = False

    def fewer(self, size: Size) -> Size:
        """Its own number of seeds."""
        return size._replace(seeds=min(size.seeds, REAL_SEEDS)) if self.real else size
