"""Time limits of a training for its rollout engines, and the reading of their errors and deaths."""

from __future__ import annotations

from openrlhf_ebpo.errors import ReportedError, without_traceback

# Together below the 60 minutes that upstream gives a collective call (`DeepspeedStrategy.setup_distributed`): while
# rank 0 waits for the engines, the other ranks wait for rank 0 in a barrier, and NCCL's watchdog aborts them without a
# cause.
LOAD_SECONDS = 45 * 60.0
JOIN_SECONDS = 10 * 60.0
REPORT_SECONDS = 5.0  # from the failure of a call to the answer of who watches the engine


class EngineError(ReportedError, RuntimeError):
    """A rollout engine did not start, did not join the weight-sync group, or has died; the message says why."""


def read_cause(death) -> str:
    """Return the cause, on one line, from a call of `death` or an actor whose process is gone."""
    import ray

    try:
        return ray.get(death, timeout=REPORT_SECONDS)
    except ray.exceptions.RayError as error:
        return without_traceback(getattr(error, "cause", None) or error)


def is_engine_death(error: BaseException) -> bool:
    """Return whether an error of a call is the end of the actor's process or of vLLM's EngineCore."""
    import ray
    from vllm.v1.engine.exceptions import EngineDeadError

    return isinstance(error, (ray.exceptions.RayActorError, EngineDeadError))
