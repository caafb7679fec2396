"""Replay logged rollouts through the estimator that ran, or through another one."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from openrlhf_ebpo.errors import ReportedError
from openrlhf_ebpo.estimator.advantage import Estimate, EstimatorError, estimate
from openrlhf_ebpo.estimator.contract import Batch, Estimator

if TYPE_CHECKING:
    from openrlhf_ebpo.estimator.contract import PerResponse

MAX_REWARD = float(np.finfo(np.float32).max)  # training has them in float32


@dataclass(frozen=True)
class Logged:
    """One step of a run log. baselines, advantages: (M, G), what training used, NaN for a baseline that is not
    known."""

    step: int
    source: str
    batch: Batch
    baselines: PerResponse
    advantages: PerResponse


def read_logged(step: int, columns: Mapping[str, np.ndarray], size: int, source: str) -> Logged:
    """Read columns of a rollout file, one value per response, groups of `size` next to each other.

    Raises:
        ReportedError: the rows are not complete groups in order, nothing is valid, a valid response has no finite
            reward or advantage, or a response has no prompt_id, or a weight that is not a finite number from 0 on.
    """
    rows = len(columns["reward"])
    expected = np.arange(rows)
    if not rows or rows % size or np.any((columns["group"] * size + columns["sample"]) != expected):
        raise ReportedError(f"{source}: its {rows:,} rows are not groups of {size} responses, one after the other")
    by_group = {name: column.reshape(-1, size) for name, column in columns.items()}
    valid = by_group["valid"]
    for name in ("reward", "advantage"):
        if broken := int((valid & ~(np.abs(by_group[name]) <= MAX_REWARD)).sum()):
            raise ReportedError(f"{source}: {broken:,} valid responses have no finite {name}")
    for name in ("action_tokens", "score_weight"):
        if not ((by_group[name] >= 0) & (by_group[name] <= MAX_REWARD)).all():
            raise ReportedError(f"{source}: the column {name} has values that are not finite numbers from 0 on")
    if None in by_group["prompt_id"]:
        raise ReportedError(f"{source}: the column prompt_id lacks values")
    prompt_ids, clusters = (tuple(by_group[name][:, 0]) for name in ("prompt_id", "cluster"))
    weights = by_group["action_tokens"], by_group["score_weight"]
    try:
        batch = Batch.of(by_group["reward"], valid, prompt_ids, clusters, *weights)
    except ValueError as error:
        raise ReportedError(f"{source}: {error}") from error
    return Logged(step, source, batch, by_group["baseline"], by_group["advantage"])


def unknown_starts(steps: Sequence[int], starts: Collection[int]) -> list[int]:
    """Return the logged steps whose state before is not known: neither the first step of a run, nor one after another
    logged one, nor one of `starts`."""
    pairs = itertools.pairwise([0, *steps])
    return [step for previous, step in pairs if step != previous + 1 and step not in starts]


def replay(
    estimator: Estimator, steps: Iterable[Logged], starts: Mapping[int, Any]
) -> Iterator[tuple[Logged, Estimate]]:
    """Yield every step with its estimate, from the state after the step before; `starts`: step -> state before it,
    where it is another one.

    Raises:
        ReportedError: the estimator cannot work with a step; the message names its file.
    """
    state = estimator.initial()
    for each in steps:
        try:
            with np.errstate(all="ignore"):  # what is not finite in the end is an EstimatorError
                result = estimate(estimator, each.batch, starts.get(each.step, state))
        except (EstimatorError, ReportedError, ArithmeticError, LookupError, TypeError, ValueError) as error:
            raise ReportedError(f"{each.source}: {estimator.name} cannot be replayed: {error}") from error
        state = result.state
        yield each, result


@dataclass(frozen=True)
class Difference:
    """Differences between the advantages of one step, or of several, over valid responses.

    was, now: (N,) logged and replayed advantages. unequal: (N,) bool, the advantage or the (known) baseline has other
    bits.
    """

    was: np.ndarray
    now: np.ndarray
    unequal: np.ndarray

    @classmethod
    def of(cls, logged: Logged, found: Estimate) -> Difference:
        valid = logged.batch.valid
        was, now, baselines = logged.advantages[valid], found.advantages[valid], logged.baselines[valid]
        other_baseline = np.isfinite(baselines) & (baselines != np.broadcast_to(found.baselines, valid.shape)[valid])
        return cls(was, now, (was != now) | other_baseline)

    @classmethod
    def over(cls, steps: Iterable[Difference]) -> Difference:
        return cls(*map(np.concatenate, zip(*((each.was, each.now, each.unequal) for each in steps), strict=True)))

    @property
    def largest(self) -> float:
        return float(np.abs(self.now - self.was).max())

    @property
    def scale(self) -> float:
        """Return the largest logged advantage, without its sign."""
        return float(np.abs(self.was).max())
