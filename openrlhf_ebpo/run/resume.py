"""Choose the checkpoint that a run resumes from: the newest that is complete, with all its files. Needs neither torch
nor DeepSpeed.

manifest.py checks one folder. Policy and critic save into a folder each, and resume from the same save only. Whatever
is later than the step from which a run resumes is moved to superseded/, so that no tag is saved over another and all
that lies there is of one history.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.run import manifest
from openrlhf_ebpo.run.manifest import TAG, damage, is_unfinished, step_of

BEST = "best_"
EXPORT = "_hf"  # ends the name of an exported model
LATEST = "latest"  # DeepSpeed's: the tag that was saved last
LOAD_STEP_FLAG = "--ckpt.load_step"
GROUPS = ("_actor", "_critic")
SUPERSEDED = "superseded"


class CheckpointError(UsageError):
    """No checkpoint can be resumed from; the message says why and what to do."""


def groups(ckpt_path: str | Path, estimator: str) -> list[Path]:
    """Return the folders whose checkpoints of one tag belong together: the policy's and, where one is trained, the
    critic's."""
    return [Path(ckpt_path) / name for name in GROUPS[: 2 if estimator == "gae" else 1]]


def tags_of(folders: Sequence[Path]) -> list[str]:
    found = {path.name for folder in folders if folder.is_dir() for path in folder.iterdir() if path.is_dir()}
    return sorted(tag for tag in found if TAG.fullmatch(tag))


def damage_of(folders: Sequence[Path], tag: str, contents: bool = False) -> str | None:
    """Describe the fault for which `tag` cannot be loaded in all folders; None if it can."""
    for folder in folders:
        if why := damage(folder / tag, contents):
            return why if len(folders) == 1 else f"{folder.name}: {why}"
    if len({manifest.attempt_of(folder / tag) for folder in folders}) > 1:
        return "policy and critic are not of the same save"
    return None


# Which one


class Search(NamedTuple):
    """tag: the newest complete checkpoint, None if there is none. skipped: newer ones, and what each lacks. lost: none
    is complete, but one was. step: the requested step."""

    folders: tuple[Path, ...]
    tag: str | None
    skipped: dict[str, str]
    lost: bool
    step: int | None = None

    def warnings(self) -> list[str]:
        folder = self.folders[0]
        return [f"warning: the checkpoint {folder / tag} is skipped: {why}" for tag, why in self.skipped.items()]

    def check(self) -> None:
        """Check that there is a complete checkpoint, or never was one.

        Raises:
            CheckpointError: the run would begin at step 0 next to remains of checkpoints; or none exists of the
                requested step.
        """
        if self.step is not None and self.tag is None:
            steps = sorted({step_of(tag) for tag in tags_of(self.folders) if not damage_of(self.folders, tag)})
            lacks = "".join(f"; {tag}: {why}" for tag, why in self.skipped.items())
            saved = f"saved steps: {', '.join(map(str, steps))}" if steps else "no step is saved"
            raise CheckpointError(
                f"{LOAD_STEP_FLAG} {self.step}: no complete checkpoint of this step is in {self.folders[0]}{lacks}; "
                + saved
            )
        if self.lost:
            raise CheckpointError(self.refusal())

    def refusal(self) -> str:
        lines = [
            f"no checkpoint in {' and '.join(map(str, self.folders))} can be resumed from:",
            *(f"  {tag}: {why}" for tag, why in self.skipped.items()),
            "Nothing was deleted. Restore the files; or begin at step 0 with another --ckpt.path, or after moving "
            f"{' and '.join(path.name for path in self.folders)} out of this one.",
        ]
        return "\n".join(lines)


Problem = Callable[[Path], str | None]


