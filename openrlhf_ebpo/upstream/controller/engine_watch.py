"""Watch the rollout engines from the driver: it waits until they have started, and names those that died."""

from __future__ import annotations

import functools

from openrlhf_ebpo.upstream.engine_errors import REPORT_SECONDS, read_cause

# In the driver: a call of `death` for each engine of its training. It begins inside upstream's `train`, which returns
# nothing to its caller, and ObjectRefs in `args` would be sent to every actor: so it is kept here.
_watched: list = []


def wait_for_engines_too(original):
    """Replacement of RayActorGroup.async_init_model_from_pretrained: who waits for the policy's models waits for its
    rollout engines too, until they have joined the weight-sync group, and they are watched from then on. `ray.get` of
    several calls raises as soon as one of them has failed."""

    @functools.wraps(original)
    def async_init_model_from_pretrained(self, strategy, pretrain, *more):
        models = original(self, strategy, pretrain, *more)
        engines = more[1] if len(more) > 1 else None  # the policy's group: steps, engines
        if not engines:
            return models
        _watched[:] = [engine.death.remote() for engine in engines]
        joins = syncs_in_a_group(strategy.args)
        return models + [(e.joined if joins else e.get_num_unfinished_requests).remote() for e in engines]

    return async_init_model_from_pretrained


def syncs_in_a_group(args) -> bool:
    """Decide as ActorPPOTrainer: engines that share the policy's GPUs get weights through CUDA's memory handles."""
    return not (args.vllm.sync_backend == "nccl" and args.train.colocate_all and not args.train.async_enable)


def find_deaths() -> str | None:
    """Name the engines of this driver's training that have died, with the causes; None where all live."""
    import ray

    if not _watched or not ray.is_initialized():
        return None
    first, _ = ray.wait(_watched, timeout=REPORT_SECONDS)
    ended, _ = ray.wait(_watched, num_returns=len(_watched), timeout=0) if first else ([], [])
    return "; ".join(f"rollout engine {_watched.index(death)} has died: {read_cause(death)}" for death in ended) or None
