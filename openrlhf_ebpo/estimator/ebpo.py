"""EBPO: one step of arXiv 2602.05165, Algorithm 1. Update the prior with this batch, then use it; each part by its
choice."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from openrlhf_ebpo.estimator import presets
from openrlhf_ebpo.estimator.config import EstimatorConfig
from openrlhf_ebpo.estimator.contract import Batch, Step
from openrlhf_ebpo.estimator.group_statistics import Groups
from openrlhf_ebpo.estimator.groups import GroupEstimator
from openrlhf_ebpo.estimator.prior import Bounds
from openrlhf_ebpo.estimator.shrinkage import DEGENERATE, shrunk_baseline

if TYPE_CHECKING:
    from openrlhf_ebpo.estimator.contract import PerGroup


class EBPO(GroupEstimator):
    """Its state is that of its history: the `Prior` of the run in preset `paper`.

    Raises:
        ValueError: fewer than 2 responses per prompt.
    """

    def __init__(self, config: EstimatorConfig, name: str = ""):
        super().__init__(config, name)
        self.variant = presets.variant(config)
        self.parts = {part: choices[self.variant[part]] for part, choices in presets.PARTS.items()}
        self.history = self.parts["clusters"](self.parts["history"])
        self.centred = self.variant["weights"] != "score" or self.variant["normalise"] == "batch"
        reads = self.variant["within_variance"], self.variant["between_variance"]
        self.detailed = self.history.detailed or reads != ("pooled", "raw")

    def initial(self) -> Any:
        return self.history.initial()

    def step(self, batch: Batch, state: Any) -> Step:
        parts, config = self.parts, self.config
        groups = Groups.of(batch, parts["weights"](batch))
        after = self.history.update(state, groups.evidence(self.detailed), groups, config)
        used = parts["order"](state, after)
        prior = self.history.read(used, groups)

        within, between = parts["within_variance"](prior), parts["between_variance"](prior)
        shrinkage, anchor = parts["prior"](prior, self.history.mean(prior), within, between, groups, config)
        shrinkage = parts["saturated"](shrinkage, groups, config)
        baselines = shrunk_baseline(groups.means, anchor, shrinkage)
        advantages = self._normalised(batch, batch.rewards - baselines)

        def mean(values: PerGroup | float) -> float:
            if isinstance(values, (int, float)):
                return values
            return float(np.broadcast_to(values, groups.alive.shape)[groups.alive].mean())

        metrics = {
            "ebpo/shrinkage": mean(shrinkage),
            "ebpo/prior_mean": mean(anchor),
            "ebpo/within_variance": mean(within),
            "ebpo/between_variance": mean(between),
            "ebpo/prior_count": mean((prior if used is after else self.history.read(after, groups)).rewards.count),
            **self.history.metrics(after),
        }
        return Step(baselines, advantages, after, shrinkage, metrics)

    def _normalised(self, batch: Batch, raw: np.ndarray) -> np.ndarray:
        """Zeros where all rewards of the batch are equal: groups of unequal size, or of several clusters, have unequal
        baselines, and dividing by the spread would blow their tiny differences up."""
        config = self.config
        constant = np.ptp(batch.rewards[batch.valid]) <= DEGENERATE * config.reward_range
        if constant and self.variant["normalise"] != "none":
            return np.zeros_like(raw)
        return self.parts["normalise"](raw, batch.valid, config.reward_range)

    def save(self, state: Any) -> dict:
        return state.to_dict()

    def restore(self, saved: dict) -> Any:
        state = self.history.restore(saved, self._bounds())
        if state.to_dict() != saved:  # a key that is missing, or that nobody reads
            raise ValueError(f"it has {sorted(saved)}, and would be saved otherwise")
        return state

    def _bounds(self) -> Bounds:
        config, range_of = self.config, (-np.inf, np.inf)
        if self.variant["prior"] == "beta_binomial":  # takes no other rewards
            range_of = config.fail_reward, config.pass_reward
        elif config.reward_clip_range:
            range_of = config.reward_clip_range
        return Bounds(config.n_samples_per_prompt, *range_of, weighted=self.variant["weights"] != "none")

    def identity(self) -> dict:
        """Raw τ² depends on G, the moments on the reward's scale."""
        return {**super().identity(), "variant": presets.stored(self.variant)}
