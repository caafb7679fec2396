"""Histories: how much of the past the prior remembers, fixed or adaptive.

A history is a state, an `update` of it by a batch, and what it `read`s from it: the `Prior` that the other parts use.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from openrlhf_ebpo.estimator.prior import MOMENTS, Moments, Prior, finite
from openrlhf_ebpo.estimator.shrinkage import DEGENERATE

if TYPE_CHECKING:
    from openrlhf_ebpo.estimator.config import EstimatorConfig
    from openrlhf_ebpo.estimator.groups import Groups

HALF_LIVES = (1, 2, 4, 8, 16, 32, 64, 128, math.inf)  # of the adaptive history, in rollout batches
SLOWER = 2  # places in HALF_LIVES: variances are remembered four times as long as means
FORGETTING_OF_WEIGHTS = 0.99  # α of Raftery et al. 2010
LEAST_SPREAD = 1e-4  # of p(1 − p): τ² stays this far from 0 and from p(1 − p) in a likelihood


@dataclass(frozen=True)
class Mixture:
    """One prior for each of HALF_LIVES, and the logarithm of each one's weight, the largest 0."""

    priors: tuple[Prior, ...] = (Prior(),) * len(HALF_LIVES)
    log_weights: tuple[float, ...] = (0.0,) * len(HALF_LIVES)

    @property
    def weights(self) -> np.ndarray:
        weights = np.exp(self.log_weights)
        return weights / weights.sum()

    @property
    def members(self) -> list[Prior]:
        """Return a prior for each half-life: its own means, and variances of one that remembers four times as long.
        Variances are harder to estimate and change more slowly; taken about each batch's own mean, they do not grow
        with its drift."""
        slower, found = self.priors[SLOWER:] + self.priors[-1:] * SLOWER, []
        for prior, other in zip(self.priors, slower, strict=True):
            means, spread = prior.group_means, other.spread  # no spread in batches of one group
            between = spread.mean if spread.count else other.group_means.variance
            moments = Moments(means.count, means.mean, means.count * between)
            found.append(replace(prior, group_means=moments, within=other.within, inverse_sizes=other.inverse_sizes))
        return found

    @property
    def prior(self) -> Prior:
        """Return the weighted mixture: its variances hold how far the means of its members lie apart, too."""
        members, weights = self.members, self.weights
        moments = {name: mixture([getattr(each, name) for each in members], weights) for name in MOMENTS}
        return replace(self.priors[-1], **moments)

    @property
    def half_life(self) -> float:
        """Return the posterior mean, in rollout batches; what never forgets has the age of the run."""
        return float(self.weights @ np.minimum(HALF_LIVES, self.priors[-1].batches))

    def to_dict(self) -> dict:
        return {"priors": [prior.to_dict() for prior in self.priors], "log_weights": list(self.log_weights)}

    @classmethod
    def from_dict(cls, saved: dict) -> Mixture:
        """Raises:
        KeyError, TypeError, ValueError: it is damaged, or of another grid of half-lives.
        """
        priors = tuple(Prior.from_dict(each) for each in saved["priors"])
        log_weights = tuple(map(finite, saved["log_weights"]))
        if not len(priors) == len(log_weights) == len(HALF_LIVES):
            raise ValueError(f"an adaptive history has {len(HALF_LIVES)} priors and log_weights")
        return cls(priors, log_weights)


def update_mixture(before: Mixture, batch: Prior, groups: Groups, config: EstimatorConfig) -> Mixture:
    """Apply dynamic model averaging (Raftery, Kárný and Ettler 2010): each half-life is weighed by how well its prior
    predicted the batches so far, w_h ∝ w_h^0.99 · p(batch | prior_h), before the batch enters it."""
    log_weights = FORGETTING_OF_WEIGHTS * np.array(before.log_weights)
    if not before.priors[-1].empty:
        log_weights = log_weights + log_likelihoods(before.members, groups, config)
    priors = tuple(prior.discounted(factor).merge(batch) for prior, factor in zip(before.priors, FACTORS, strict=True))
    return Mixture(priors, tuple((log_weights - log_weights.max()).tolist()))


FACTORS = tuple(0.5 ** (1 / half_life) for half_life in HALF_LIVES)


def mixture(members: Sequence[Moments], weights: np.ndarray) -> Moments:
    """Compute the moments of a value that comes from each member with this probability; the count is the mean one."""
    counts, means, variances = (
        np.array([getattr(each, key) for each in members]) for key in ("count", "mean", "variance")
    )
    count, mean = float(weights @ counts), float(weights @ means)
    if not count:
        return Moments()
    return Moments(count, mean, count * float(weights @ (variances + (means - mean) ** 2)))


