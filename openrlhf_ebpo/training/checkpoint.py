"""The estimator's state in and beside checkpoints, and saving that a crash cannot turn into a loss."""

from __future__ import annotations

import functools
import gc
import json
import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from openrlhf_ebpo.estimator import stored
from openrlhf_ebpo.estimator.contract import Estimator
from openrlhf_ebpo.files import sync_folder, unlink_shared, write_json, write_text
from openrlhf_ebpo.record import resume
from openrlhf_ebpo.record.run_log import PRIOR

STATE_KEY = "ebpo_prior"  # in DeepSpeed's client_states


def starting_state(states: dict, estimator: Estimator, ckpt_path: str) -> Any:
    """The estimator's state that training begins with, given the checkpoint's states.

    A checkpoint's own comes first, so that a command can be repeated to resume; then --algo.advantage.ebpo.init_prior;
    a run that starts at step 0 without either starts with the initial one.

    Raises:
        PriorMismatch: resuming without a stored state, or with one of another estimator.
    """
    config = estimator.config
    resumed = states.get("global_step", 0) > 0
    if resumed and STATE_KEY in states and not config.reset_prior:
        return stored.unpack(estimator, states[STATE_KEY], f"the checkpoint in {ckpt_path}")
    if config.init_prior:
        return stored.read(estimator, config.init_prior)
    if resumed and not config.reset_prior:
        raise stored.PriorMismatch(
            f"the checkpoint in {ckpt_path} was saved by another estimator: no prior in it. {stored.WAY_OUT}"
        )
    return estimator.initial()


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
        from openrlhf_ebpo.training.lora import (
            adapter_as_safetensors,  # it imports torch, and readers of this module do not
        )

        if self.strategy.is_rank_0():
            adapter_as_safetensors(directory)
        if self._prior and self.strategy.is_rank_0():
            write_json(os.path.join(directory, PRIOR), self._prior)


def save_then_rotate(original):
    """Replacement of DeepspeedStrategy.save_ckpt: the new checkpoint is whole, and `latest` names it, before an old one
    is deleted. It needs disk space for one checkpoint more than upstream's."""

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
        directory = Path(save_dir, tag)
        if self.is_rank_0():
            resume.begin_checkpoint(directory)
        torch_dist_barrier_and_cuda_sync()
        model.save_checkpoint(save_dir, tag=tag, client_state=client_state, save_latest=False)
        sync_folder(directory)  # by every rank: fsync reaches the writes of its own node only
        torch_dist_barrier_and_cuda_sync()
        if self.is_rank_0():
            self._write_ckpt_metric(str(directory), metric_value, metric_key=metric_key)
            if STATE_KEY in client_state:
                write_json(directory / PRIOR, client_state[STATE_KEY])
            resume.complete_checkpoint(directory)
            if save_latest:
                write_text(Path(save_dir, "latest"), tag)
            rotate(self, directory, max_num, max_mem * 1024**3)
        torch_dist_barrier_and_cuda_sync()
        gc.collect()

    return save_ckpt


def groups_of(strategy, folder: Path) -> list[Path]:
    """The folders that belong together with this one (train_sft has but one)."""
    if folder.name not in ("_actor", "_critic"):
        return [folder]
    return resume.groups(folder.parent, strategy.args.algo.advantage.estimator)


def rotate(strategy, new: Path, max_num: int, max_bytes: float) -> None:
    """Policy and critic save at the same time, and can only go on from the same step: whoever is done last deletes for
    both."""
    folders = [folder for folder in groups_of(strategy, new.parent) if folder.is_dir()]
    if any(resume.damage(folder / new.name) for folder in folders):
        return
    for folder in folders:
        same = resume.replaced(folder / new.name)
        for old in [*resume.interrupted_before(folder, new.name), *([same.name] if same.is_dir() else [])]:
            strategy.print(_delete(str(folder / old)))  # first, for they must not count
        for old in checkpoints_to_delete(saved_checkpoints(strategy, str(folder)), new.name, max_num, max_bytes):
            strategy.print(_delete(str(folder / old)))


def load_newest_whole(original):
    """Replacement of DeepspeedStrategy.load_ckpt: the newest whole checkpoint, whatever `latest` names.

    Raises:
        CheckpointError: in every rank; there are checkpoints and none is whole, or it cannot be loaded.
    """

    @functools.wraps(original)
    def load_ckpt(self, model, load_dir, tag=None, *args, **kwargs):
        if tag is None:
            found = of_rank_0(self, lambda: resume.newest_whole(groups_of(self, Path(load_dir))))
            found.check()
            if found.tag is None:
                self.print(f"Warning: no checkpoint is complete in {load_dir}: nothing is loaded")
                return None, {}
            tag = found.tag
            for line in (*found.warnings(), f"Resuming from {load_dir}/{tag}"):
                self.print(line)
        try:
            return original(self, model, load_dir, tag, *args, **kwargs)
        except Exception as error:
            raise resume.CheckpointError(
                f"the checkpoint {load_dir}/{tag} cannot be loaded ({type(error).__name__}: {error}). Either it was saved "
                "with other settings (number of GPUs, ZeRO stage, model): repeat the command with those. Or it is damaged: "
                "move it away, and the same command goes on from the one before, if there is one."
            ) from error

    return load_ckpt


def of_rank_0(strategy, decide: Callable[[], resume.Search]) -> resume.Search:
    """Rank 0's decision, broadcast to all ranks: a shared file system may show each a different state."""
    import torch.distributed

    found = [decide() if strategy.is_rank_0() else None]
    if torch.distributed.is_initialized():
        torch.distributed.broadcast_object_list(found)
    return found[0]


def _delete(checkpoint: str) -> str:
    """Delete a checkpoint, and return a message. A file system that refuses is no reason to end a training."""
    try:
        shutil.rmtree(checkpoint)
    except FileNotFoundError:
        return f"{checkpoint} was deleted by the critic's process or the policy's"
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
        if path.is_dir() and resume.TAG.fullmatch(path.name)  # train_sft's exports lie beside its checkpoints
    ]


def checkpoints_to_delete(saved: Iterable[SavedCheckpoint], new: str, max_num: int, max_bytes: float) -> list[str]:
    """Upstream's order: a new best replaces the old best; of the others those without a metric go first, then the
    worst, then the oldest, until at most `max_num` are left within `max_bytes`. Never `new` itself, nor a later step:
    this run has not come so far, and nothing newer is there in its place."""
    step = resume.step_of(new)
    saved = [c for c in saved if step is None or (resume.step_of(c.tag) or 0) <= step]
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
    latest = resume.latest_checkpoint(ckpt_path, "ebpo")
    try:
        return json.loads((latest / PRIOR).read_text()) if latest else None
    except (OSError, ValueError):
        return None
