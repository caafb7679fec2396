"""Return the log-probabilities of sampled tokens from the rollout engines, to compare with the trainer
(upstream/controller/mismatch.py).

OpenRLHF asks vLLM for these log-probabilities only where it corrects with them. Here a few responses of every batch
have them,
always: that is enough for a mean over tokens, and of the rest neither vLLM's output loop nor Ray carries any.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from openrlhf_ebpo.upstream.rollout.guarded_rewards import GuardedMultiTurnExecutor, GuardedSingleTurnExecutor

MAX_RESPONSES, MIN_RESPONSES = 64, 8  # responses of an engine
TOKENS = 1 << 16  # of these responses at most: vLLM's output loop takes 9 µs more for each
SAMPLED_TOKEN_ONLY = 0  # vLLM's number of further tokens
PROCESSED = "processed_logprobs"  # vLLM's mode: after temperature and top_p


class MeasuredRolloutActor:
    """Mixin over RolloutRayActor: the first responses of a batch come with the log-probabilities of their tokens.

    vLLM's are those before temperature and top_p, which at temperature 1 are what the trainer computes; at another one
    the engine has to be made for it (arguments.py).
    """

    _measuring = 0

    async def generate_responses(
        self, prompt, label, sampling_params, max_length, *args, num_samples=1, measured=True, **kwargs
    ):
        """Generate. measured: there is a trainer to compare with."""
        with self._asking(sampling_params, max_length, num_samples) if measured else contextlib.nullcontext():
            return await super().generate_responses(
                prompt, label, sampling_params, max_length, *args, num_samples=num_samples, **kwargs
            )

    @contextlib.contextmanager
    def _asking(self, sampling_params, max_length: int, responses: int) -> Iterator[None]:
        asks = self._measuring < max_measured(max_length) and self._may_ask(sampling_params)
        if asks:
            sampling_params.logprobs = SAMPLED_TOKEN_ONLY  # Ray has brought a copy
            self._measuring += responses
        try:
            yield
        finally:
            self._measuring -= responses * asks

    def _may_ask(self, sampling_params) -> bool:
        """Return True for upstream's executors, which take log-probabilities; of others that is unknown.

        They are known by our mixins: Ray brings this class with copies of its executors' classes.
        """
        comparable = sampling_params.temperature == 1 or self.kwargs.get("logprobs_mode") == PROCESSED
        known = isinstance(self.executor, (GuardedSingleTurnExecutor, GuardedMultiTurnExecutor))
        return sampling_params.logprobs is None and comparable and known


def max_measured(max_length: int) -> int:
    """Count the responses that are measured, of that many tokens at most."""
    return min(MAX_RESPONSES, max(MIN_RESPONSES, TOKENS // max_length))
