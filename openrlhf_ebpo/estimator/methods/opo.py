"""OPO: the group's mean reward, weighted by length."""

from __future__ import annotations

from openrlhf_ebpo.estimator.contract import Batch, Step
from openrlhf_ebpo.estimator.groups import GroupEstimator, deviations, weighted_mean


class OPO(GroupEstimator):
    """b_m = Σ l·r / Σ l over a group's valid responses, A = r − b_m, not normalised.

    Hao et al., "On-Policy RL with Optimal Reward Baseline", arXiv 2505.23585: the baseline of least gradient variance,
    where the squared norm of a response's score grows with its length l (action tokens). Released code: verl,
    verl/trainer/ppo/ core_algos.py, compute_opo_outcome_advantage; docs/algo/opo.md says that nothing is normalised.
    The formula is from these two and from the paper's abstract.

    Chosen here: a group's only valid response is its own baseline (advantage 0), as the formula has it; the released
    code gives it the baseline 0. The paper's other half, exact on-policy training, is a setting: `--train.batch_size`
    equal to the rollout batch.
    """

    def step(self, batch: Batch, state: dict) -> Step:
        baselines = weighted_mean(batch.rewards, batch.lengths, batch.valid)
        return Step(baselines, deviations(batch.rewards, baselines, batch.valid, self.config.reward_range), state)
