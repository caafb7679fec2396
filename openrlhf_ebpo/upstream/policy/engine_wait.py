"""The policy waits for its rollout engines before it makes the weight-sync group."""

from __future__ import annotations

from openrlhf_ebpo.upstream.engine_errors import LOAD_SECONDS, EngineError


class BoundedEngineWait:
    """Mixin over ActorPPOTrainer."""

    def _init_vllm_sync_group(self, backend: str) -> None:
        """Raises EngineError where the engines have not started within LOAD_SECONDS."""
        import ray

        up = [engine.get_num_unfinished_requests.remote() for engine in self.vllm_engines]
        try:
            ray.get(up, timeout=LOAD_SECONDS)
        except ray.exceptions.GetTimeoutError:
            raise EngineError(
                f"the rollout engines did not start within {LOAD_SECONDS / 60:.0f} minutes after the policy had loaded"
            ) from None
        super()._init_vllm_sync_group(backend)
