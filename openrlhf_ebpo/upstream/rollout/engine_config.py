"""Configure a rollout engine for offline work: it gets vLLM's default for it on its device. Upstream's engine is an
AsyncLLM, which without a server gets vLLM's fallback on every device."""

from __future__ import annotations

import functools
import logging

from openrlhf_ebpo.extension import models_trusted


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
