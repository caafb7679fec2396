"""The rollout engine as training needs it: with vLLM's defaults for offline work, a model's own code only as asked, and
the log-probabilities of sampled tokens, to compare with the trainer (upstream/controller/mismatch.py).

OpenRLHF asks vLLM for log-probabilities only where it corrects with them. Here a few responses of every batch have
them, always: that is enough for a mean over tokens, and of the rest neither vLLM's output loop nor Ray carries any.
"""

from __future__ import annotations

import functools
import logging
import os

from openrlhf_ebpo.extension import models_trusted
from openrlhf_ebpo.upstream.rollout.guarded_rewards import GuardedMultiTurnExecutor, GuardedSingleTurnExecutor

MAX_RESPONSES, MIN_RESPONSES = 64, 8  # responses of an engine
TOKENS = 1 << 16  # of these responses at most: vLLM's output loop takes 9 µs more for each
SAMPLED_TOKEN_ONLY = 0  # vLLM's number of further tokens
PROCESSED = "processed_logprobs"  # vLLM's mode: after temperature and top_p
AT_TEMPERATURE = "OPENRLHF_EBPO_AT_TEMPERATURE"  # set where rollouts have another temperature than 1


def offline_defaults(create_engine_config):
    """Replace EngineArgs.create_engine_config: an engine without a server is configured as vLLM's class LLM is, which
    also keeps no statistics; here it keeps those that its log shows."""

    @functools.wraps(create_engine_config)
    def configured_as_llm(self, usage_context=None, *args, **kwargs):
        from vllm.usage.usage_lib import UsageContext

        if usage_context in (None, UsageContext.ENGINE_CONTEXT):
            usage_context = UsageContext.LLM_CLASS
            self.disable_log_stats |= not logging.getLogger("vllm").isEnabledFor(logging.INFO)
        return create_engine_config(self, usage_context, *args, **kwargs)

    return configured_as_llm


class EngineTrustsAsAsked:
    """Mixin over RolloutRayActor: vLLM's core may be a process that no hook of ours reaches, so its argument says
    it."""

    async def __init__(self, *args, **kwargs):
        await super().__init__(*args, **{**kwargs, "trust_remote_code": models_trusted()})


class MeasuredRolloutActor:
    """Mixin over RolloutRayActor: the first responses of a batch come with the log-probabilities of their tokens.

    vLLM's are those before temperature and top_p, which at temperature 1 are what the trainer computes. At another one
    the engine is made for those after it, which are then computed for every token.
    """

    _measuring = 0

    async def __init__(self, *args, **kwargs):
        mode = {"logprobs_mode": PROCESSED} if os.environ.get(AT_TEMPERATURE) else {}
        await super().__init__(*args, **{**mode, **kwargs})

    async def generate_responses(
        self, prompt, label, sampling_params, max_length, *args, num_samples=1, measured=True, **kwargs
    ):
        """Generate. measured: there is a trainer to compare with.

        Only upstream's executors are known to take log-probabilities. They are known by our mixins: Ray brings this
        class with copies of its executors' classes.
        """
        asks = (
            measured
            and sampling_params.logprobs is None
            and (sampling_params.temperature == 1 or self.kwargs.get("logprobs_mode") == PROCESSED)
            and isinstance(self.executor, (GuardedSingleTurnExecutor, GuardedMultiTurnExecutor))
            and self._measuring < max_measured(max_length)
        )
        if asks:
            sampling_params.logprobs = SAMPLED_TOKEN_ONLY  # Ray has brought a copy
            self._measuring += num_samples
        try:
            return await super().generate_responses(
                prompt, label, sampling_params, max_length, *args, num_samples=num_samples, **kwargs
            )
        finally:
            self._measuring -= num_samples * asks


def max_measured(max_length: int) -> int:
    """Count the responses that are measured, of that many tokens at most."""
    return min(MAX_RESPONSES, max(MIN_RESPONSES, TOKENS // max_length))
