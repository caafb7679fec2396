"""HA-DW: GRPO, with a weight for how hard a prompt is, compared with the latest batches."""

from __future__ import annotations

import math

import numpy as np

from openrlhf_ebpo.estimator.advantage import grpo_advantages
from openrlhf_ebpo.estimator.contract import Batch, Step
from openrlhf_ebpo.estimator.groups import GroupEstimator, successes
from openrlhf_ebpo.estimator.prior import finite
from openrlhf_ebpo.estimator.shrinkage import group_mean

WINDOW = 10  # batches
SCALE = 1.5  # λ_scale; the paper finds 1.3 and 1.5 best


class HADW(GroupEstimator):
    """A = Φ·Â with GRPO's Â and Φ = λ_scale·exp(−sign(Â)·sign(p_m − C)·|p_m − C|), p_m the group's success rate.

    C, the anchor, is the mean success rate of the last 10 batches, this one included. So what is rare is enlarged: successes of
    prompts harder than C, and failures of easier ones.

    Yang et al., "Your Group-Relative Advantage Is Biased", arXiv 2601.08521 v2, equations 13 to 16; C is the hard anchor of
    Appendix F, equation 134. The released code (yangfengkai/HA-DW, verl/trainer/ppo/core_algos.py, compute_ha_dw_outcome_advantage)
    has the same, with these two constants.

    Not here: the paper's soft anchor, equations 8 to 11. It leaves its start, η and m open, and one that starts constant never
    moves (η_t is η times its own deviation). Equation 13 takes C before the batch; the released code after it, and so does this.
    """

    def initial(self) -> dict:
        return {"batch_means": []}

    def restore(self, saved: dict) -> dict:
        means = super().restore(saved)["batch_means"]
        if len(means) > WINDOW or not all(0 <= finite(mean) <= 1 for mean in means):
            raise ValueError(f"batch_means is {means}: it is a list of at most {WINDOW} numbers between 0 and 1")
        return saved

    def step(self, batch: Batch, state: dict) -> Step:
        shares, valid = successes(batch, self.config), batch.valid
        latest = [*state["batch_means"], shares[valid].mean().item()][-WINDOW:]
        easier = group_mean(shares, valid) - math.fsum(latest) / len(latest)
        advantages = grpo_advantages(batch.rewards, valid, self.config.reward_range)
        weights = SCALE * np.exp(-np.sign(advantages) * easier)
        return Step(group_mean(batch.rewards, valid), weights * advantages, {"batch_means": latest})
