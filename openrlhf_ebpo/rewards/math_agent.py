"""Verifiable maths graded on the response's own tokens: `--train.agent_func_path math`.

The same reward, logs and settings as math.py. An agent knows where the response's tokens begin, so this works with
tokenizers that do not give a prompt back as they read it.
"""

from __future__ import annotations

import asyncio

from openrlhf.utils.agent import SingleTurnAgentExecutor

from openrlhf_ebpo.rewards.golds import gold_text
from openrlhf_ebpo.rewards.guard import ERROR_KEY, describe
from openrlhf_ebpo.rewards.math import extra_logs
from openrlhf_ebpo.rewards.pool import shared_pool


class AgentExecutor(SingleTurnAgentExecutor):
    """Upstream's single turn, with the reward computed here instead of by a reward function."""

    async def execute(self, prompt, label, sampling_params, max_length: int, hf_tokenizer, llm_engine, images=None):
        response = await super().execute(
            prompt, label, sampling_params, max_length, hf_tokenizer, llm_engine, images=images
        )
        (start, end), *_ = response["action_ranges"]
        text = hf_tokenizer.decode(response["observation_tokens"][start:end], skip_special_tokens=True)
        try:
            verdict = await asyncio.to_thread(lambda: shared_pool().grade(gold_text(label), text))
        except Exception as error:  # as with a reward function, it travels with its sample (guard.py)
            return {**response, ERROR_KEY: describe(error)}
        reward = float(verdict.correct)
        return {**response, "reward": reward, "scores": reward, "extra_logs": extra_logs(verdict)}
