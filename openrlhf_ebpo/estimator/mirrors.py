"""OpenRLHF's own estimators on a Batch, for replay, benches and pages: in training OpenRLHF computes them.

Written after openrlhf/trainer/ppo_utils/experience_maker.py, compute_advantages_and_returns, of 0.11.2, without KL in
the reward and with its default settings: γ = 1, and the reward less its baseline is cut to ±10 or --reward.clip_range
before anything else is done with it. It computes in float32, and differs here by the rounding. A group of equal rewards
has 0 under `group_norm` here, where OpenRLHF's rounding can give ±0.9. Excluded responses are left out; under these
estimators OpenRLHF has none.

`reinforce` is REINFORCE++ (arXiv 2501.03262) as its authors, who are OpenRLHF's, have it: no baseline, then
standardised over the tokens of the batch. `gae` needs a critic's values, and has no mirror.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from openrlhf_ebpo.estimator.advantage import grpo_advantages
from openrlhf_ebpo.estimator.contract import Batch, Estimator, Step
from openrlhf_ebpo.estimator.groups import others_in_group, weighted_mean
from openrlhf_ebpo.estimator.shrinkage import group_mean

if TYPE_CHECKING:
    from openrlhf_ebpo.estimator.contract import PerGroup, PerResponse

CLIP_RANGE = (-10.0, 10.0)  # --reward.clip_range where it is not given
SMALLEST_VARIANCE = 1e-8


class DrGRPO(Estimator):
    """r − b, cut, and the base of the others. `baselines` says what b is: here the group's mean."""

    def baselines(self, batch: Batch) -> PerGroup | PerResponse:
        return group_mean(batch.rewards, batch.valid)

    def step(self, batch: Batch, state: dict) -> Step:
        baselines = self.baselines(batch)
        cut = np.clip(self.raw(batch, baselines), *(self.config.reward_clip_range or CLIP_RANGE))
        return Step(baselines, self.normalised(np.where(batch.valid, cut, 0.0), batch), state)

    def raw(self, batch: Batch, baselines: PerGroup | PerResponse) -> PerResponse:
        return batch.rewards - baselines

    def normalised(self, advantages: PerResponse, batch: Batch) -> PerResponse:
        return advantages


class ReinforceBaseline(DrGRPO):
    """Then (A − mean) / std over the action tokens of the batch: each response counts with its length."""

    def normalised(self, advantages: PerResponse, batch: Batch) -> PerResponse:
        everything = (1, -1)
        lengths, valid = batch.lengths.reshape(everything), batch.valid.reshape(everything)
        centred = advantages - weighted_mean(advantages.reshape(everything), lengths, valid)
        variance = weighted_mean(centred.reshape(everything) ** 2, lengths, valid)
        return centred / np.sqrt(np.maximum(variance, SMALLEST_VARIANCE))


class GroupNorm(DrGRPO):
    def raw(self, batch: Batch, baselines: PerGroup) -> PerResponse:
        return grpo_advantages(batch.rewards, batch.valid, self.config.reward_range)


class RLOO(DrGRPO):
    def baselines(self, batch: Batch) -> PerResponse:
        return others_in_group(batch.rewards, batch.valid)


class Reinforce(ReinforceBaseline):
    def baselines(self, batch: Batch) -> PerGroup:
        return np.zeros((len(batch.rewards), 1))


class FlashReinforce(DrGRPO):
    def baselines(self, batch: Batch) -> PerGroup:
        return np.full((len(batch.rewards), 1), batch.rewards[batch.valid].mean())
