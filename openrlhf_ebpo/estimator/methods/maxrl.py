"""MaxRL: rewards less the group's mean, divided by that mean."""

from __future__ import annotations

import numpy as np

from openrlhf_ebpo.estimator.contract import Batch, Step
from openrlhf_ebpo.estimator.groups import GroupEstimator, deviations, successes
from openrlhf_ebpo.estimator.shrinkage import EPSILON, group_mean


class MaxRL(GroupEstimator):
    """A = (x − p_m) / (p_m + 1e-6), x the reward from 0 (fail) to 1 (pass), p_m the group's mean; 0 where nothing
    succeeded.

    In place of the gradient of the success rate it follows that of its logarithm, Σ_k ∇pass@k / k, cut off where the
    group's size ends: Tajwar et al., "Maximum Likelihood Reinforcement Learning", arXiv 2602.02710. Formula and ε from
    the released code, tajwarfahim/maxrl, verl/trainer/ppo/core_algos.py, compute_maxrl_outcome_advantage; of the paper
    the authors' project page was at hand.

    Chosen here: rewards are scaled to 0 to 1 first, so that it works with other fail and pass rewards; p_m up to 1e-6
    is 0.
    """

    def step(self, batch: Batch, state: dict) -> Step:
        shares = successes(batch, self.config)
        rates = group_mean(shares, batch.valid)
        advantages = deviations(shares, rates, batch.valid, 1.0) / (rates + EPSILON)
        baselines = self.config.fail_reward + self.config.reward_range * rates
        return Step(baselines, np.where(rates > EPSILON, advantages, 0.0), state)
