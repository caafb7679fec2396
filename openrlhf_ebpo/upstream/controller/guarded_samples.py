"""A samples generator that acts on failed rewards, which arrive with their responses (rollout/guarded_rewards.py).

Under an estimator that is computed here the sample is excluded (advantage 0, no tokens trained) and counted;
OpenRLHF's own cannot leave a sample out, so they stop with the error.
"""

from __future__ import annotations

import logging
import math

import torch

from openrlhf_ebpo.estimator import registry
from openrlhf_ebpo.rewards.processes.reward_values import ERROR_KEY, RewardError, finite_number
from openrlhf_ebpo.rewards.reward_settings import RewardSettings

logger = logging.getLogger(__name__)

INFO_KEY = "ebpo_reward_error"  # in Experience.info: a list of one string, "" if the reward is valid


class GuardedSamplesGenerator:
    """Mixin over SamplesGenerator: turns a failed reward into NaN and its text under an estimator computed here, into
    an error otherwise."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._limited = [
            engine.limit_rewards.remote(RewardSettings.from_args(self.args)) for engine in self.vllm_engines
        ]

    def _generate_vllm(self, *args, **kwargs):
        import ray

        while self._limited:  # not while the engines start: upstream starts the models meanwhile
            ray.get(self._limited.pop())
        return super()._generate_vllm(*args, **kwargs)

    def _process_response_into_experience(self, response, **kwargs):
        error = response.get(ERROR_KEY)
        if error is None and self.args.train.agent_func_path:  # agents' rewards are checked here
            try:
                finite_number(response.get("reward"), "reward")
            except RewardError as found:
                error = str(found)
        excludes = registry.computed_here(self.args.algo.advantage.estimator)
        if error is not None and not excludes:
            raise RewardError(
                f"the reward of a response failed: {error}\nOnly an estimator that openrlhf_ebpo computes "
                "(--advantage_estimator ebpo, or your own) can continue without it. "
                f"Prompt: {response['prompt'][:200]!r}"
            )
        if error is not None:
            logger.warning("a reward failed, its response is left out: %s", error)
            # without a score the dynamic filter lets the complete group pass: its other samples count, and so does this
            # error
            response = {**response, "reward": math.nan, "scores": None}
        experience = super()._process_response_into_experience(response, **kwargs)
        if excludes:
            experience.info[INFO_KEY] = [error or ""]
        # generated tokens alone: upstream counts an agent's tool output too, and the overlong penalty punishes it
        experience.response_length = experience.action_mask.sum(-1)
        return experience

    def generate_eval_samples(self, **kwargs):
        """Evaluation counts a failed reward as a failed response, and says how many there were."""
        samples = super().generate_eval_samples(**kwargs)
        failed = [sample for sample in samples if any(sample.info.get(INFO_KEY, ()))]
        for sample in failed:
            sample.rewards = torch.full_like(sample.rewards, self.args.algo.advantage.ebpo.fail_reward)
        if failed:
            logger.warning(
                "evaluation: the reward of %d of %d responses failed and counts as the fail reward; first error: %s",
                len(failed),
                len(samples),
                failed[0].info[INFO_KEY][0],
            )
        return samples
