"""Which checkpoint a run resumes from: the newest that is whole, with all its files. Needs neither torch nor DeepSpeed.

A checkpoint is a folder, its tag, that DeepSpeed fills: one file or more per rank. While it is being saved, its
files.json says so; when all files are on disk, files.json lists them with their sizes. `latest`, which DeepSpeed goes
by, is a hint: it tells apart checkpoints of the same step, and whether a `best_*` one was the last to be saved.
"""

from __future__ import annotations

import json
import re
import shutil
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.files import write_json

FILES = "files.json"
METRIC = "metric.json"  # upstream's, written when all ranks have saved
REPLACED = ".replaced"  # ends the name of a checkpoint whose tag is being saved again
SIDE_FILES = (".json", ".py")  # DeepSpeed loads without them
TAG = re.compile(rf"(best_)?global_step(\d+)({re.escape(REPLACED)})?")
SHARD = re.compile(r"(?:(?:bf16_)?zero_pp_rank_(\d+)_)?mp_rank_(\d+)_(model|optim)_states\.pt")


class CheckpointError(UsageError):
    """No checkpoint can be resumed from; the message says why and what to do."""


def groups(ckpt_path: str | Path, estimator: str) -> list[Path]:
    """Folders whose checkpoints of one tag belong together: the policy's and, where one is trained, the critic's."""
    return [Path(ckpt_path) / name for name in ("_actor", "_critic")[: 2 if estimator == "gae" else 1]]


def latest_checkpoint(ckpt_path: str | Path, estimator: str) -> Path | None:
    """Folder of the policy's checkpoint that resuming loads, None where there is none."""
    folders = groups(ckpt_path, estimator)
    tag = newest_whole(folders).tag
    return folders[0] / tag if tag else None


def check_fresh(ckpt_path: str | Path, estimator: str) -> None:
    """Check, for a run that begins at step 0, that no other run's checkpoints are there: this run's would replace some
    of them, and a resume could not tell the two runs apart.

    Raises:
        CheckpointError: there are some.
    """
    folders = groups(ckpt_path, estimator)
    if found := newest_whole(folders).tag:
        raise CheckpointError(
            f"{folders[0]} holds checkpoints of another run, the newest {found}. Go on from it with --ckpt.load_enable, name "
            "another --ckpt.path, or move the checkpoints aside with --force"
        )


# What a checkpoint consists of


def begin_checkpoint(checkpoint: Path) -> None:
    """Before a checkpoint is saved. One of the same tag keeps its files, under another name, if it is whole."""
    if checkpoint.is_dir():
        if damage(checkpoint) is None:
            shutil.rmtree(replaced(checkpoint), ignore_errors=True)
            checkpoint.rename(replaced(checkpoint))
        else:
            shutil.rmtree(checkpoint, ignore_errors=True)
    write_json(checkpoint / FILES, {"complete": False})


def complete_checkpoint(checkpoint: Path) -> None:
    """After all its files are on disk: from now on it counts."""
    paths = (path for path in sorted(checkpoint.rglob("*")) if path.is_file() and path.suffix not in SIDE_FILES)
    files = {str(path.relative_to(checkpoint)): path.stat().st_size for path in paths}
    write_json(checkpoint / FILES, {"complete": True, "files": files})


def replaced(checkpoint: Path) -> Path:
    return checkpoint.with_name(checkpoint.name + REPLACED)


def damage(checkpoint: Path) -> str | None:
    """Why a checkpoint cannot be loaded, None where nothing speaks against it. Contents are not compared."""
    if not checkpoint.is_dir():
        return "the folder is missing"
    if is_unfinished(checkpoint):
        return "its saving was interrupted"
    sizes = _read_list(checkpoint).get("files")
    if not isinstance(sizes, dict) or not sizes:
        return _damage_without_list(checkpoint)
    return next(filter(None, (_wrong_size(checkpoint / name, size) for name, size in sizes.items())), None)


def is_unfinished(checkpoint: Path) -> bool:
    """Whether it never was whole: a save that was interrupted."""
    listed = _read_list(checkpoint)
    return listed.get("complete") is False or not (listed or any(checkpoint.glob("*.pt")))


