"""Estimators between others, or with one thing taken away, for learning.py: `--estimators lab.variants:NAME`.

EBPO's baseline is the group's mean μ_m shrunk towards the batch's; the score-weighted one is B_w = Σwr / Σw over the batch
(estimator/methods/score_weighted.py). No mixture is centred, which would put the plain mean back; all are divided by the
root mean square.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from openrlhf_ebpo.estimator.contract import Batch, Estimator, Step
from openrlhf_ebpo.estimator.ebpo import EBPO
from openrlhf_ebpo.estimator.shrinkage import DEGENERATE, EPSILON, shrinkage_weight, shrunk_baseline


class SilentFailures(Estimator):
    """EBPO, with advantage 0 for groups that failed entirely: what do they contribute?"""

    def __init__(self, config, name: str = ""):
        super().__init__(config, name)
        self.ebpo = EBPO(config, name)

    def initial(self):
        return self.ebpo.initial()

    def step(self, batch: Batch, state) -> Step:
        step = self.ebpo.step(batch, state)
        return replace(step, advantages=np.where(batch.rewards.any(1, keepdims=True), step.advantages, 0.0))


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


def shrunk_means(rewards: np.ndarray) -> np.ndarray:
    """By this batch's shrinkage: variance within groups, and between their means without what the noise adds to it."""
    group, means = rewards.shape[1], rewards.mean(1, keepdims=True)
    within = float(rewards.var(1, ddof=1).mean())
    shrinkage = shrinkage_weight(within, max(float(means.var()) - within / group, 0.0), group, 1.0)
    return shrunk_baseline(means, float(rewards.mean()), shrinkage)


class Half(Mixture):
    """½ B_w + ½ the shrunk group mean."""

    def baselines(self, rewards, weights):
        return (weighted_mean(rewards, weights) + shrunk_means(rewards)) / 2


class Annealed(Mixture):
    """From B_w to the shrunk group mean, in the measure of the batch's success rate."""

    def baselines(self, rewards, weights):
        share = float(rewards.mean())
        return (1 - share) * weighted_mean(rewards, weights) + share * shrunk_means(rewards)


class Root(Mixture):
    """B_w with the square roots of the weights, half-way from them to equal ones."""

    def baselines(self, rewards, weights):
        return np.array(weighted_mean(rewards, np.sqrt(weights)))


class NoBaseline(Mixture):
    """The reward itself: what no baseline at all does."""

    def baselines(self, rewards, weights):
        return np.zeros(1)
