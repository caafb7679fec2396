"""EBPO's parts, each choice with the code that computes it, and the presets that choose.

The choices are stored with the prior, so that a run can only resume with the estimator it began with. A choice is a key
of PARTS: what no code computes cannot be chosen, nor stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.estimator.clusters import clustered
from openrlhf_ebpo.estimator.config import FLAG
from openrlhf_ebpo.estimator.group_statistics import score_weights
from openrlhf_ebpo.estimator.history import HISTORIES
from openrlhf_ebpo.estimator.shrinkage import DEGENERATE, EPSILON, scale, shrinkage_weight, standardise

if TYPE_CHECKING:
    from openrlhf_ebpo.estimator.config import EstimatorConfig
    from openrlhf_ebpo.estimator.contract import PerGroup
    from openrlhf_ebpo.estimator.group_statistics import Groups
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
            f"{FLAG}.prior beta_binomial needs rewards that are {config.fail_reward} or {config.pass_reward} "
            f"({FLAG}.fail_reward, {FLAG}.pass_reward), and this batch has others, for example by a length penalty: "
            f"use {FLAG}.prior gaussian"
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


def muted(shrinkage: PerGroup, groups: Groups, config: EstimatorConfig) -> PerGroup:
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
    "clusters": {"run": lambda history: history, "cluster": clustered},
    "saturated": {"shrink": lambda shrinkage, groups, config: shrinkage, "zero": muted},
    "weights": {"none": lambda batch: None, "score": score_weights},
}

PAPER = {
    "history": "run",
    "order": "update_then_use",
    "within_variance": "pooled",
    "between_variance": "raw",
    "prior": "gaussian",
    "normalise": "batch",
    "clusters": "run",
    "saturated": "shrink",
    "weights": "none",
}
CORRECTED = {**PAPER, "history": "adaptive", "within_variance": "within", "between_variance": "corrected"}
PRESETS = {
    "paper": PAPER,
    "release": {**PAPER, "history": "batch"},
    "revision": {**PAPER, "order": "lagged", "within_variance": "within", "prior": "beta_binomial"},
    "corrected": CORRECTED,
    "robust": {**CORRECTED, "weights": "score", "normalise": "scale"},  # not the paper's: docs/results.md
}
OPTIONAL = ("clusters", "saturated", "weights")  # not stored where they are as in the paper


def variant(config: EstimatorConfig) -> dict[str, Any]:
    """Return the choice of every part, checked: what was given, else the preset's; and `half_life` if it was given.

    Raises:
        ValueError: an unknown preset or choice, or two that contradict each other; the message names the flags.
    """
    if config.preset not in PRESETS:
        raise ValueError(f"{FLAG}.preset: unknown preset {config.preset!r}, choose from {sorted(PRESETS)}")
    found = chosen(config.preset, vars(config))
    check(found)
    return found


def chosen(preset: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return `variant`, not checked."""
    parts = {part: choice if given.get(part) is None else given[part] for part, choice in PRESETS[preset].items()}
    return parts | ({"half_life": given["half_life"]} if given.get("half_life") is not None else {})


def check(parts: Mapping[str, Any]) -> None:
    """Refuse parts that no code computes, and parts that contradict each other.

    Raises:
        ValueError: the message names the flags.
    """
    for part, choices in PARTS.items():
        if parts.get(part) not in choices:
            raise ValueError(f"{FLAG}.{part} {parts.get(part)!r}: choose from {', '.join(choices)}")
    half_life = parts.get("half_life")
    if (half_life is not None) != (parts["history"] == "half_life"):
        given = f"{half_life:g}" if half_life is not None else "missing"
        raise ValueError(
            f"{FLAG}.half_life is {given} and {FLAG}.history {parts['history']}: a number of prompts belongs to "
            f"{FLAG}.history half_life, and to no other"
        )
    if half_life is not None and not 0 < half_life < float("inf"):
        raise ValueError(
            f"{FLAG}.half_life is {half_life}: give a number of prompts above 0; what never forgets is "
            f"{FLAG}.history run"
        )
    if parts["weights"] == "score" and parts["prior"] == "beta_binomial":
        raise ValueError(
            f"{FLAG}.weights score does not go with {FLAG}.prior beta_binomial, which counts successes: use "
            f"{FLAG}.prior gaussian"
        )


def stored(parts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts as prior.json has them."""
    return {part: choice for part, choice in parts.items() if part not in OPTIONAL or choice != PAPER[part]}
