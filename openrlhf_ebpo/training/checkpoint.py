"""The estimator's state in and beside checkpoints, and saving that a crash cannot turn into a loss."""

from __future__ import annotations

import contextlib
import functools
import gc
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from openrlhf_ebpo.estimator import stored
from openrlhf_ebpo.estimator.contract import Estimator
from openrlhf_ebpo.files import sync_folder, unlink_shared, write_json, write_text
from openrlhf_ebpo.record import manifest, resume
from openrlhf_ebpo.record.changes import optimizer_settings
from openrlhf_ebpo.record.run_log import PRIOR
from openrlhf_ebpo.redact import redacted
from openrlhf_ebpo.training.offload_buffers import without_offload_buffers
from openrlhf_ebpo.training.save_times import exports

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
        self.save_hf_ckpt = exports(self.strategy.args.ckpt, tag)
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
        directory, prior = Path(save_dir, tag), client_state.get(STATE_KEY)
        if self.is_rank_0():
            resume.begin_checkpoint(directory, groups_of(self, directory.parent))
        torch_dist_barrier_and_cuda_sync()
        with written_by(model) as paths, without_offload_buffers(model):
            model.save_checkpoint(save_dir, tag=tag, client_state=client_state, save_latest=False)
        files = of_all_ranks(synced(directory, paths))
        if self.is_rank_0():
            self._write_ckpt_metric(str(directory), metric_value, metric_key=metric_key)
            if prior:
                write_json(directory / PRIOR, prior)
            facts = {"attempt": ckpt_setting(self.args, "attempt"), "settings": optimizer_settings(redacted(self.args))}
            manifest.complete(directory, files, prior, **facts)
            if save_latest:
                write_text(Path(save_dir, "latest"), tag)
            rotate(self, directory, max_num, max_mem * 1024**3)
        torch_dist_barrier_and_cuda_sync()
        gc.collect()

    return save_ckpt


@contextlib.contextmanager
def written_by(model) -> Iterator[list[Path]]:
    """The files that this rank writes inside: what it has just written, it reads from memory, on a shared disk too."""
    engine, paths = getattr(model, "checkpoint_engine", None), []
    if engine is None:
        yield paths
        return
    save = engine.save

    def noted(state_dict, path, *args, **kwargs):
        paths.append(Path(path))
        return save(state_dict, path, *args, **kwargs)

    engine.save = noted
    try:
        yield paths
    finally:
        del engine.save


def synced(directory: Path, paths: Iterable[Path]) -> dict[str, manifest.Saved]:
    """Sizes and checksums of these files, once all of the folder is on disk. Done by every rank: fsync reaches the writes of
    its own node only. The disk is waited for while checksums are computed."""
    with ThreadPoolExecutor(1) as thread:
        on_disk = thread.submit(sync_folder, directory)
        files = manifest.listed(directory, paths)
        on_disk.result()
    return files


def of_all_ranks(files: dict[str, manifest.Saved]) -> dict[str, manifest.Saved]:
    """Every rank's, in every rank; no rank comes back before all have called."""
    import torch.distributed

    if not torch.distributed.is_initialized():
        return files
    found: list = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(found, files)
    return {name: saved for each in found for name, saved in each.items()}


def ckpt_setting(args, name: str):
    """One of this package's settings of checkpoints; None where the command has it not (train_sft)."""
    return getattr(getattr(args, "ckpt", None), name, None)


def groups_of(strategy, folder: Path) -> list[Path]:
    """The folders that belong together with this one (train_sft has but one)."""
    if folder.name not in ("_actor", "_critic"):
        return [folder]
    return resume.groups(folder.parent, strategy.args.algo.advantage.estimator)


def rotate(strategy, new: Path, max_num: int, max_bytes: float) -> None:
    """Policy and critic save at the same time, and can only go on from the same step: whoever is done last deletes for
    both. Only whole checkpoints count and make room; what is damaged goes when it is older than all that are kept."""
    folders = [folder for folder in groups_of(strategy, new.parent) if folder.is_dir()]
    if resume.whole_parts(folders, new.name) != dict.fromkeys(folders, new.name):
        return
    whole = [tag for tag in resume.tags_of(folders) if resume.whole_parts(folders, tag)]
    for folder in folders:
        same = resume.replaced(folder / new.name)
        for old in [*resume.interrupted_before(folder, new.name), *([same.name] if same.is_dir() else [])]:
            strategy.print(_delete(folder / old))  # first, for they must not count
        saved = saved_checkpoints(strategy, folder, whole)
        old = checkpoints_to_delete(saved, new.name, max_num, max_bytes)
        kept = [each.tag for each in saved if each.tag not in old and not each.tag.startswith(resume.BEST)]
        for tag in [*old, *damaged_before(folder, whole, kept, max_num)]:
            strategy.print(_delete(folder / tag))


