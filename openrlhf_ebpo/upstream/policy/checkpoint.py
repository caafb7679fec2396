"""Save and load checkpoints so that a crash loses none; the estimator's state in them.

They leave out the host copies that DeepSpeed keeps of Adam's moments while a training sleeps (--ds.enable_sleep,
ZeRO-3). DeepSpeed 0.19.6, runtime/zero/offload_states.py, `offload_adam_states` keeps them in the optimizer's state, as
`exp_avg_offload_buffer` and `exp_avg_sq_offload_buffer`, and makes new ones only where the keys are missing. So they
are saved (twice the moments' size), and torch's `load_state_dict` moves them to the parameter's device like any other
state. From then on every offload copies the moments onto the GPU: 8 bytes a parameter and rank stay there.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from openrlhf_ebpo.files import sync_folder, write_json, write_text
from openrlhf_ebpo.redact import redacted
from openrlhf_ebpo.run import manifest, resume
from openrlhf_ebpo.run.changed_settings import optimizer_settings
from openrlhf_ebpo.run.run_log import PRIOR
from openrlhf_ebpo.upstream.policy.rotation import rotate
from openrlhf_ebpo.upstream.saving import CLIENT_STATE, STATE_KEY, is_exported

OFFLOAD_SUFFIX = "_offload_buffer"


class PolicyWithPrior:
    """Mixin over PolicyModelActor: prior.json in every exported model. Into a DeepSpeed checkpoint `save_then_rotate`
    writes it, before the checkpoint counts."""

    _prior: dict | None = None

    def remember_prior(self, state: dict) -> None:
        """Called by the trainer when it is done: the final export has no client_states."""
        self._prior = state

    def save_checkpoint(self, tag, client_states=None, **kwargs):
        self._prior = (client_states or {}).get(STATE_KEY, self._prior)
        self.save_hf_ckpt = is_exported(self.strategy.args.ckpt, tag)
        super().save_checkpoint(tag, client_states, **kwargs)
        if self.save_hf_ckpt:
            self._write_prior(os.path.join(self.strategy.args.ckpt.path, f"{tag}_hf"))

    def save_model(self):
        super().save_model()
        self._write_prior(self.strategy.args.ckpt.output_dir)

    def _write_prior(self, directory: str) -> None:
        from openrlhf_ebpo.upstream.policy.weight_sync import adapter_as_safetensors  # torch: readers do not load it

        if self.strategy.is_rank_0():
            adapter_as_safetensors(directory)
            if self._prior:
                write_json(os.path.join(directory, PRIOR), self._prior)


def save_then_rotate(original):
    """Replacement of DeepspeedStrategy.save_ckpt: the new checkpoint is complete, and `latest` names it, before an old
    one is deleted. It needs disk space for one checkpoint more than upstream's."""

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
        if self.is_rank_0() and (aside := resume.begin_checkpoint(directory)):
            self.print(f"moved the {tag} that was in {save_dir} to {aside}")
        torch_dist_barrier_and_cuda_sync()
        with record_written_files(model) as paths, without_offload_buffers(model):
            model.save_checkpoint(save_dir, tag=tag, client_state=client_state, save_latest=False)
        files = gather_from_all_ranks(fsync_and_checksum(directory, paths))
        if self.is_rank_0():
            self._write_ckpt_metric(str(directory), metric_value, metric_key=metric_key)
            if prior:
                write_json(directory / PRIOR, prior)
            facts = {name: ckpt_setting(self.args, name) for name in ("attempt", "data", "run")}
            manifest.complete(directory, files, prior, settings=optimizer_settings(redacted(self.args)), **facts)
            if save_latest:
                write_text(Path(save_dir, resume.LATEST), tag)
            rotate(self, groups_of(self, directory.parent), tag, max_num, max_mem * 1024**3)
        torch_dist_barrier_and_cuda_sync()
        gc.collect()

    return save_ckpt


@contextlib.contextmanager
def record_written_files(model) -> Iterator[list[Path]]:
    """List the files that this rank writes inside: it computes their checksums from memory, on a shared disk too."""
    engine, paths = getattr(model, "checkpoint_engine", None), []
    if engine is None:
        yield paths
        return
    save = engine.save

    def save_and_list(state_dict, path, *args, **kwargs):
        paths.append(Path(path))
        return save(state_dict, path, *args, **kwargs)

    engine.save = save_and_list
    try:
        yield paths
    finally:
        del engine.save


