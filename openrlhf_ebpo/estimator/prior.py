"""The prior: what the policy has achieved so far, as running moments of rewards and group means.

EBPO (arXiv 2602.05165, Algorithm 1) keeps two Welford accumulators over the whole run, one over every
reward, one over every group mean. A rollout batch is merged at once with the parallel form of
Welford's update (Chan, Golub and LeVeque 1983), in float64. Sums are exactly rounded (`math.fsum`), so a
batch gives the same bits on every machine and the prior can be recomputed from a run's logged rewards.
"""

from __future__ import annotations

import json
import math
import operator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from openrlhf_ebpo.errors import ReportedError

SCHEMA = 1


class PriorMismatch(ReportedError, ValueError):
    """A stored prior that cannot serve this run; the message names the difference and the way out."""


@dataclass(frozen=True)
class Moments:
    """Count, mean and sum of squared deviations (M2) of the values seen so far; float64."""

    count: int = 0
    mean: float = 0.0
    m2: float = 0.0

    @classmethod
    def of(cls, values: ArrayLike) -> Moments:
        """Moments of one batch of any shape, two passes, each sum exactly rounded."""
        values = np.asarray(values, dtype=np.float64).ravel()
        if not values.size:
            return cls()
        mean = math.fsum(values) / values.size
        return cls(values.size, mean, math.fsum((values - mean) ** 2))

    def merge(self, other: Moments) -> Moments:
        """Chan's parallel update: the moments of both sets of values together."""
        if not other.count:
            return self
        if not self.count:
            return other
        count = self.count + other.count
        delta = other.mean - self.mean
        mean = self.mean + delta * other.count / count
        m2 = self.m2 + other.m2 + delta * delta * self.count * other.count / count
        return Moments(count, mean, m2)

    @property
    def variance(self) -> float:
        """Population variance (divisor n), as the released code has it; 0 before any value."""
        return self.m2 / self.count if self.count else 0.0


@dataclass(frozen=True)
class Prior:
    """Immutable state of the estimator; `update` returns the next one.

    `rewards` holds every valid reward r[m,i], `group_means` every group mean μ_m, `batches` the number of
    rollout batches that entered.
    """

    rewards: Moments = field(default_factory=Moments)
    group_means: Moments = field(default_factory=Moments)
    batches: int = 0

    def update(self, rewards: ArrayLike, group_means: ArrayLike) -> Prior:
        """Merge one trained rollout batch (Algorithm 1, line "update moments")."""
        return replace(
            self,
            rewards=self.rewards.merge(Moments.of(rewards)),
            group_means=self.group_means.merge(Moments.of(group_means)),
            batches=self.batches + 1,
        )

    @property
    def mean(self) -> float:
        """μ_glob, the mean of all rewards so far."""
        return self.rewards.mean

    @property
    def within_variance(self) -> float:
        """σ², pooled: the variance of all rewards so far."""
        return self.rewards.variance

    @property
    def between_variance(self) -> float:
        """τ², raw: the variance of all group means so far."""
        return self.group_means.variance

    def state_dict(self, identity: dict) -> dict:
        """Plain, versioned state. `identity` (see `EBPOConfig.identity`) says which estimator it belongs to."""
        return {"schema": SCHEMA, "identity": identity, **asdict(self)}

    @classmethod
    def from_state_dict(cls, state: dict, identity: dict, source: str = "the stored prior") -> Prior:
        """Restore exactly what `state_dict` gave.

        Raises:
            PriorMismatch: another schema, or an identity (estimator, variant, G, fail and pass reward) that
                differs from this run's.
        """
        if not isinstance(state, dict) or state.get("schema") != SCHEMA:
            found = state.get("schema") if isinstance(state, dict) else type(state).__name__
            raise PriorMismatch(f"{source}: prior schema {found!r}, this version reads {SCHEMA}. {WAY_OUT}")
        stored = state.get("identity")
        if not isinstance(stored, dict):
            raise PriorMismatch(f"{source} is damaged: it does not say which estimator it belongs to. {WAY_OUT}")
        different = [k for k in sorted({*stored, *identity}) if stored.get(k) != identity.get(k)]
        if different:
            detail = "; ".join(f"{k} was {stored.get(k)!r} and is now {identity.get(k)!r}" for k in different)
            raise PriorMismatch(f"{source} belongs to another estimator: {detail}. {WAY_OUT}")
        try:
            moments = [_moments(state[name]) for name in ("rewards", "group_means")]
            return cls(*moments, operator.index(state["batches"]))
        except (KeyError, TypeError, ValueError) as error:
            raise PriorMismatch(f"{source} is damaged ({error!r}). {WAY_OUT}") from error


def _moments(state: dict) -> Moments:
    moments = Moments(**state)
    operator.index(moments.count)
    for number in (moments.mean, moments.m2):
        if isinstance(number, str) or not math.isfinite(number):
            raise ValueError(f"{number!r} is no finite number")
    return moments


WAY_OUT = (
    "Run with the old settings, or leave the stored prior out with --algo.advantage.ebpo.reset_prior "
    "(alone: start afresh; with --algo.advantage.ebpo.init_prior PATH: start from that prior.json)."
)


def read_prior(path: str | Path, identity: dict) -> Prior:
    """The prior in a prior.json.

    Raises:
        PriorMismatch: the file is missing, is not JSON, or does not fit `identity`.
    """
    try:
        state = json.loads(Path(path).read_text())
    except FileNotFoundError as error:
        raise PriorMismatch(f"{path}: no such prior file. {WAY_OUT}") from error
    except (OSError, ValueError) as error:
        raise PriorMismatch(f"{path} cannot be read as a prior ({error}). {WAY_OUT}") from error
    return Prior.from_state_dict(state, identity, source=str(path))
