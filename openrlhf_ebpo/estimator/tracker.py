"""Discounted counts of each prompt's passes and failures in earlier batches.

The state of per-prompt estimators. A prompt is known by its id (Batch.prompt_ids). Beyond MAX_PROMPTS those that were
not drawn for the longest time are forgotten.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from openrlhf_ebpo.estimator.contract import Batch, Estimator
from openrlhf_ebpo.estimator.groups import successes
from openrlhf_ebpo.estimator.prior import MAX_COUNT

if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_PROMPTS = 100_000
Counts = tuple[float, float]  # passes, failures


@dataclass(frozen=True)
class Tracker:
    """Immutable. counts: by prompt id, the one drawn longest ago first."""

    counts: dict[str, Counts] = field(default_factory=dict)

    def with_counts(self, latest: Iterable[tuple[str, Counts]]) -> Tracker:
        """A new one with these; the prompts given become the latest drawn."""
        counts = self.counts.copy()  # unlike dict(...), it is fast also where keys were taken out
        for prompt_id, pair in latest:
            counts.pop(prompt_id, None)
            counts[prompt_id] = pair
        for oldest in list(itertools.islice(counts, max(len(counts) - MAX_PROMPTS, 0))):
            del counts[oldest]
        return Tracker(counts)

    def as_dict(self) -> dict:
        """For JSON: one line a prompt, "id passes failures", in order."""
        return {"prompts": [f"{name} {passes!r} {failures!r}" for name, (passes, failures) in self.counts.items()]}

    @classmethod
    def from_dict(cls, saved: dict) -> Tracker:
        """Restore exactly what `as_dict` gave.

        Raises:
            ValueError: it is damaged.
        """
        if saved.keys() != {"prompts"} or not isinstance(saved["prompts"], list):
            raise ValueError(f"it has {sorted(saved)}, a tracker has a list of prompts")
        found = dict(map(_parsed, saved["prompts"]))
        if len(found) != len(saved["prompts"]):
            raise ValueError("a prompt is in it twice")
        return cls().with_counts(found.items())


def _parsed(line: str) -> tuple[str, Counts]:
    if not isinstance(line, str) or line.count(" ") < 2:
        raise ValueError(f"{line!r} is not a prompt's id, passes and failures")
    name, *numbers = line.rsplit(" ", 2)
    passes, failures = map(float, numbers)
    if not (min(passes, failures) >= 0 < passes + failures <= MAX_COUNT):
        raise ValueError(f"prompts: {line!r} has no counts of 0 to {MAX_COUNT:g}, one of them above 0")
    return name, (passes, failures)


def visit(
    tracker: Tracker,
    prompt_ids: tuple[str, ...],
    passes: np.ndarray,
    failures: np.ndarray,
    keep: float,
    start: Counts,
) -> tuple[np.ndarray, np.ndarray, Tracker]:
    """One batch: of each prompt that has a response, the counts so far are discounted once, and those of the batch added.

    Groups of the same prompt are one visit, for they are the same policy's. Without ids each group counts as another prompt, and
    nothing is kept.

    Args:
        passes, failures: (M,), of a group's valid responses.
        keep: what is left of older counts, from 0 to 1.
        start: the counts of a prompt that was never seen.

    Returns:
        Counts before and after the batch, each (M, 2), and the tracker after it.
    """
    places: dict[object, int] = {}
    rows = np.array([places.setdefault(name, len(places)) for name in prompt_ids or range(len(passes))])
    before = np.array([tracker.counts.get(name, start) for name in places])
    seen = np.stack([np.bincount(rows, passes), np.bincount(rows, failures)], axis=-1)
    visited = seen.any(-1, keepdims=True)
    after = np.where(visited, keep * before + seen, before)
    if prompt_ids:
        drawn = itertools.compress(zip(places, map(tuple, after.tolist()), strict=True), visited)
        tracker = tracker.with_counts(drawn)
    return before[rows], after[rows], tracker


class TrackerEstimator(Estimator):
    """Base of those whose state is a Tracker.

    keep: what is left of older counts when a prompt is drawn again. start: the counts of a prompt that was never seen.
    """

    keep: float
    start: Counts

    def initial(self) -> Tracker:
        return Tracker()

    def rates(self, batch: Batch, state: Tracker) -> tuple[np.ndarray, np.ndarray, Tracker]:
        """Success rates of the groups' prompts before and after this batch, each (M, 1), and the tracker after it."""
        passes = successes(batch, self.config).sum(-1)
        counts = visit(state, batch.prompt_ids, passes, batch.valid.sum(-1) - passes, self.keep, self.start)
        before, after = ((pairs[:, 0] / pairs.sum(-1))[:, None] for pairs in counts[:2])
        return before, after, counts[2]

    def save(self, state: Tracker) -> dict:
        return state.as_dict()

    def restore(self, saved: dict) -> Tracker:
        return Tracker.from_dict(saved)
