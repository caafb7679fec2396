"""Baselines and raw advantages of one group under several estimators, and the error of their baselines.

Shown to explain, without torch: one group at a time. Names are the registry's; EBPO's formulas the project's own,
`estimator/shrinkage.py`. A further one is one entry of ESTIMATORS (what a group gets) and, if its baseline is linear in
the group's mean, one of WEIGHTS (its error).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from openrlhf_ebpo.estimator.registry import title
from openrlhf_ebpo.estimator.shrinkage import shrinkage_weight, shrunk_baseline, standardise


@dataclass(frozen=True)
class Setting:
    """What EBPO knows when a group comes: prior mean μ_glob, within-group variance σ², between-group variance τ²."""

    prior_mean: float
    within: float
    between: float

    def shrinkage(self, size: int) -> float:
        return float(shrinkage_weight(self.within, self.between, size, 1.0))


@dataclass(frozen=True)
class Estimated:
    """baselines and advantages: (G,) one per response."""

    baselines: np.ndarray
    advantages: np.ndarray


def grpo(rewards: np.ndarray, setting: Setting) -> Estimated:
    """(r − μ) / std of the group; 0 where all rewards are equal."""
    centred = rewards - rewards.mean()
    std = rewards.std(ddof=1)
    advantages = np.zeros_like(rewards) if std <= 1e-6 else centred / (std + 1e-9)
    return Estimated(np.full_like(rewards, rewards.mean()), advantages)


def dr_grpo(rewards: np.ndarray, setting: Setting) -> Estimated:
    """r − μ."""
    return Estimated(np.full_like(rewards, rewards.mean()), rewards - rewards.mean())


def rloo(rewards: np.ndarray, setting: Setting) -> Estimated:
    """r minus the mean of the other responses."""
    others = (rewards.sum() - rewards) / (len(rewards) - 1)
    return Estimated(others, rewards - others)


def ebpo(rewards: np.ndarray, setting: Setting) -> Estimated:
    """r − V with V = (1 − S)·μ + S·μ_glob; before the batch is standardised."""
    baseline = shrunk_baseline(rewards.mean(), setting.prior_mean, setting.shrinkage(len(rewards)))
    return Estimated(np.full_like(rewards, baseline), rewards - baseline)


ESTIMATORS: dict[str, Callable[[np.ndarray, Setting], Estimated]] = {
    title("group_norm"): grpo,
    title("dr_grpo"): dr_grpo,
    title("rloo"): rloo,
    title("ebpo"): ebpo,
}
FORMULAS = {  # an estimator without one is shown without
    title("group_norm"): "(r − μ) / the group’s standard deviation",
    title("dr_grpo"): "r − μ",
    title("rloo"): "r − mean of the other answers",
    title("ebpo"): "r − V, then standardised over the batch",
}


@dataclass(frozen=True)
class World:
    """Success rates p of prompts follow a Beta distribution with this mean and variance; a response succeeds with p."""

    mean: float
    between: float  # Var p = τ²

    @property
    def within(self) -> float:
        """E[p(1 − p)]: the true within-group variance."""
        return self.mean * (1 - self.mean) - self.between

    def __post_init__(self):
        if not (0 < self.mean < 1 and 0 < self.between < self.mean * (1 - self.mean)):
            raise ValueError("a Beta distribution needs 0 < mean < 1 and 0 < variance < mean·(1 − mean)")


def bayes_weight(world: World, size: int) -> float:
    """The S of the posterior mean, which no baseline can beat."""
    return (world.within / size) / (world.within / size + world.between)


def paper_weight(world: World, size: int) -> float:
    """S of preset `paper`: σ² is the variance of all rewards, τ² that of group means, both known exactly."""
    pooled = world.mean * (1 - world.mean)
    return float(shrinkage_weight(pooled, world.between + world.within / size, size, 1.0))


def within_raw_weight(world: World, size: int) -> float:
    """σ² within groups, τ² still that of group means."""
    return float(shrinkage_weight(world.within, world.between + world.within / size, size, 1.0))


def beta_binomial_weight(world: World, size: int) -> float:
    """S of the revision's Beta-Binomial prior, fitted by moments to group means: ν / (ν + G)."""
    spread = world.between + world.within / size
    total = world.mean * (1 - world.mean) / spread - 1
    return total / (total + size)


WEIGHTS: dict[str, Callable[[World, int], float]] = {
    "group mean (GRPO, Dr. GRPO)": lambda world, size: 0.0,
    "EBPO, as in the paper": paper_weight,
    "within σ², raw τ²": within_raw_weight,
    "Beta-Binomial (revision)": beta_binomial_weight,
    "within σ², corrected τ²": bayes_weight,
}


def error_ratio(world: World, size: int, weight: float) -> float:
    """Mean squared error of the baseline (1 − S)·μ + S·mean against p, divided by the Bayes risk."""
    noise = world.within / size
    error = (1 - weight) ** 2 * noise + weight**2 * world.between
    return error / (noise * world.between / (noise + world.between))


def error_curves(world: World, sizes: np.ndarray) -> dict[str, np.ndarray]:
    return {
        name: np.array([error_ratio(world, int(size), weight(world, int(size))) for size in sizes])
        for name, weight in WEIGHTS.items()
    }


def centred_batch(successes: np.ndarray, size: int, setting: Setting) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """One batch of groups with 0/1 rewards: baselines (M,), and the final, standardised advantages of a right and of a
    wrong answer of each group (M,), NaN where the group has none."""
    rewards = (np.arange(size)[None] < np.asarray(successes)[:, None]).astype(float)
    baselines = shrunk_baseline(rewards.mean(-1, keepdims=True), setting.prior_mean, setting.shrinkage(size))
    final = standardise(rewards - baselines, np.ones_like(rewards, dtype=bool), 1.0)
    right = np.where(successes > 0, final[:, 0], np.nan)
    wrong = np.where(successes < size, final[:, -1], np.nan)
    return baselines[:, 0], right, wrong