def _read_list(checkpoint: Path) -> dict:
    """{} where it is missing (a checkpoint of an earlier version) or damaged."""
    try:
        found = json.loads((checkpoint / FILES).read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _wrong_size(path: Path, saved: int) -> str | None:
    name = ascii(path.name)[1:-1][:120]  # the list may have been pulled from somewhere
    try:
        size = path.stat().st_size
    except (OSError, ValueError):
        return f"{name} is missing"
    return None if size == saved else f"{name} has {size} bytes, and {ascii(saved)[:20]} were saved"


def _damage_without_list(checkpoint: Path) -> str | None:
    shards = sorted(checkpoint.glob("*.pt"))
    if broken := next((path.name for path in shards if not zipfile.is_zipfile(path)), None):
        return f"{broken} is cut off"
    if missing := _missing_shard([path.name for path in shards]):
        return missing
    if not (checkpoint / METRIC).is_file() and _named_by_latest(checkpoint.parent) != checkpoint.name:
        return f"neither {FILES} nor {METRIC} is there to say that all its files were saved"
    return None


def _missing_shard(names: list[str]) -> str | None:
    """Going by the names: the model's files have ranks in ZeRO stage 3, the optimizer's in stages 1 to 3."""
    found = {match.groups() for match in map(SHARD.fullmatch, names) if match}
    data = {int(rank) for rank, _, _ in found if rank}
    model = {int(part) for _, part, _ in found}
    zero_3 = any(rank and kind == "model" for rank, _, kind in found)
    ranks = [str(rank) for rank in range(max(data, default=-1) + 1)]
    for part in (f"{number:02d}" for number in range(max(model, default=0) + 1)):
        wanted = {(rank, part, "optim") for rank in ranks}
        wanted |= {(rank, part, "model") for rank in ranks} if zero_3 else {(None, part, "model")}
        if lost := sorted(wanted - found, key=str):
            rank, _, kind = lost[0]
            return f"the {kind} states{f' of rank {rank}' if rank else ''} are missing"
    return None


def _named_by_latest(folder: Path) -> str | None:
    try:
        return (folder / "latest").read_text().strip() or None
    except (OSError, ValueError):
        return None


# Which one


class Search(NamedTuple):
    """tag: the newest whole checkpoint, None where there is none. skipped: newer ones, and what each lacks.
    lost: none is whole, but there are traces of one."""

    folders: tuple[Path, ...]
    tag: str | None
    skipped: dict[str, str]
    lost: bool

    def warnings(self) -> list[str]:
        folder = self.folders[0]
        return [f"warning: the checkpoint {folder / tag} is skipped: {why}" for tag, why in self.skipped.items()]

    def check(self) -> None:
        """Check that there is a whole checkpoint, or never was one.

        Raises:
            CheckpointError: the run would begin at step 0 beside what is left of checkpoints.
        """
        if self.lost:
            raise CheckpointError(self.refusal())

    def refusal(self) -> str:
        best = [tag for tag in _tags(self.folders) if tag.startswith("best_") and not _damage(self.folders, tag)]
        lines = [
            f"no checkpoint in {' and '.join(map(str, self.folders))} can be gone on from:",
            *(f"  {tag}: {why}" for tag, why in self.skipped.items()),
            *(f"  {tag} is whole: to go on from it, write its name into {self.folders[0]}/latest" for tag in best),
            "Nothing was deleted. Restore the files; or begin at step 0 with another --ckpt.path, or after moving "
            f"{' and '.join(path.name for path in self.folders)} out of this one.",
        ]
        return "\n".join(lines)


def newest_whole(folders: Sequence[Path]) -> Search:
    """Search `folders` for the newest tag that is whole in all of them; the first one's `latest` is the hint."""
    folders, skipped = tuple(folders), {}
    named = _named_by_latest(folders[0])
    tags = {*_tags(folders), *([named] if named and TAG.fullmatch(named) else [])}
    candidates = [tag for tag in tags if tag == named or not tag.startswith("best_")]
    for tag in sorted(candidates, key=lambda tag: (step_of(tag), tag == named, REPLACED not in tag), reverse=True):
        why = _damage(folders, tag)
        if why is None:
            return Search(folders, tag, skipped, False)
        skipped[tag] = why
    return Search(folders, None, skipped, not all(_never_whole(folders, tag) for tag in tags))


def interrupted_before(folder: Path, tag: str) -> list[str]:
    """Saves of earlier steps that never came to their end."""
    step = step_of(tag)
    return [t for t in _tags([folder]) if step is not None and step_of(t) < step and is_unfinished(folder / t)]


def step_of(tag: str) -> int | None:
    match = TAG.fullmatch(tag)
    return int(match[2]) if match else None


def _tags(folders: Sequence[Path]) -> list[str]:
    found = {path.name for folder in folders if folder.is_dir() for path in folder.iterdir() if path.is_dir()}
    return sorted(tag for tag in found if TAG.fullmatch(tag))


def _never_whole(folders: Sequence[Path], tag: str) -> bool:
    return any(is_unfinished(folder / tag) for folder in folders if (folder / tag).is_dir())


def _damage(folders: Sequence[Path], tag: str) -> str | None:
    found = ((folder, damage(folder / tag)) for folder in folders)
    return next((why if len(folders) == 1 else f"{folder.name}: {why}" for folder, why in found if why), None)
