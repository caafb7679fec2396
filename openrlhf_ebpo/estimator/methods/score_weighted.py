"""The constant baseline of least gradient variance: rewards weighted by the squared norm of their score."""

from __future__ import annotations

import numpy as np

from openrlhf_ebpo.estimator.contract import Batch, Estimator, Step
from openrlhf_ebpo.estimator.groups import by_root_mean_square, weighted_mean


class ScoreWeighted(Estimator):
    """B = Σ w·r / Σ w over the batch's valid responses, A = (r − B) / (sqrt(mean (r − B)²) + 1e-6).

    E[r·‖∇log π‖²] / E[‖∇log π‖²] is the constant baseline with the least variance of the policy gradient: Weaver and
    Tao, "The optimal reward baseline for gradient-based reinforcement learning", UAI 2001; Greensmith, Bartlett and
    Baxter, "Variance reduction techniques for gradient estimates in reinforcement learning", JMLR 5, 2004. It lies
    below the mean where failures are more surprising than successes.

    Chosen here: ‖∇log π‖² is replaced by w = Σ_t (1 − π_old(y_t))² over a response's tokens, from log-probabilities
    that are there anyway; one B for the batch; A is divided by its root mean square and **not** centred, which would
    put the plain mean back. All weights 0: B is the plain mean. All rewards equal: A = 0.
    """

    centred = False

    def step(self, batch: Batch, state: dict) -> Step:
        rewards, valid = batch.rewards, batch.valid
        flat = (values.reshape(1, -1) for values in (rewards, batch.score_weights, valid))
        baseline = weighted_mean(*flat).item()
        raw = np.where(valid, rewards - baseline, 0.0)
        advantages = by_root_mean_square(raw, batch, self.config.reward_range)
        return Step(np.full((len(rewards), 1), baseline), advantages, state)
