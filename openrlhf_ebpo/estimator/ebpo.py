"""EBPO: one step of arXiv 2602.05165, Algorithm 1. Update the moments with this batch, then use them."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np

from openrlhf_ebpo.estimator.config import FLAG, EstimatorConfig
from openrlhf_ebpo.estimator.contract import Batch, Estimator, Step
from openrlhf_ebpo.estimator.presets import PRESETS, code_of
from openrlhf_ebpo.estimator.prior import Prior
from openrlhf_ebpo.estimator.shrinkage import DEGENERATE, group_mean


class EBPO(Estimator):
    """Its state is the `Prior`.

    Raises:
        ValueError: fewer than 2 responses per prompt, or a preset that no code implements.
    """

    def __init__(self, config: EstimatorConfig, name: str = ""):
        super().__init__(config, name)
        if config.n_samples_per_prompt < 2:
            raise ValueError(
                f"--rollout.n_samples_per_prompt is {config.n_samples_per_prompt}: ebpo needs at least 2. It estimates "
                "how noisy a group's mean is from the spread inside groups, and one response has none."
            )
        self.variant = PRESETS[config.preset]
        try:
            self.parts = code_of(self.variant)
        except ValueError as error:
            raise ValueError(f"{FLAG}.preset {config.preset}: {error}") from None

    def initial(self) -> Prior:
        return Prior()

    def step(self, batch: Batch, state: Prior) -> Step:
        parts, reward_range = self.parts, self.config.reward_range
        rewards, valid = batch.rewards, batch.valid
        present = rewards[valid]
        means = group_mean(rewards, valid)
        sizes = valid.sum(-1, keepdims=True)
        alive = sizes > 0

        after = parts["history"](state, present, means[alive])
        prior = parts["order"](state, after)
        within, between = parts["within_variance"](prior), parts["between_variance"](prior)
        shrinkage, baselines = parts["prior"](prior, within, between, means, np.maximum(sizes, 1), reward_range)
        advantages = parts["normalise"]((rewards - baselines) * valid, valid, reward_range)
        if np.ptp(present) <= DEGENERATE * reward_range:
            # groups of unequal size have unequal S: standardising would blow their tiny differences up
            advantages = advantages * 0.0
        metrics = {
            "ebpo/shrinkage": float(shrinkage[alive].mean()),
            "ebpo/prior_mean": prior.mean,
            "ebpo/within_variance": within,
            "ebpo/between_variance": between,
            "ebpo/prior_count": after.rewards.count,
        }
        return Step(baselines, advantages, after, shrinkage, metrics)

    def save(self, state: Prior) -> dict:
        return asdict(state)

    def restore(self, saved: dict) -> Prior:
        return Prior.from_dict(saved)

    def identity(self) -> dict:
        """Raw τ² depends on G, the moments on the reward's scale."""
        return {**super().identity(), "variant": self.variant}
