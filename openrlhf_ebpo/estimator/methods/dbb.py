"""DBB: each prompt's success rate from its discounted history."""

from __future__ import annotations

import numpy as np

from openrlhf_ebpo.estimator.contract import Batch, Step
from openrlhf_ebpo.estimator.groups import successes
from openrlhf_ebpo.estimator.shrinkage import EPSILON
from openrlhf_ebpo.estimator.tracker import Tracker, TrackerEstimator


class DBB(TrackerEstimator):
    """A = (x − p) / (sqrt(p(1 − p)) + 1e-6), x the reward from 0 (fail) to 1 (pass), p = α/(α + β) of the prompt.

    Each time a prompt is drawn: α ← λα + passes, β ← λβ + failures, and then p is read; α = β = 1 at first. Kim et al.,
    "Discounted Beta–Bernoulli Reward Estimation for Sample-Efficient RLVR", arXiv 2603.18444 v1, Algorithm 1 and equations 11 to
    13, put into GRPO's equation 2 (GRPO-DBB). λ = 0.75, theirs for the larger of two models.

    Chosen here: ε = 1e-6 as in GRPO's released codes; rewards between fail and pass count as parts of a pass; two groups of one
    prompt in a batch are one visit.
    """

    keep = 0.75  # λ of the paper's larger model; 0.5 for its smaller one
    start = (1.0, 1.0)  # Algorithm 1, line 1

    def step(self, batch: Batch, state: Tracker) -> Step:
        _, rates, after = self.rates(batch, state)
        raw = np.where(batch.valid, successes(batch, self.config) - rates, 0.0)
        baselines = self.config.fail_reward + self.config.reward_range * rates
        return Step(baselines, raw / (np.sqrt(rates * (1 - rates)) + EPSILON), after)
