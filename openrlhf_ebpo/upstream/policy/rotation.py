"""Choose and delete the checkpoints that make room for a new one, once that is complete."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from openrlhf_ebpo.run import manifest, resume


class SavedCheckpoint(NamedTuple):
    """size: bytes in the larger of the policy's folder and the critic's."""

    tag: str
    metric: float | None
    modified: float
    size: int
    complete: bool = True


def rotate(strategy, groups: Sequence[Path], new: str, max_num: int, max_bytes: float) -> None:
    """Delete old checkpoints, of policy and critic alike. They save at the same time, and resume from the same step
    only: the one that is done last deletes for both.

    Args:
        groups: the policy's folder and the critic's.
        new: the tag that was just saved.
    """
    folders = [folder for folder in groups if folder.is_dir()]
    if resume.damage_of(folders, new):
        return
    saved = [_describe(strategy, folders, tag) for tag in resume.tags_of(folders)]
    for tag in checkpoints_to_delete(filter(None, saved), new, max_num, max_bytes):
        for folder in folders:
            if (folder / tag).is_dir():
                strategy.print(_delete(folder / tag))


def _describe(strategy, folders: Sequence[Path], tag: str) -> SavedCheckpoint | None:
    """None if the critic's process or the policy's deletes it at this moment."""
    paths = [folder / tag for folder in folders if (folder / tag).is_dir()]
    try:
        sizes = [sum(f.stat().st_size for f in path.rglob("*") if f.is_file()) for path in paths]
        metric, modified = strategy._read_ckpt_metric(str(paths[0])), paths[0].stat().st_mtime
        return SavedCheckpoint(tag, metric, modified, max(sizes), resume.damage_of(folders, tag) is None)
    except (FileNotFoundError, IndexError):
        return None


def checkpoints_to_delete(saved: Iterable[SavedCheckpoint], new: str, max_num: int, max_bytes: float) -> list[str]:
    """Upstream's order: a new best replaces the old best; of the others those without a metric go first, then the
    worst, then the oldest, until at most `max_num` are left within `max_bytes`. Before all of these go the damaged
    ones. Never `new` itself, nor a later step, which this run did not save."""
    step = resume.step_of(new)
    saved = [c for c in saved if step is None or (resume.step_of(c.tag) or 0) <= step]
    is_best = new.startswith(resume.BEST)
    delete = [c.tag for c in saved if is_best and c.tag.startswith(resume.BEST) and c.tag != new]
    regular = [c for c in saved if not c.tag.startswith(resume.BEST)]
    total = sum(c.size for c in saved if c.tag not in delete)
    excess = 0 if is_best else len(regular) - max(max_num, 1)
    candidates = (c for c in regular if c.tag != new)
    for c in sorted(candidates, key=lambda c: (c.complete, c.metric is not None, c.metric or 0.0, c.modified)):
        if excess <= 0 and total <= max_bytes:
            break
        delete.append(c.tag)
        excess -= 1
        total -= c.size
    return delete


def _delete(checkpoint: Path) -> str:
    """Delete a checkpoint, and return a message. A file system that refuses does not end a training; a deletion that is
    interrupted leaves an unfinished folder."""
    try:
        manifest.begin(checkpoint)
        for shard in checkpoint.glob("*.pt"):
            shard.unlink(missing_ok=True)
        shutil.rmtree(checkpoint)
    except OSError as error:
        if not checkpoint.is_dir():
            return f"{checkpoint} was deleted by the critic's process or the policy's"
        return f"warning: the old checkpoint {checkpoint} cannot be deleted ({error}); the next save tries again"
    return f"Deleted checkpoint {checkpoint}, a newer one is complete"
