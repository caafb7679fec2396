"""NGRPO: GRPO with one more response in each group, which passes."""

from __future__ import annotations

import numpy as np

from openrlhf_ebpo.estimator.contract import Batch, Step
from openrlhf_ebpo.estimator.groups import GroupEstimator, deviations
from openrlhf_ebpo.estimator.shrinkage import EPSILON


class NGRPO(GroupEstimator):
    """A = (r − μ) / (s + 1e-6) with the mean μ and the sample standard deviation s of the group's rewards and the pass reward.

    So an all-fail group gets a negative advantage, and an all-pass group 0. Nan et al., "NGRPO: Negative-enhanced Group Relative
    Policy Optimization", arXiv 2509.18851, Advantage Calibration. Formula and ε from the released code, nangongrui-ngr/NGRPO,
    verl/trainer/ppo/core_algos.py, compute_ngrpo_outcome_advantage with one virtual sample; of the paper the abstract was at hand.

    The paper's other half is a setting of the loss: `--actor.eps_clip_low_high 0.16 0.24`, its values. Its filter of all-correct
    groups changes nothing here: they get 0.
    """

    def step(self, batch: Batch, state: dict) -> Step:
        rewards, valid = batch.rewards, batch.valid
        best, sizes = self.config.pass_reward, valid.sum(-1, keepdims=True)
        means = (rewards.sum(-1, keepdims=True, where=valid) + best) / (sizes + 1)
        raw = deviations(rewards, means, valid, self.config.reward_range)
        squares = (raw**2).sum(-1, keepdims=True) + (best - means) ** 2
        return Step(means, raw / (np.sqrt(squares / np.maximum(sizes, 1)) + EPSILON), state)