def newest_complete(
    folders: Sequence[Path],
    step: int | None = None,
    contents: bool = False,
    problem: Problem = lambda checkpoint: None,
) -> Search:
    """Search `folders` for the newest tag that is complete in all of them; of one step, first for the one that `latest`
    names: it was saved last, and has the evaluation that made it the best.

    Args:
        step: only a checkpoint of this step.
        contents: compare checksums, down to the first that is complete.
        problem: finds what else keeps a checkpoint in the first folder from being loaded.
    """
    folders, skipped = tuple(folders), {}
    named = named_by_latest(folders[0])
    tags = {*tags_of(folders), *filter(TAG.fullmatch, [named])}
    candidates = [tag for tag in tags if step in (None, step_of(tag))]
    for tag in sorted(candidates, key=lambda tag: (-step_of(tag), tag != named, tag.startswith(BEST))):
        why = damage_of(folders, tag, contents) or problem(folders[0] / tag)
        if why is None:
            return Search(folders, tag, skipped, False, step)
        skipped[tag] = why
    unfinished = [tag for tag in tags if any(is_unfinished(f / tag) for f in folders if (f / tag).is_dir())]
    return Search(folders, None, skipped, len(unfinished) < len(tags), step)


def named_by_latest(folder: Path) -> str:
    """Return the tag that DeepSpeed would load; empty if `latest` is missing or unreadable."""
    try:
        return (folder / LATEST).read_text().strip()
    except (OSError, ValueError):
        return ""


def check_fresh(ckpt_path: str | Path, estimator: str) -> None:
    """Check, for a run that begins at step 0, that no other run's checkpoints are there: a resume could not tell the
    two runs apart.

    Raises:
        CheckpointError: there are some.
    """
    folders = groups(ckpt_path, estimator)
    found = newest_complete(folders)
    if newest := found.tag or (next(iter(found.skipped)) if found.lost else None):
        raise CheckpointError(
            f"{folders[0]} holds checkpoints of another run, the newest {newest}. Resume it with --ckpt.load_enable, "
            "name another --ckpt.path, or move the checkpoints aside with --force"
        )


# Making room


def begin_checkpoint(checkpoint: Path) -> Path | None:
    """Prepare a folder for a checkpoint. Moves a complete one of the same tag aside; returns where to, else None."""
    folder, aside = checkpoint.parent, None
    if checkpoint.is_dir():
        if is_unfinished(checkpoint):
            shutil.rmtree(checkpoint)
        else:
            aside = _move_aside(folder.parent if folder.name in GROUPS else folder, [checkpoint], checkpoint.name)
    manifest.begin(checkpoint)
    return aside


def set_later_aside(ckpt_path: Path, step: int) -> Path | None:
    """Move checkpoints and exported models of later steps to superseded/<time>-after-step-<N>/, with a `latest` that
    names one; interrupted saves and deletions are cleaned up. The run takes another way from `step` on: neither a crash
    before its next save nor a `best_*` checkpoint must lead back to the old one.

    Returns:
        Where to; None if nothing was moved.
    """
    folders = groups(ckpt_path, "gae")
    saved = [folder / tag for folder in folders for tag in tags_of([folder])]
    for path in filter(is_unfinished, saved):
        shutil.rmtree(path)
    later = [path for path in saved if step_of(path.name) > step and path.exists()]
    later += [path for path in ckpt_path.glob(f"*{EXPORT}") if (exported_step(path) or 0) > step]
    later += [folder / LATEST for folder in folders if (step_of(named_by_latest(folder)) or 0) > step]
    return _move_aside(ckpt_path, later, f"after-step-{step:06d}")


def exported_step(model: Path) -> int | None:
    """Return N of global_stepN_hf and best_global_stepN_hf."""
    return step_of(model.name.removesuffix(EXPORT))


def _move_aside(root: Path, paths: Sequence[Path], why: str) -> Path | None:
    aside = root / SUPERSEDED / f"{datetime.now():%Y%m%dT%H%M%S.%f}-{why}"
    for path in paths:
        target = aside / path.relative_to(root)
        target.parent.mkdir(parents=True, exist_ok=True)
        path.rename(target)
    return aside if paths else None
