"""The prior in and beside checkpoints, and saving that a crash cannot turn into a loss."""

from __future__ import annotations

import functools
import gc
import json
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from openrlhf_ebpo.config import EBPOConfig
from openrlhf_ebpo.files import unlink_shared, write_json, write_text
from openrlhf_ebpo.prior import WAY_OUT, Prior, PriorMismatch, read_prior

STATE_KEY = "ebpo_prior"  # in DeepSpeed's client_states
FILE = "prior.json"


def starting_prior(states: dict, config: EBPOConfig, ckpt_path: str) -> Prior:
    """The prior that training begins with, given the checkpoint's states.

    A checkpoint's own prior comes first, so that a command can be repeated to resume; then
    --algo.advantage.ebpo.init_prior; a run that starts at step 0 without either starts empty.

    Raises:
        PriorMismatch: resuming without a prior, or with one of another estimator.
    """
    resumed = states.get("global_step", 0) > 0
    if resumed and STATE_KEY in states and not config.reset_prior:
        return Prior.from_state_dict(states[STATE_KEY], config.identity(), f"the checkpoint in {ckpt_path}")
    if config.init_prior:
        return read_prior(config.init_prior, config.identity())
    if resumed and not config.reset_prior:
        raise PriorMismatch(f"the checkpoint in {ckpt_path} was saved by another estimator: no prior in it. {WAY_OUT}")
    return Prior()


def latest_checkpoint(ckpt_path: str | Path) -> Path | None:
    """Directory of the actor's checkpoint that resuming loads, or None where there is none."""
    actor = Path(ckpt_path) / "_actor"
    try:
        tag = (actor / "latest").read_text().strip()
    except FileNotFoundError:
        return None
    return actor / tag if tag else None


class PolicyWithPrior:
    """Mixin over PolicyModelActor: prior.json beside every exported model.

    (Beside a DeepSpeed checkpoint it is written by `save_then_rotate`, before the checkpoint counts.)
    """

    _prior: dict | None = None

    def remember_prior(self, state: dict) -> None:
        """Called by the trainer when it is done: the final export has no client_states."""
        self._prior = state

    def save_checkpoint(self, tag, client_states=None, **kwargs):
        self._prior = (client_states or {}).get(STATE_KEY, self._prior)
        super().save_checkpoint(tag, client_states, **kwargs)
        if self.save_hf_ckpt:
            self._write_prior(os.path.join(self.strategy.args.ckpt.path, f"{tag}_hf"))

    def save_model(self):
        if self.strategy.is_rank_0():
            unlink_shared(self.strategy.args.ckpt.output_dir)
        super().save_model()
        self._write_prior(self.strategy.args.ckpt.output_dir)

    def _write_prior(self, directory: str) -> None:
        if self._prior and self.strategy.is_rank_0():
            write_json(os.path.join(directory, FILE), self._prior)


def save_then_rotate(original):
    """Replacement of DeepspeedStrategy.save_ckpt: the new checkpoint is complete, and `latest` names it, before an
    old one goes. It needs room for one checkpoint more than upstream's."""

    @functools.wraps(original)
    def save_ckpt(
        self,
        model,
        save_dir,
        tag=None,
        max_num=3,
        max_mem=1000,
        client_state=None,
        save_latest=True,
        metric_value=None,
        metric_key=None,
    ):
        from openrlhf.utils.distributed_util import torch_dist_barrier_and_cuda_sync

        client_state = client_state or {}
        tag = tag or f"global_step{model.global_steps}"
        model.save_checkpoint(save_dir, tag=tag, client_state=client_state, save_latest=False)
        torch_dist_barrier_and_cuda_sync()
        if self.is_rank_0():
            directory = os.path.join(save_dir, tag)
            self._write_ckpt_metric(directory, metric_value, metric_key=metric_key)
            if STATE_KEY in client_state:
                write_json(os.path.join(directory, FILE), client_state[STATE_KEY])
            if save_latest:
                write_text(os.path.join(save_dir, "latest"), tag)
            for old in checkpoints_to_delete(saved_checkpoints(self, save_dir), tag, max_num, max_mem * 1024**3):
                self.print(_delete(os.path.join(save_dir, old)))
        torch_dist_barrier_and_cuda_sync()
        gc.collect()

    return save_ckpt


def _delete(checkpoint: str) -> str:
    """What happened, in words. A network disk that will not delete is no reason to end a training."""
    try:
        shutil.rmtree(checkpoint)
    except OSError as error:
        return f"warning: the old checkpoint {checkpoint} cannot be deleted ({error}); the next save tries again"
    return f"Deleted checkpoint {checkpoint}, a newer one is complete"


class SavedCheckpoint(NamedTuple):
    tag: str
    metric: float | None
    modified: float
    size: int


def saved_checkpoints(strategy, save_dir: str) -> list[SavedCheckpoint]:
    return [
        SavedCheckpoint(
            path.name,
            strategy._read_ckpt_metric(str(path)),
            path.stat().st_mtime,
            sum(f.stat().st_size for f in path.rglob("*") if f.is_file()),
        )
        for path in Path(save_dir).iterdir()
        if path.is_dir()
    ]


def checkpoints_to_delete(saved: Iterable[SavedCheckpoint], new: str, max_num: int, max_bytes: float) -> list[str]:
    """Upstream's order: a new best replaces the old best; of the others those without a metric go first, then the
    worst, then the oldest, until at most `max_num` are left within `max_bytes`. Never `new` itself."""
    saved = list(saved)
    best = [c for c in saved if c.tag.startswith("best")]
    delete = [c.tag for c in best if c.tag != new] if new.startswith("best") else []
    regular = [c for c in saved if not c.tag.startswith("best")]
    candidates = sorted(
        (c for c in regular if c.tag != new),
        key=lambda c: (c.metric is not None, c.metric if c.metric is not None else 0.0, c.modified),
    )
    total = sum(c.size for c in saved if c.tag not in delete)
    count = len(regular)
    limit = count if new.startswith("best") else max(max_num, 1)
    for candidate in candidates:
        if count <= limit and total <= max_bytes:
            break
        delete.append(candidate.tag)
        count -= 1
        total -= candidate.size
    return delete


def stored_prior(ckpt_path: str | Path) -> dict | None:
    """prior.json of the checkpoint that resuming would load, for an early check; None where it cannot be read (what
    counts is the copy inside the checkpoint)."""
    latest = latest_checkpoint(ckpt_path)
    try:
        return json.loads((latest / FILE).read_text()) if latest else None
    except (OSError, ValueError):
        return None
