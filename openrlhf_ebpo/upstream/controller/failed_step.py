"""Keep the batch and the findings of a training step that was not healthy (health.py) in the run directory."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow.parquet as pq

from openrlhf_ebpo.errors import HealthError
from openrlhf_ebpo.files import replace_file, write_json
from openrlhf_ebpo.redact import redacted_text

REMEDIES = (
    "Common remedies: a lower --actor.adam.lr (--critic.adam.lr), a smaller --actor.max_norm, advantages that are not "
    "extreme. A resumed run takes the learning rate from its checkpoint: for another one start a "
    "new run from the model that was exported with it (--ckpt.save_hf)."
)


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
        folder = free_folder(trainer.run_log.run_dir / f"failed_step-{step:06d}")
        try:
            write_failed_step(folder, step, cause, trainer)
            kept = f"Its batch and what was measured are in {folder} (rollouts.parquet, report.json)"
        except OSError as problem:  # a full disk must not hide what has happened
            kept = f"Its batch could not be kept in {folder} ({problem})"
        raise HealthError(
            f"step {step}: {cause}.\n{kept}. Its weights were not synced, and no checkpoint was changed.\n{REMEDIES}"
        ) from None


def free_folder(wanted: Path) -> Path:
    """The same step may fail again after a resume."""
    names = itertools.chain([wanted], (wanted.with_name(f"{wanted.name}.{n}") for n in itertools.count(2)))
    return next(folder for folder in names if not folder.exists())


def write_failed_step(folder: Path, step: int, error: HealthError, trainer) -> None:
    rollouts = trainer.experience_maker.rollouts
    with replace_file(folder / "rollouts.parquet") as temporary:
        pq.write_table(rollouts.table(step, trainer.tokenizer), temporary)
    write_json(folder / "report.json", {"step": step, "error": redacted_text(str(error)), "ranks": error.report})
