"""Baselines between the score-weighted one and EBPO's, to be tried in learning.py as tiny.mixtures:NAME.

EBPO's is the group's mean μ_m shrunk towards the batch's; the score-weighted one is B_w = Σwr / Σw over the batch
(estimator/methods/score_weighted.py). None is centred, which would put the plain mean back; all are divided by the root
mean square.
"""

from __future__ import annotations

import numpy as np

from openrlhf_ebpo.estimator.contract import Batch, Estimator, Step
from openrlhf_ebpo.estimator.shrinkage import DEGENERATE, EPSILON, shrinkage_weight, shrunk_baseline
from openrlhf_ebpo.figures.lab.ablations import SilentFailures  # noqa: F401  (its name in results that are saved)


class Mixture(Estimator):
    """A subclass says what is taken from the rewards."""

    def baselines(self, rewards: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """(M, 1) of rewards and score weights (M, G), all valid."""
        raise NotImplementedError

    def step(self, batch: Batch, state: dict) -> Step:
        baselines = np.broadcast_to(self.baselines(batch.rewards, batch.score_weights), (len(batch.rewards), 1))
        advantages = batch.rewards - baselines
        varied = np.ptp(batch.rewards) > DEGENERATE * self.config.reward_range
        return Step(baselines, advantages * varied / (np.sqrt((advantages**2).mean()) + EPSILON), state)


def weighted_mean(rewards: np.ndarray, weights: np.ndarray) -> float:
    return float((rewards * weights).sum() / weights.sum()) if weights.sum() > 0 else float(rewards.mean())


def shrinkage(rewards: np.ndarray, means: np.ndarray) -> float:
    """This batch's: variance within groups, and between their means without what the noise adds to it."""
    group = rewards.shape[1]
    within = float(rewards.var(1, ddof=1).mean())
    return shrinkage_weight(within, max(float(means.var()) - within / group, 0.0), group, 1.0)


def shrunk_means(rewards: np.ndarray) -> np.ndarray:
    means = rewards.mean(1, keepdims=True)
    return shrunk_baseline(means, float(rewards.mean()), shrinkage(rewards, means))


class Half(Mixture):
    """½ B_w + ½ the shrunk group mean."""

    def baselines(self, rewards, weights):
        return (weighted_mean(rewards, weights) + shrunk_means(rewards)) / 2


class Annealed(Mixture):
    """From B_w to the shrunk group mean, in the measure of the batch's success rate."""

    def baselines(self, rewards, weights):
        share = float(rewards.mean())
        return (1 - share) * weighted_mean(rewards, weights) + share * shrunk_means(rewards)


class GroupWeighted(Mixture):
    """Each group's weighted mean, shrunk towards B_w."""

    def baselines(self, rewards, weights):
        sums = weights.sum(1, keepdims=True)
        means = np.where(sums > 0, (rewards * weights).sum(1, keepdims=True) / np.where(sums > 0, sums, 1), 0.0)
        return shrunk_baseline(
            means, weighted_mean(rewards, weights), shrinkage(rewards, rewards.mean(1, keepdims=True))
        )


class Scaled(Mixture):
    """B_w times the shrunk group mean over the batch's mean: harder prompts have a lower baseline."""

    def baselines(self, rewards, weights):
        mean = max(float(rewards.mean()), 1e-12)
        return weighted_mean(rewards, weights) * shrunk_means(rewards) / mean


class Root(Mixture):
    """B_w with the square roots of the weights, half-way from them to equal ones."""

    def baselines(self, rewards, weights):
        return np.array(weighted_mean(rewards, np.sqrt(weights)))


class NoBaseline(Mixture):
    """The reward itself: what no baseline at all does."""

    def baselines(self, rewards, weights):
        return np.zeros(1)
