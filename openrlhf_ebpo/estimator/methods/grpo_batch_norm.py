"""GRPO, divided by the batch's standard deviation in place of the group's."""

from __future__ import annotations

from openrlhf_ebpo.estimator.contract import Batch, Step
from openrlhf_ebpo.estimator.groups import GroupEstimator, deviations
from openrlhf_ebpo.estimator.shrinkage import group_mean, standardise


class GRPOBatchNorm(GroupEstimator):
    """A = (r − μ_m) / (s + 1e-6) with the sample standard deviation s of all r − μ_m of the batch, one value a
    response.

    EBPO with S = 0, and one of the baselines of that paper's later revision (arXiv 2602.05165): what is left of EBPO's
    gain against it is not its normalisation's. OpenRLHF's `reinforce_baseline` standardises over tokens instead.
    """

    def step(self, batch: Batch, state: dict) -> Step:
        rewards, valid, reward_range = batch.rewards, batch.valid, self.config.reward_range
        means = group_mean(rewards, valid)
        return Step(means, standardise(deviations(rewards, means, valid, reward_range), valid, reward_range), state)
