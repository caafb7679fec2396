"""SPO: a tracker of each prompt's success rate as it was before the batch, standardised over the batch."""

from __future__ import annotations

from openrlhf_ebpo.estimator.contract import Batch, Step
from openrlhf_ebpo.estimator.groups import successes
from openrlhf_ebpo.estimator.shrinkage import standardise
from openrlhf_ebpo.estimator.tracker import Tracker, TrackerEstimator


class SPO(TrackerEstimator):
    """A = x − v, then (A − mean A) / std A over the batch; x the reward from 0 (fail) to 1 (pass), v = α/(α + β) of the prompt
    *before* this batch, so that it does not depend on its rewards. Afterwards α ← ρα + passes, β ← ρβ + failures.

    Xu and Ding, "Single-stream Policy Optimization", arXiv 2509.13232. Formulas and constants from the released code,
    verl-project/verl-recipe, spo/spo_ray_trainer.py; of the paper the abstract and an account of it were at hand.

    Different from the paper: its ρ = 2^(−D/0.06), within 0.875 and 0.96, follows the divergence D between the policy and the one
    that last answered the prompt. An estimator sees no policy, so ρ is 0.875, the released code's other form. No values are
    estimated before training; every prompt starts at α = β = 1/2. Prompts are not drawn by priority.

    Chosen here: the paper has one response a prompt; several are one visit, discounted once. ε = 1e-6 in the division.
    """

    keep = 0.875  # the released code's constant ρ, and its lower bound where ρ follows the divergence
    start = (0.5, 0.5)  # the released code's, where no values were estimated before training

    def step(self, batch: Batch, state: Tracker) -> Step:
        values, _, after = self.rates(batch, state)
        baselines = self.config.fail_reward + self.config.reward_range * values
        return Step(baselines, standardise(successes(batch, self.config) - values, batch.valid, 1.0), after)
