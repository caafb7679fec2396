"""An estimator of your own: reward minus a running mean over all prompts, not standardised.

From the folder that holds this file:

    openrlhf-ebpo train --advantage_estimator running_mean:RunningMean --rollout.n_samples_per_prompt 4 ...

It trains, is logged, saved with every checkpoint and restored like the ones of the package. The contract is in
openrlhf_ebpo/estimator/contract.py; M is the number of prompts in a batch, G the number of responses per prompt.
"""

import numpy as np

from openrlhf_ebpo.estimator.contract import Batch, Estimator, Step


class RunningMean(Estimator):
    """Every response of a step has the same baseline: the mean reward of the latest ten or so steps."""

    keep = 0.9  # weight of earlier steps

    def initial(self) -> dict:
        return {"reward_sum": 0.0, "count": 0.0}

    def step(self, batch: Batch, state: dict) -> Step:
        seen = {
            "reward_sum": self.keep * state["reward_sum"] + batch.rewards.sum().item(),  # 0 where not valid
            "count": self.keep * state["count"] + batch.valid.sum().item(),
        }
        mean = seen["reward_sum"] / seen["count"]
        baselines = np.full((len(batch.rewards), 1), mean)
        return Step(baselines, batch.rewards - baselines, seen, metrics={"running_mean/mean": mean})
