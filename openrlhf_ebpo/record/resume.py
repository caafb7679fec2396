"""Which checkpoint a run resumes from: the newest that is whole, with all its files. Needs neither torch nor DeepSpeed.

manifest.py says of one folder whether it is. Policy and critic save into a folder each, and go on from the same save only.
`latest`, which DeepSpeed goes by, is a hint: it tells apart checkpoints of the same step, and whether a `best_*` one was the
last to be saved.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.record import manifest
from openrlhf_ebpo.record.manifest import REPLACED, TAG, damage, is_unfinished, step_of

BEST = "best_"
LATEST = "latest"  # DeepSpeed's
FLAG = "--ckpt.load_step"


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
    found = newest_whole(folders)
    if newest := found.tag or (next(iter(found.skipped)) if found.lost else None):
        raise CheckpointError(
            f"{folders[0]} holds checkpoints of another run, the newest {newest}. Go on from it with --ckpt.load_enable, name "
            "another --ckpt.path, or move the checkpoints aside with --force"
        )


# Which one


class Search(NamedTuple):
    """tag: the newest whole checkpoint, None where there is none. skipped: newer ones, and what each lacks.
    lost: none is whole, but there are traces of one. parts: folder -> the name of its checkpoint, which differs from `tag`
    where a crash came while one tag was saved again. wanted: the step that was asked for."""

    folders: tuple[Path, ...]
    tag: str | None
    skipped: dict[str, str]
    lost: bool
    parts: Mapping[Path, str] = {}
    wanted: int | None = None

    def warnings(self) -> list[str]:
        folder = self.folders[0]
        return [f"warning: the checkpoint {folder / tag} is skipped: {why}" for tag, why in self.skipped.items()]

    def check(self) -> None:
        """Check that there is a whole checkpoint, or never was one.

        Raises:
            CheckpointError: the run would begin at step 0 beside what is left of checkpoints; or there is none of the step
                that was asked for.
        """
        if self.wanted is not None and self.tag is None:
            raise CheckpointError(self._refusal_of_the_step())
        if self.lost:
            raise CheckpointError(self.refusal())

    def refusal(self) -> str:
        best = [tag for tag in tags_of(self.folders) if tag.startswith(BEST) and whole_parts(self.folders, tag)]
        lines = [
            f"no checkpoint in {' and '.join(map(str, self.folders))} can be gone on from:",
            *(f"  {tag}: {why}" for tag, why in self.skipped.items()),
            *(f"  {tag} is whole: to go on from it, give {FLAG} {step_of(tag)}" for tag in best),
            "Nothing was deleted. Restore the files; or begin at step 0 with another --ckpt.path, or after moving "
            f"{' and '.join(path.name for path in self.folders)} out of this one.",
        ]
        return "\n".join(lines)

    def _refusal_of_the_step(self) -> str:
        steps = sorted({step_of(tag) for tag in tags_of(self.folders) if whole_parts(self.folders, tag)})
        lacks = "".join(f"; {tag}: {why}" for tag, why in self.skipped.items())
        there = f"steps that are there: {', '.join(map(str, steps))}" if steps else "no step is there"
        return f"{FLAG} {self.wanted}: no whole checkpoint of this step is in {self.folders[0]}{lacks}; {there}"


Problem = Callable[[Path], str | None]


def newest_whole(
    folders: Sequence[Path], step: int | None = None, contents: bool = False, problem: Problem = lambda checkpoint: None
) -> Search:
    """Search `folders` for the newest tag that is whole in all of them; the first one's `latest` is the hint.

    Args:
        step: only a checkpoint of this step; a `best_*` one too.
        contents: compare checksums, down to the first that is whole.
        problem: what else keeps a checkpoint in the first folder from being loaded.
    """
    folders, skipped = tuple(folders), {}
    named = named_by_latest(folders[0])
    tags = {*tags_of(folders), *([named] if named and TAG.fullmatch(named) else [])}
    for tag in _candidates({tag.removesuffix(REPLACED) for tag in tags}, named, step):
        parts = whole_parts(folders, tag, contents)
        if (parts or {}).get(folders[0]) != tag:
            skipped[tag] = _damage(folders, tag, contents) or "it is not of the same save as the critic's"
        if parts and (why := problem(folders[0] / parts[folders[0]])):
            skipped[parts[folders[0]]] = why
        elif parts:
            return Search(folders, parts[folders[0]], skipped, False, parts, step)
        if tag + REPLACED in tags:
            skipped[tag + REPLACED] = _damage(folders, tag + REPLACED, contents) or "it is not of the same save"
    return Search(folders, None, skipped, not all(_never_whole(folders, tag) for tag in tags), wanted=step)


def confirmed(folders: Sequence[Path], names: Sequence[str], problem: Problem) -> Search | None:
    """The checkpoint that another process has found by its contents, one name a folder; None where this process sees it
    missing, of other sizes, or with a `problem`."""
    folders, parts = tuple(folders), dict(zip(folders, names, strict=True))
    if any(damage(folder / name) for folder, name in parts.items()) or problem(folders[0] / names[0]):
        return None
    return Search(folders, names[0], {}, False, parts)


def named_by_latest(folder: Path) -> str | None:
    """The tag that DeepSpeed would load."""
    try:
        return (folder / LATEST).read_text().strip() or None
    except (OSError, ValueError):
        return None


def _candidates(tags: set[str], named: str | None, step: int | None) -> list[str]:
    """The newest first."""
    if step is None:
        chosen = [tag for tag in tags if tag == named or not tag.startswith(BEST)]
    else:
        chosen = [tag for tag in tags if step_of(tag) == step]
    return sorted(chosen, key=lambda tag: (step_of(tag), tag == named, not tag.startswith(BEST)), reverse=True)


def whole_parts(folders: Sequence[Path], tag: str, contents: bool = False) -> dict[Path, str] | None:
    """folder -> name of the checkpoint `tag` in it, all of one save: `tag` itself or, where a crash came while it was saved
    again, what it was before. None where there is no such set."""
    names = (tag,) if tag.endswith(REPLACED) else (tag, tag + REPLACED)
    sets = itertools.product(names, repeat=len(folders))
    for each in sorted(sets, key=lambda names: sum(name.endswith(REPLACED) for name in names)):
        parts = dict(zip(folders, each, strict=True))
        if _of_one_save(folders, each) and not any(damage(folder / name, contents) for folder, name in parts.items()):
            return parts
    return None


def _of_one_save(folders: Sequence[Path], names: Sequence[str]) -> bool:
    attempts = {manifest.attempt_of(folder / name) for folder, name in zip(folders, names, strict=True)}
    return len(attempts) == 1 and (attempts != {None} or len(set(names)) == 1)


def interrupted_before(folder: Path, tag: str) -> list[str]:
    """Saves of earlier steps that never came to their end."""
    step = step_of(tag)
    return [t for t in tags_of([folder]) if step is not None and step_of(t) < step and is_unfinished(folder / t)]


def tags_of(folders: Sequence[Path]) -> list[str]:
    found = {path.name for folder in folders if folder.is_dir() for path in folder.iterdir() if path.is_dir()}
    return sorted(tag for tag in found if TAG.fullmatch(tag))


def _never_whole(folders: Sequence[Path], tag: str) -> bool:
    return any(is_unfinished(folder / tag) for folder in folders if (folder / tag).is_dir())


def _damage(folders: Sequence[Path], tag: str, contents: bool) -> str | None:
    found = ((folder, damage(folder / tag, contents)) for folder in folders)
    return next((why if len(folders) == 1 else f"{folder.name}: {why}" for folder, why in found if why), None)


# Making room


def begin_checkpoint(checkpoint: Path, folders: Sequence[Path] = ()) -> None:
    """Before a checkpoint is saved. One of the same tag keeps its files, under another name, if it is whole.

    Args:
        folders: those that belong together, this one among them: of two that are whole, that one is kept whose part the
            others have.
    """
    folder, tag = checkpoint.parent, checkpoint.name
    kept = (whole_parts(folders or [folder], tag) or whole_parts([folder], tag) or {}).get(folder)
    if kept == tag:
        shutil.rmtree(replaced(checkpoint), ignore_errors=True)
        checkpoint.rename(replaced(checkpoint))
    elif checkpoint.is_dir():
        shutil.rmtree(checkpoint, ignore_errors=True)
    manifest.begin(checkpoint)


def replaced(checkpoint: Path) -> Path:
    return checkpoint.with_name(checkpoint.name + REPLACED)


def set_later_aside(ckpt_path: Path, step: int) -> Path | None:
    """Move checkpoints and exported models of later steps, and a `latest` that names one, to superseded/<time>-after-step-<N>/;
    where to, None where there are none. The run goes another way from `step` on: a crash before its next save must not lead
    back to the old one."""
    folders = groups(ckpt_path, "gae")
    models = [path for path in ckpt_path.glob("*_hf") if TAG.fullmatch(path.name.removesuffix("_hf"))]
    saved = [folder / tag for folder in folders for tag in tags_of([folder])]
    later = [path for path in (*saved, *models) if step_of(path.name.removesuffix("_hf")) > step]
    later += [folder / LATEST for folder in folders if (step_of(named_by_latest(folder) or "") or 0) > step]
    aside = ckpt_path / "superseded" / f"{datetime.now():%Y%m%dT%H%M%S.%f}-after-step-{step:06d}"
    for path in later:
        target = aside / path.relative_to(ckpt_path)
        target.parent.mkdir(parents=True, exist_ok=True)
        path.rename(target)
    return aside if later else None
