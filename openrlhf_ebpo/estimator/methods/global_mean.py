"""The batch's mean: the plainest baseline."""

from __future__ import annotations

import numpy as np

from openrlhf_ebpo.estimator.contract import Batch, Estimator, Step
from openrlhf_ebpo.estimator.shrinkage import standardise


class GlobalMean(Estimator):
    """A = (r − r̄) / (s + 1e-6) with mean and sample standard deviation of all valid rewards of the batch.

    Williams, "Simple statistical gradient-following algorithms for connectionist reinforcement learning", 1992, with
    the mean reward as reinforcement baseline. It is EBPO with S = 1. OpenRLHF's `flash_reinforce` takes the same
    baseline and does not divide; its `reinforce` takes mean and deviation over tokens, so that long responses count
    more.
    """

    def step(self, batch: Batch, state: dict) -> Step:
        baselines = np.full((len(batch.rewards), 1), batch.rewards[batch.valid].mean())
        return Step(baselines, standardise(batch.rewards, batch.valid, self.config.reward_range), state)
