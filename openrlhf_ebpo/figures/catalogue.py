"""Every figure by name: what the paper says, what is measured for it, and what it then shows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from openrlhf_ebpo.figures.content import Content
from openrlhf_ebpo.figures.jobs import Job
from openrlhf_ebpo.figures.measured import Measured


class Size(NamedTuple):
    """How much is measured. steps: of a training of the small network."""

    name: str
    seeds: int
    steps: int
    group_steps: int  # of a training in the comparison of group sizes, where a step has up to 1,024 responses


QUICK = Size("quick", 6, 150, 60)
FULL = Size("full", 20, 600, 150)
REAL_SEEDS = 3  # at most, on the real stack


@dataclass(frozen=True)
class Figure:
    """A figure of the paper, made again.

    claim: what the paper says, with its source. setting: what was run. alt: what a reader who does not see it is told.
    real: it trains on the real stack, so it is part of --full alone, with a few seeds.
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


def figures() -> dict[str, Figure]:
    from openrlhf_ebpo.figures import baseline, dynamics, ordering, prior, real_stack

    return {
        **dynamics.FIGURES,
        **prior.FIGURES,
        **ordering.FIGURES,
        **baseline.FIGURES,
        **real_stack.FIGURES,
    }
