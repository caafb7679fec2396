"""Which prompts come next under --data.order adaptive: those whose responses differ most in reward. Pure; numpy only.

A prompt's success rate p has a Beta posterior whose older counts are discounted (MoPPS, arXiv 2507.04632). It starts from
the successes of its cluster so far, where MoPPS starts from a constant. A rate is drawn from every posterior (Thompson
sampling); it makes the weight p(1 - p), plus a floor as SPO has it (arXiv 2509.13232, for sqrt(p(1 - p))).

MoPPS then takes the n prompts nearest to p = 1/2. Here n prompts are drawn with inclusion probabilities in proportion to
the weights. So the probabilities are known exactly, and a mean over the drawn prompts, each weighted by `importance`,
estimates the mean over all prompts without bias (Horvitz and Thompson 1952).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

PerPrompt: TypeAlias = np.ndarray
PASSES = 2  # an epoch has so many draws for each prompt
DISCOUNT = 0.5  # of a prompt's earlier counts where new ones come: MoPPS's value for a policy that learns fast
FLOOR = 0.01  # added to every weight; the largest weight without it is 0.25
POOLED = 10  # prompts of the whole run that a cluster's mean counts as its own
CORRELATION = 0.01, 0.9  # limits of the intraclass correlation


@dataclass(frozen=True)
class Curriculum:
    """What is known about each of N prompts.

    clusters: (N,) whole numbers from 0. successes, failures: (N,) discounted counts. drawn: (N,) bool, in this epoch.
    epoch: draws in an epoch. left: of them, still to come.
    """

    clusters: PerPrompt
    successes: PerPrompt
    failures: PerPrompt
    drawn: PerPrompt
    epoch: int
    left: int


def start(clusters: PerPrompt, passes: float = PASSES) -> Curriculum:
    """Nothing is known about any prompt."""
    size = len(clusters)
    nothing = np.zeros(size)
    epoch = max(size, round(passes * size))
    return Curriculum(np.asarray(clusters), nothing, nothing, nothing.astype(bool), epoch, epoch)


def draw(state: Curriculum, n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """n different prompts in random order, and the probability that each had to be among them.

    A prompt that this epoch has not drawn has at least probability n / (draws left), and so 1 at the epoch's end.

    Raises:
        ValueError: there are fewer than n prompts.
    """
    if not 0 < n <= len(state.drawn):
        raise ValueError(f"{n} different prompts cannot be drawn out of {len(state.drawn)}")
    left = max(state.left, np.count_nonzero(~state.drawn))  # longer, where prompts were added or left out
    at_least = np.where(state.drawn, 0.0, min(1.0, n / left))
    rates = rng.beta(*posterior(state))
    probabilities = inclusion_probabilities(rates * (1 - rates) + FLOOR, at_least, n)
    indices = systematic_sample(probabilities, state.drawn, n, rng)
    return indices, probabilities[indices]


def importance(inclusion: np.ndarray, n: int, prompts: int) -> np.ndarray:
    """How much each drawn prompt counts for all prompts: 1 in an even draw of n, and 1 on average in any other."""
    return n / prompts / inclusion


def update(state: Curriculum, indices: np.ndarray, successes: np.ndarray, trials: np.ndarray) -> Curriculum:
    """The state after these prompts were drawn, each once; `successes` of its `trials` responses passed.

    A prompt without a trial, because all its rewards failed, counts as drawn and keeps its posterior.
    """
    new_successes, new_failures, drawn = state.successes.copy(), state.failures.copy(), state.drawn.copy()
    drawn[indices] = True
    tried = np.asarray(trials) > 0
    at, passed, count = np.asarray(indices)[tried], np.asarray(successes)[tried], np.asarray(trials)[tried]
    new_successes[at] = DISCOUNT * new_successes[at] + passed
    new_failures[at] = DISCOUNT * new_failures[at] + count - passed
    left = state.left - len(indices)
    if left <= 0 and drawn.all():
        drawn, left = np.zeros_like(drawn), state.epoch
    return replace(state, successes=new_successes, failures=new_failures, drawn=drawn, left=left)


def posterior(state: Curriculum) -> tuple[PerPrompt, PerPrompt]:
    """Alpha and beta of each prompt's success rate."""
    means, strength = cluster_priors(state)
    alpha = strength * means[state.clusters] + state.successes
    beta = strength * (1 - means[state.clusters]) + state.failures
    return np.maximum(alpha, 1e-3), np.maximum(beta, 1e-3)


def expected_success(state: Curriculum) -> PerPrompt:
    alpha, beta = posterior(state)
    return alpha / (alpha + beta)


def cluster_priors(state: Curriculum) -> tuple[np.ndarray, float]:
    """Mean success rate of each cluster, and alpha + beta of the Beta distribution within every cluster.

    By moments over the prompts that were tried, each counting once. A cluster's mean is pooled towards the run's.
    """
    trials = state.successes + state.failures
    tried = trials > 0
    clusters, trials = state.clusters[tried], trials[tried]
    rates = state.successes[tried] / trials
    run_mean = (rates.sum() + 0.5) / (len(rates) + 1)
    size = int(state.clusters.max()) + 1
    counts = np.bincount(clusters, minlength=size)
    means = (np.bincount(clusters, rates, size) + POOLED * run_mean) / (counts + POOLED)
    return means, prior_strength(rates, means[clusters], trials)


def prior_strength(rates: np.ndarray, means: np.ndarray, trials: np.ndarray) -> float:
    """alpha + beta of Beta-distributed success rates, from observed rates around known means; 2 where it cannot be told.

    With h = mean(1/trials), intraclass correlation c = 1 / (1 + strength) and b = mean(m(1 - m)), the observed rates have
    variance b(c + (1 - c)h).
    """
    noise = np.mean(1 / trials) if len(trials) else 1.0
    bernoulli = np.mean(means * (1 - means)) if len(means) else 0.0
    if noise >= 1 or bernoulli == 0:
        return 2.0
    correlation = (np.mean((rates - means) ** 2) / bernoulli - noise) / (1 - noise)
    return 1 / np.clip(correlation, *CORRELATION) - 1


def inclusion_probabilities(weights: PerPrompt, at_least: PerPrompt, n: int) -> PerPrompt:
    """clip(c * weights, at_least, 1) with the c that makes their sum n. The weights are above 0."""
    low, high = 0.0, 1 / weights.min()
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (low, middle) if np.clip(middle * weights, at_least, 1).sum() > n else (middle, high)
    found = np.clip(high * weights, at_least, 1)
    free = (found > at_least) & (found < 1)
    if free.any():  # the last digits
        found[free] *= (n - found[~free].sum()) / found[free].sum()
    return found


def systematic_sample(inclusion: PerPrompt, drawn: PerPrompt, n: int, rng: np.random.Generator) -> np.ndarray:
    """n different indices, each with its inclusion probability (Madow 1949), in random order.

    Prompts that were not drawn yet come first in the list that is gone through, so that the number of them is the
    expected one, rounded up or down: this is why an epoch always ends with all prompts drawn.
    """
    certain = inclusion > 1 - 1e-9
    order = rng.permutation(len(inclusion))
    order = order[np.argsort(drawn[order], kind="stable")]
    order = order[~certain[order]]
    chosen = np.flatnonzero(certain)
    if remaining := n - len(chosen):
        edges = np.cumsum(inclusion[order])
        points = (np.arange(remaining) + rng.random()) * edges[-1] / remaining
        chosen = np.concatenate([chosen, order[np.searchsorted(edges[:-1], points, side="right")]])
    return rng.permutation(chosen)