@contextlib.contextmanager
def without_offload_buffers(model) -> Iterator[None]:
    """Inside, the state that the engine's optimizer gives to a checkpoint, or takes from one, has no such buffers. The
    ones in use stay."""
    optimizer = getattr(getattr(model, "optimizer", None), "optimizer", None)  # torch's, inside of ZeRO's
    if not hasattr(optimizer, "register_state_dict_post_hook"):
        yield
        return
    saving = optimizer.register_state_dict_post_hook(_without_buffers)
    loading = optimizer.register_load_state_dict_pre_hook(_without_buffers)
    try:
        yield
    finally:
        saving.remove()
        loading.remove()


def _without_buffers(_, state_dict: dict) -> dict:
    kept = {
        number: {name: value for name, value in state.items() if not name.endswith(OFFLOAD_SUFFIX)}
        for number, state in state_dict["state"].items()
    }
    return {**state_dict, "state": kept}


def fsync_and_checksum(directory: Path, paths: Iterable[Path]) -> dict[str, manifest.SavedFile]:
    """Sizes and checksums of these files, once all of the folder is on disk. Every rank does it: fsync reaches the
    writes of its own node only. Checksums are computed while the disk writes."""
    with ThreadPoolExecutor(1) as thread:
        on_disk = thread.submit(sync_folder, directory)
        files = manifest.list_files(directory, paths)
        on_disk.result()
    return files


def gather_from_all_ranks(files: dict[str, manifest.SavedFile]) -> dict[str, manifest.SavedFile]:
    """Gather every rank's files in every rank; no rank returns before all have called."""
    import torch.distributed

    if not torch.distributed.is_initialized():
        return files
    found: list = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(found, files)
    return {name: saved for each in found for name, saved in each.items()}


def ckpt_setting(args, name: str):
    """One of this package's settings of checkpoints; None for a command without it (train_sft)."""
    return getattr(getattr(args, "ckpt", None), name, None)


def groups_of(strategy, folder: Path) -> list[Path]:
    """The folders that belong together with this one; train_sft has only one."""
    if folder.name not in resume.GROUPS:
        return [folder]
    return resume.groups(folder.parent, strategy.args.algo.advantage.estimator)


def load_newest_complete(original):
    """Replacement of DeepspeedStrategy.load_ckpt: the newest complete checkpoint, whatever `latest` names.

    Raises:
        CheckpointError: in every rank; there are checkpoints and none is complete, or it cannot be loaded.
    """

    @functools.wraps(original)
    def load_ckpt(self, model, load_dir, tag=None, *args, **kwargs):
        import torch.distributed

        if tag is None:
            # rank 0 decides for all ranks: a shared file system may show each a different state
            choice = [checkpoint_to_load(self, Path(load_dir)) if self.is_rank_0() else None]
            if torch.distributed.is_initialized():
                torch.distributed.broadcast_object_list(choice)
            (found,) = choice
            found.check()
            if found.tag is None:
                self.print(f"Warning: no checkpoint is complete in {load_dir}: nothing is loaded")
                return None, {}
            tag = found.tag
            for line in (*found.warnings(), f"Resuming from {load_dir}/{tag}"):
                self.print(line)
        try:
            with without_offload_buffers(model):
                return original(self, model, load_dir, tag, *args, **kwargs)
        except Exception as error:
            raise resume.CheckpointError(
                f"the checkpoint {load_dir}/{tag} cannot be loaded ({type(error).__name__}: {error}). Either it was "
                "saved with other settings (number of GPUs, ZeRO stage, model): repeat the command with those. Or it "
                "is damaged: move it away, and the same command resumes from the one before, if there is one."
            ) from error

    return load_ckpt


def checkpoint_to_load(strategy, folder: Path) -> resume.Search:
    """The driver's choice, whose checksums it has compared; another one if this node's disk does not have it, or its
    client state cannot be read."""
    folders = groups_of(strategy, folder)
    if verified := ckpt_setting(strategy.args, "verified"):
        if not (resume.damage_of(folders, verified) or unreadable_state(folders[0] / verified)):
            return resume.Search(tuple(folders), verified, {}, False)
        print(f"{verified}, which the driver found, is not complete here: searching {folders[0]}", flush=True)
    step = ckpt_setting(strategy.args, "load_step")
    return resume.newest_complete(folders, step, contents=True, problem=unreadable_state)


def unreadable_state(checkpoint: Path) -> str | None:
    """Describe why upstream's trainer cannot resume from the client state in this checkpoint of a policy; None if it
    can. Weights are not loaded."""
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
