"""EBPO: one step of arXiv 2602.05165, Algorithm 1. Update the prior with this batch, then use it; each part by its
choice.

A choice is a key of PARTS: what no code computes cannot be chosen, nor stored.
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.estimator.clusters import with_clusters
from openrlhf_ebpo.estimator.config import EBPO_FLAG, EstimatorConfig, stored_parts
from openrlhf_ebpo.estimator.contract import Batch, Step
from openrlhf_ebpo.estimator.groups import GroupEstimator, Groups, score_weights
from openrlhf_ebpo.estimator.history import HISTORIES
from openrlhf_ebpo.estimator.shrinkage import (
    DEGENERATE,
    EPSILON,
    scale,
    shrinkage_weight,
    shrunk_baseline,
    standardise,
)

if TYPE_CHECKING:
    from openrlhf_ebpo.estimator.contract import PerGroup
    from openrlhf_ebpo.estimator.prior import Prior


def gaussian(
    prior: Prior, mean: float, within: float, between: float, groups: Groups, config: EstimatorConfig
) -> tuple[PerGroup, PerGroup | float]:
    """Compute the shrinkage of every group, and the value that it is shrunk towards. Before any history a group has its
    own mean."""
    if prior.empty:
        return own_mean(prior, mean, within, between, groups, config)
    return shrinkage_weight(within, between, groups.sizes, config.reward_range), mean


def beta_binomial(
    prior: Prior, mean: float, within: float, between: float, groups: Groups, config: EstimatorConfig
) -> tuple[PerGroup, PerGroup | float]:
    """Compute V = (α + Σr) / (α + β + G), which is shrinkage (α + β) / (α + β + G) towards α / (α + β), in units where
    rewards are 0 and 1. α and β by the method of moments from the group means; α = β = 1 before any history.

    Raises:
        UsageError: a reward is neither the fail nor the pass value.
    """
    if not groups.are_binary(config):
        raise UsageError(
            f"the prior beta_binomial, of ebpo.revision, needs rewards that are {config.fail_reward} or "
            f"{config.pass_reward} ({EBPO_FLAG}.fail_reward, {EBPO_FLAG}.pass_reward), and this batch has others, for "
            "example by a length penalty: use another estimator, such as ebpo"
        )
    rate = (prior.group_means.mean - config.fail_reward) / config.reward_range
    rate = 0.5 if prior.empty else rate
    spread = between / config.reward_range**2
    most = rate * (1 - rate)
    usable = (spread > EPSILON) & (spread < most - EPSILON)
    size = np.where(usable, most / np.where(usable, spread, 1) - 1, 2.0)
    alpha, beta = np.maximum(size * rate, EPSILON), np.maximum(size * (1 - rate), EPSILON)
    anchor = config.fail_reward + config.reward_range * alpha / (alpha + beta)
    return (alpha + beta) / (alpha + beta + groups.sizes), anchor


def own_mean(
    prior: Prior, mean: float, within: float, between: float, groups: Groups, config: EstimatorConfig
) -> tuple[PerGroup, PerGroup | float]:
    """Return S = 0: the group's mean."""
    return np.zeros_like(groups.means), mean


def zero_shrinkage_if_all_pass(shrinkage: PerGroup, groups: Groups, config: EstimatorConfig) -> PerGroup:
    """Give an all-pass group its own mean as baseline, so its raw advantage is 0."""
    below = (groups.rewards < config.pass_reward - DEGENERATE * config.reward_range) & (groups.weights > 0)
    return np.where(below.any(-1, keepdims=True), shrinkage, 0.0)