def log_likelihoods(priors: Sequence[Prior], groups: Groups, config: EstimatorConfig) -> np.ndarray:
    """Compute log p(this batch | each prior), up to a constant: Beta-Binomial where rewards are binary and weigh the
    same, else normal in the group means."""
    alive = groups.alive[:, 0]
    means, sizes = groups.means[alive, 0], groups.sizes[alive, 0]
    if not groups.weighted and groups.are_binary(config):
        rates = (means - config.fail_reward) / config.reward_range
        successes = np.rint(rates * sizes).astype(int)
        return beta_binomial_logs(priors, successes, sizes.astype(int) - successes, config).sum(-1)
    centre = np.array([[prior.group_means.mean] for prior in priors])
    between = np.array([[prior.corrected_between_variance] for prior in priors])
    within = np.array([[prior.within.mean] for prior in priors])
    variance = np.maximum(between + within / sizes, DEGENERATE * config.reward_range**2)
    return (-0.5 * (np.log(variance) + (means - centre) ** 2 / variance)).sum(-1)


def beta_binomial_logs(
    priors: Sequence[Prior], successes: np.ndarray, failures: np.ndarray, config: EstimatorConfig
) -> np.ndarray:
    """Compute log p(successes, failures) of every group under every prior, (H, M), without the binomial coefficient. α
    and β of a prior are estimated by the method of moments; half a success and half a failure are added, so that a
    history without a success does not rule one out."""
    counts = np.array([prior.group_means.count for prior in priors])
    rates = (np.array([prior.group_means.mean for prior in priors]) - config.fail_reward) / config.reward_range
    rates = np.clip((counts * rates + 0.5) / (counts + 1), LEAST_SPREAD, 1 - LEAST_SPREAD)
    most = rates * (1 - rates)
    spread = np.array([prior.corrected_between_variance for prior in priors]) / config.reward_range**2
    size = most / np.clip(spread, LEAST_SPREAD * most, (1 - LEAST_SPREAD) * most) - 1
    alpha, beta = (size * rates)[:, None], (size * (1 - rates))[:, None]

    def rising(start: np.ndarray, steps: np.ndarray) -> np.ndarray:
        """Compute the log of start · (start + 1) ⋯, so many factors."""
        logs = np.log(start + np.arange(steps.max(initial=0))).cumsum(-1)
        return np.pad(logs, ((0, 0), (1, 0)))[:, steps]

    return rising(alpha, successes) + rising(beta, failures) - rising(alpha + beta, successes + failures)


@dataclass(frozen=True)
class History:
    """A history: how a state adds a batch, and what is read from it.

    update: (state, this batch's prior, its groups, config) -> the next state. factor: the weight that this update
    gave to older groups. read: the prior for these groups. mean: μ_glob of what was read. detailed: it reads
    the moments inside groups, whatever the other parts read.
    """

    update: Callable[[Any, Prior, Groups, EstimatorConfig], Any]
    factor: Callable[[Any, Groups, EstimatorConfig], float]
    initial: Callable[[], Any] = Prior
    restore: Callable[[dict], Any] = Prior.from_dict
    read: Callable[[Any, Groups], Prior] = lambda state, groups: state
    mean: Callable[[Prior], float] = attrgetter("rewards.mean")
    metrics: Callable[[Any], dict[str, float]] = lambda state: {}
    detailed: bool = False


def forgetting(factor: Callable[[Groups, EstimatorConfig], float], **parts: Any) -> History:
    """Return the history of a prior whose older groups count `factor` times as much at every batch."""
    return History(
        lambda before, batch, groups, config: before.discounted(factor(groups, config)).merge(batch),
        factor=lambda state, groups, config: factor(groups, config),
        **parts,
    )


HISTORIES = {
    "run": forgetting(lambda groups, config: 1.0),
    # the released code takes the mean of group means; with full groups it is the same
    "batch": forgetting(lambda groups, config: 0.0, mean=attrgetter("group_means.mean")),
    "half_life": forgetting(lambda groups, config: 0.5 ** (groups.count / config.half_life)),
    "adaptive": History(
        update_mixture,
        lambda state, groups, config: float(state.weights @ FACTORS),
        Mixture,
        Mixture.from_dict,
        read=lambda state, groups: state.prior,
        metrics=lambda state: {"ebpo/half_life": state.half_life},
        detailed=True,
    ),
}
