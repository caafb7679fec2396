"""MC-GRPO: the group's median in place of its mean, made for two to four responses a prompt and one more."""

from __future__ import annotations

import numpy as np

from openrlhf_ebpo.estimator.contract import Batch, Step
from openrlhf_ebpo.estimator.groups import GroupEstimator, deviations

EPSILON = 1e-3  # of the released code, in units of the rewards' range


class MCGRPO(GroupEstimator):
    """A = n/k · (r − m) / (d + 1e-3) with the group's median m and the median d of |r − m|, where k of its n responses differ from m.

    Kim, "MC-GRPO: Median-Centered Group Relative Policy Optimization for Small-Rollout Reinforcement Learning", arXiv 2601.22582; d, its
    ε and n/k from the released code, lotusroot-kim/MC-GRPO, grpo_trainer_gsm.py. Of an even number of rewards the lower median counts,
    as torch.median has it. The paper's G + 1 responses are `--rollout.n_samples_per_prompt` here, so 3 for its G = 2; the median one
    gets 0, which trains nothing, and is not left out of the batch.

    With rewards that are right or wrong d is 0, except where each half of the group has one of the two: the minority gets ±1000·n/k and
    the majority 0. Adam and the gradient's clipping remove the factor.
    """

    def step(self, batch: Batch, state: dict) -> Step:
        medians = lower_median(batch.rewards, batch.valid)
        raw = deviations(batch.rewards, medians, batch.valid, self.config.reward_range)
        spread = lower_median(np.abs(raw), batch.valid) + EPSILON * self.config.reward_range
        differing = np.maximum((raw != 0).sum(-1, keepdims=True), 1)
        return Step(medians, raw / spread * batch.valid.sum(-1, keepdims=True) / differing, state)


def lower_median(values: np.ndarray, valid: np.ndarray) -> np.ndarray:
    """Of the valid values of each row, (M, 1); 0 where none is valid."""
    ordered = np.sort(np.where(valid, values, np.inf), -1)
    middle = np.maximum(valid.sum(-1, keepdims=True) - 1, 0) // 2
    found = np.take_along_axis(ordered, middle, -1)
    return np.where(np.isfinite(found), found, 0.0)
