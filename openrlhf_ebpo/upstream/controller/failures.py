"""Failures that driver and trainer name: a rollout engine that has died, and a training step that was not healthy
(health.py), whose batch and findings are kept in the run directory."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow.parquet as pq

from openrlhf_ebpo.errors import HealthError
from openrlhf_ebpo.files import replace_file, write_json
from openrlhf_ebpo.redact import redacted_text
from openrlhf_ebpo.upstream.engine_errors import REPORT_SECONDS, read_cause

REMEDIES = (
    "Common remedies: a lower --actor.adam.lr (--critic.adam.lr), a smaller --actor.max_norm, advantages that are not "
    "extreme. A resumed run takes the learning rate from its checkpoint: for another one start a "
    "new run from the model that was exported with it (--ckpt.save_hf)."
)
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


@contextmanager
def save_failed_batch(trainer, step: int) -> Iterator[None]:
    """Context manager of the trainer: where the step is not healthy, its batch and the findings are kept in the run
    directory.

    Raises:
        HealthError: with the step, the findings, the place, and what to do.
    """
    try:
        yield
    except HealthError as error:
        cause = getattr(error, "cause", error)  # as the actor raised it
        wanted = trainer.run_log.run_dir / f"failed_step-{step:06d}"
        # the same step may fail again after a resume
        names = itertools.chain([wanted], (wanted.with_name(f"{wanted.name}.{n}") for n in itertools.count(2)))
        folder = next(folder for folder in names if not folder.exists())
        try:
            with replace_file(folder / "rollouts.parquet") as temporary:
                pq.write_table(trainer.experience_maker.rollouts.table(step, trainer.tokenizer), temporary)
            report = {"step": step, "error": redacted_text(str(cause)), "ranks": cause.report}
            write_json(folder / "report.json", report)
            kept = f"Its batch and what was measured are in {folder} (rollouts.parquet, report.json)"
        except OSError as problem:  # a full disk must not hide what has happened
            kept = f"Its batch could not be kept in {folder} ({problem})"
        raise HealthError(
            f"step {step}: {cause}.\n{kept}. Its weights were not synced, and no checkpoint was changed.\n{REMEDIES}"
        ) from None
