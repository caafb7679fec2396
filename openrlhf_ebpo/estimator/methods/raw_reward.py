"""No baseline: the reward itself, in units of its root mean square."""

from __future__ import annotations

import numpy as np

from openrlhf_ebpo.estimator.contract import Batch, Estimator, Step
from openrlhf_ebpo.estimator.groups import by_root_mean_square


class RawReward(Estimator):
    """A = (r − f) / (sqrt(mean (r − f)²) + 1e-6) with the reward f of a failure, over the batch's valid responses.

    REINFORCE without a baseline (Williams 1992). With rewards 1 and 0 only successes are trained on, as in RAFT (Xiong
    et al., "A Minimalist Approach to LLM Reasoning: from Rejection Sampling to Reinforce", arXiv 2504.11343), which has
    no scale.

    Chosen here: a failure is zero whatever --reward value it has; all rewards equal: A = 0.
    """

    centred = False

    def step(self, batch: Batch, state: dict) -> Step:
        baseline = self.config.fail_reward
        raw = np.where(batch.valid, batch.rewards - baseline, 0.0)
        advantages = by_root_mean_square(raw, batch, self.config.reward_range)
        return Step(np.full((len(raw), 1), baseline), advantages, state)