PARTS: dict[str, dict[str, Any]] = {
    "history": HISTORIES,
    "order": {"update_then_use": lambda before, after: after, "lagged": lambda before, after: before},
    "within_variance": {"pooled": attrgetter("rewards.variance"), "within": attrgetter("within.mean")},
    "between_variance": {
        "raw": attrgetter("group_means.variance"),
        "corrected": attrgetter("corrected_between_variance"),
    },
    "prior": {"gaussian": gaussian, "beta_binomial": beta_binomial, "none": own_mean},
    "normalise": {"batch": standardise, "scale": scale, "none": lambda raw, valid, reward_range: raw * valid},
    "clusters": {"run": lambda history: history, "cluster": with_clusters},
    "saturated": {"shrink": lambda shrinkage, groups, config: shrinkage, "zero": zero_shrinkage_if_all_pass},
    "weights": {"none": lambda batch: None, "score": score_weights},
}


class EBPO(GroupEstimator):
    """Its state is that of its history: the `Prior` of the run in preset `paper`.

    Raises:
        ValueError: fewer than 2 responses per prompt; an unknown preset or choice, or choices that contradict each
            other.
    """

    def __init__(self, config: EstimatorConfig, name: str = ""):
        super().__init__(config, name)
        self.variant = config.variant()
        for part, choices in PARTS.items():
            if self.variant[part] not in choices:
                raise ValueError(f"{part} {self.variant[part]!r}: choose from {', '.join(choices)}")
        self.parts = {part: choices[self.variant[part]] for part, choices in PARTS.items()}
        self.history = self.parts["clusters"](self.parts["history"])
        self.centred = self.variant["weights"] != "score" or self.variant["normalise"] == "batch"
        reads = self.variant["within_variance"], self.variant["between_variance"]
        self.detailed = self.history.detailed or reads != ("pooled", "raw")

    def initial(self) -> Any:
        return self.history.initial()

    def step(self, batch: Batch, state: Any) -> Step:
        parts, config = self.parts, self.config
        groups = Groups.of(batch, parts["weights"](batch))
        after = self.history.update(state, groups.evidence(self.detailed), groups, config)
        used = parts["order"](state, after)
        prior = self.history.read(used, groups)

        within, between = parts["within_variance"](prior), parts["between_variance"](prior)
        shrinkage, anchor = parts["prior"](prior, self.history.mean(prior), within, between, groups, config)
        shrinkage = parts["saturated"](shrinkage, groups, config)
        baselines = shrunk_baseline(groups.means, anchor, shrinkage)
        advantages = self._normalised(batch, batch.rewards - baselines)

        def mean(values: PerGroup | float) -> float:
            if isinstance(values, (int, float)):
                return values
            return float(np.broadcast_to(values, groups.alive.shape)[groups.alive].mean())

        metrics = {
            "ebpo/shrinkage": mean(shrinkage),
            "ebpo/prior_mean": mean(anchor),
            "ebpo/within_variance": mean(within),
            "ebpo/between_variance": mean(between),
            "ebpo/prior_count": mean((prior if used is after else self.history.read(after, groups)).rewards.count),
            **self.history.metrics(after),
        }
        return Step(baselines, advantages, after, shrinkage, metrics)

    def _normalised(self, batch: Batch, raw: np.ndarray) -> np.ndarray:
        """Zeros where all rewards of the batch are equal: groups of unequal size, or of several clusters, have unequal
        baselines, and dividing by the spread would blow their tiny differences up."""
        config = self.config
        constant = np.ptp(batch.rewards[batch.valid]) <= DEGENERATE * config.reward_range
        if constant and self.variant["normalise"] != "none":
            return np.zeros_like(raw)
        return self.parts["normalise"](raw, batch.valid, config.reward_range)

    def save(self, state: Any) -> dict:
        return state.to_dict()

    def restore(self, saved: dict) -> Any:
        state = self.history.restore(saved)
        if state.to_dict() != saved:  # a key that is missing or unknown
            raise ValueError(f"it has {sorted(saved)}, and would be saved otherwise")
        return state

    def identity(self) -> dict:
        """Raw τ² depends on G, the moments on the reward's scale."""
        return {**super().identity(), "variant": stored_parts(self.variant)}
