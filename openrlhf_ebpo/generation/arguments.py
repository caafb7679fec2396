"""Set arguments of vLLM's engines beyond upstream's flags: how much they do at a time, and which log-probabilities they
give.

An engine gets vLLM's default for offline work on its device. Upstream's engine is an AsyncLLM, which without a server
gets vLLM's fallback on every device.
"""

from __future__ import annotations

import functools
import logging

from openrlhf_ebpo.generation.log_probs import PROCESSED


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


class MadeWith:
    """Stands in for RolloutRayActor: its engines get these arguments in addition to upstream's."""

    def __init__(self, actor_class, given: dict):
        self.actor_class, self.given = actor_class, given

    def options(self, **options):
        return MadeWith(self.actor_class.options(**options), self.given)

    def remote(self, **kwargs):
        return self.actor_class.remote(**{**self.given, **kwargs})


def set_arguments(temperature: float) -> None:
    """Set the engines' arguments, in the driver and before upstream makes them. Where rollouts have a temperature,
    their log-probabilities do too: they are then computed for every token."""
    from openrlhf.trainer.ray import vllm_engine

    if temperature != 1:
        vllm_engine.RolloutRayActor = MadeWith(vllm_engine.RolloutRayActor, {"logprobs_mode": PROCESSED})
