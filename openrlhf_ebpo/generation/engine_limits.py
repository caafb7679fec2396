"""How long a training waits for its rollout engines, and the error of an engine that takes longer."""

from openrlhf_ebpo.errors import ReportedError

# Together below the 60 minutes that upstream gives a collective call (`DeepspeedStrategy.setup_distributed`): while
# rank 0 waits for the engines, the other ranks wait for rank 0 in a barrier, and NCCL's watchdog aborts them without a
# cause.
LOAD_SECONDS = 45 * 60.0
JOIN_SECONDS = 10 * 60.0


class EngineError(ReportedError, RuntimeError):
    """A rollout engine did not start, or did not join the weight-sync group; the message says which limit passed."""