def damaged_before(folder: Path, whole: Iterable[str], kept: list[str], max_num: int) -> list[str]:
    """Damaged checkpoints that are older than all of as many whole ones as are kept."""
    if len(kept) < max(max_num, 1):
        return []
    oldest = min(map(resume.step_of, kept))
    return [tag for tag in resume.tags_of([folder]) if tag not in whole and resume.step_of(tag) < oldest]


def load_newest_whole(original):
    """Replacement of DeepspeedStrategy.load_ckpt: the newest whole checkpoint, whatever `latest` names.

    Raises:
        CheckpointError: in every rank; there are checkpoints and none is whole, or it cannot be loaded.
    """

    @functools.wraps(original)
    def load_ckpt(self, model, load_dir, tag=None, *args, **kwargs):
        if tag is None:
            folders = groups_of(self, Path(load_dir))
            found = of_rank_0(self, lambda: checkpoint_to_load(self.args, folders))
            found.check()
            if found.tag is None:
                self.print(f"Warning: no checkpoint is complete in {load_dir}: nothing is loaded")
                return None, {}
            tag = found.parts[Path(load_dir)]
            for line in (*found.warnings(), f"Resuming from {load_dir}/{tag}"):
                self.print(line)
        try:
            with without_offload_buffers(model):
                return original(self, model, load_dir, tag, *args, **kwargs)
        except Exception as error:
            raise resume.CheckpointError(
                f"the checkpoint {load_dir}/{tag} cannot be loaded ({type(error).__name__}: {error}). Either it was saved "
                "with other settings (number of GPUs, ZeRO stage, model): repeat the command with those. Or it is damaged: "
                "move it away, and the same command goes on from the one before, if there is one."
            ) from error

    return load_ckpt


def checkpoint_to_load(args, folders: list[Path]) -> resume.Search:
    """The driver's choice, whose checksums it has compared; searched for anew where this node's disk does not have it so, or
    where its client state cannot be read."""
    if verified := ckpt_setting(args, "verified"):
        if found := resume.confirmed(folders, verified, unreadable_state):
            return found
        print(f"{verified[0]}, which the driver found, is not complete here: searching {folders[0]}", flush=True)
    return resume.newest_whole(folders, ckpt_setting(args, "load_step"), contents=True, problem=unreadable_state)


CLIENT_STATE = (
    "episode",
    "global_step",
    "total_consumed_prompts",
    "data_loader_state_dict",
)  # upstream's `fit` reads them


def unreadable_state(checkpoint: Path) -> str | None:
    """Why upstream's trainer could not resume from this checkpoint of a policy, as far as its client state tells. Weights
    stay on the disk."""
    import torch

    path = min(checkpoint.glob("*model_states.pt"), default=None)
    if path is None or checkpoint.parent.name != "_actor":  # on another node's own disk; train_sft has no such state
        return None
    try:
        states = torch.load(path, map_location="cpu", mmap=True, weights_only=False)
        missing = [name for name in CLIENT_STATE if name not in states]
    except Exception as error:
        return f"{path.name} cannot be read ({type(error).__name__}: {str(error)[:200]})"
    return f"its client state lacks {', '.join(missing)}" if missing else None


def of_rank_0(strategy, decide: Callable[[], resume.Search]) -> resume.Search:
    """Rank 0's decision, broadcast to all ranks: a shared file system may show each a different state."""
    import torch.distributed

    found = [decide() if strategy.is_rank_0() else None]
    if torch.distributed.is_initialized():
        torch.distributed.broadcast_object_list(found)
    return found[0]


def _delete(checkpoint: Path) -> str:
    """Delete a checkpoint, and return a message. A file system that refuses is no reason to end a training; a deletion that
    is interrupted leaves nothing that looks like a checkpoint."""
    try:
        os.stat(checkpoint)
        manifest.begin(checkpoint)
        for path in checkpoint.iterdir():
            if path.name != manifest.MANIFEST:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
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


def saved_checkpoints(strategy, folder: Path, tags: Iterable[str]) -> list[SavedCheckpoint]:
    """Those of `tags` that lie in the folder (train_sft's exports lie beside its checkpoints)."""
    looked_at = (_looked_at(strategy, folder / tag) for tag in tags)
    return [saved for saved in looked_at if saved]


def _looked_at(strategy, path: Path) -> SavedCheckpoint | None:
    """None where the critic's process or the policy's deletes it at this moment."""
    try:
        size = sum(f.stat().st_size for f in path.rglob("*") if f.is_file())
        return SavedCheckpoint(path.name, strategy._read_ckpt_metric(str(path)), path.stat().st_mtime, size)
    except FileNotFoundError:
        return None


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


def stored_prior(found: resume.Search) -> dict | None:
    """prior.json of the checkpoint that resuming would load, for an early check; None where it cannot be read (what
    counts is the copy inside the checkpoint)."""
    try:
        return json.loads((found.folders[0] / found.tag / PRIOR).read_text()) if found.tag else None
    except (OSError, ValueError):
        return None
