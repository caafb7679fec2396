"""Measure how far a baseline is from the true success rate, on simulated prompts whose success rates come from a known
distribution.

The best possible baseline is the posterior mean of p; its mean squared error is the Bayes risk. The part of an error
that no baseline can remove is taken as its exact mean, which leaves E (V − E[p | rewards])² to be simulated.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from openrlhf_ebpo.estimator.contract import Batch
from openrlhf_ebpo.estimator.ebpo import EBPO

RISE = (0.17, 0.8)
PER_STEP, STEPS_EACH = 128, 3  # prompts of a step in clusters; steps of a cluster, where they come in order


@dataclass(frozen=True)
class Prompts:
    """The prompts of a step: p ~ Beta(a, b) for each, in these clusters."""

    a: np.ndarray
    b: np.ndarray
    clusters: tuple[str, ...] = ()


Source = Callable[[np.random.Generator, int], Prompts]  # of the prompts of step t


def still(a: float, b: float, prompts: int) -> Source:
    return lambda rng, t: Prompts(np.full(prompts, a), np.full(prompts, b))


def rising(size: float, steps: int, prompts: int) -> Source:
    means = np.linspace(*RISE, steps)
    return lambda rng, t: Prompts(np.full(prompts, size * means[t]), np.full(prompts, size * (1 - means[t])))


def clustered(count: int, spread: float | None, ordered: bool = False) -> Source:
    """Clusters with means around 0.25, and in each p ~ Beta(8·mean, 8·(1 − mean)).

    ordered: one cluster after the other, STEPS_EACH steps each, over and over; otherwise every step has all.
    """
    fixed = np.random.default_rng(1)
    means = np.full(count, 0.25) if spread is None else fixed.beta(0.25 * spread, 0.75 * spread, count)
    means = np.clip(means, 0.01, 0.99)

    def source(rng: np.random.Generator, t: int) -> Prompts:
        chosen = np.full(PER_STEP, t // STEPS_EACH % count) if ordered else rng.integers(count, size=PER_STEP)
        return Prompts(8 * means[chosen], 8 * (1 - means[chosen]), tuple(map(str, chosen)))

    return source


def error_over_risk(estimator: EBPO, source: Source, steps: int, seed: int) -> float:
    """Σ over steps of the mean squared error, over Σ of the Bayes risk."""
    rng, state, size = np.random.default_rng(seed), estimator.initial(), estimator.config.n_samples_per_prompt
    excess = risk = 0.0
    for t in range(steps):
        prompts = source(rng, t)
        rewards = rng.random((len(prompts.a), size)) < rng.beta(prompts.a, prompts.b)[:, None]
        step = estimator.step(Batch.of(rewards, np.ones_like(rewards), (), prompts.clusters), state)
        state = step.state
        posterior = (prompts.a + rewards.sum(-1)) / (prompts.a + prompts.b + size)
        excess += ((step.baselines[:, 0] - posterior) ** 2).mean()
        risk += bayes_risk(prompts, size)
    return 1 + excess / risk


def bayes_risk(prompts: Prompts, size: int) -> float:
    """E Var(p | rewards)."""
    total = prompts.a + prompts.b
    return float((prompts.a * prompts.b / (total * (total + 1) * (total + size))).mean())


def exact_ratios(a: float, b: float, size: int) -> list[float]:
    """Error over Bayes risk of the baseline (1 − S)·group mean + S·mean, for each S."""
    mean = a / (a + b)
    between = mean * (1 - mean) / (a + b + 1)
    noise = (mean * (1 - mean) - between) / size
    raw = between + noise
    pseudo = mean * (1 - mean) / raw - 1
    pooled = mean * (1 - mean) / size
    shrinkages = (
        0,
        pooled / (pooled + raw),
        noise / (noise + raw),
        noise / (noise + between),
        pseudo / (pseudo + size),
    )
    risk = noise * between / (noise + between)
    return [((1 - s) ** 2 * noise + s**2 * between) / risk for s in shrinkages]
