"""The parts of `openrlhf-ebpo verify` about what a run has saved. As those of run_checks.py."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from pathlib import Path

from openrlhf_ebpo.cli import replay
from openrlhf_ebpo.cli.run_checks import SHOWN, Part, Run, read_prior, strange
from openrlhf_ebpo.models import folder as model_folder
from openrlhf_ebpo.record import checkpoints, manifest, resume
from openrlhf_ebpo.record.checkpoints import EXPORT, LIST
from openrlhf_ebpo.record.run_log import PRIOR


def saved(run: Run, states: dict[int, dict]) -> Part:
    """Every checkpoint, with its contents."""
    tags = resume.tags_of(run.groups)
    problems, notes, size = [], [], 0
    for folder, tag in itertools.product(run.groups, tags):
        checkpoint = folder / tag
        if not checkpoint.is_dir() and tag.endswith(manifest.REPLACED):
            continue
        why = _strange_checkpoint(checkpoint) or manifest.damage(checkpoint, contents=True)
        if why:
            unfinished = checkpoint.is_dir() and not checkpoint.is_symlink() and manifest.is_unfinished(checkpoint)
            (notes if unfinished else problems).append(f"{folder.name}/{tag}: {why}")
            continue
        size += sum(path.stat().st_size for path in checkpoint.rglob("*") if path.is_file())
        if folder.name == "_actor":
            problems += prior_problems(f"{folder.name}/{tag}", checkpoint, manifest.step_of(tag), states)
    newest = resume.newest_whole(run.groups, contents=True).tag if run.groups and not problems else None
    found = f"{len(tags):,}, {size / 1e9:,.1f} GB" if tags else "none"
    return Part("checkpoints", f"{found}; a resume goes on from {newest}" if newest else found, problems, notes)


def _strange_checkpoint(checkpoint: Path) -> str | None:
    if checkpoint.is_symlink():
        return "it is a link, which is not followed"
    found = next(strange(checkpoint), None) if checkpoint.is_dir() else None
    return f"it holds {found}, no file and no folder, which is not followed" if found else None


def prior_problems(name: str, folder: Path, step: int | None, states: dict[int, dict]) -> list[str]:
    """Whether prior.json beside weights is the state that the manifest names, and that the rollouts lead to."""
    path = folder / PRIOR
    found = read_prior(path) if path.is_file() else None
    listed = manifest.read(folder)
    hashed = manifest.state_hash(found) if found else None
    if path.is_file() and found is None:
        return [f"{name}: {PRIOR} cannot be read"]
    if listed and listed.prior and listed.prior != hashed:
        return [f"{name}: {PRIOR} is not the one that was saved"]
    if found is not None and step in states and states[step] != found:
        return [f"{name}: {PRIOR} is not the state that the rollouts lead to"]
    return []


def exports(run: Run, states: dict[int, dict]) -> Part:
    """Every exported model: whole, inert, with the prior of its step."""
    listed = {each.model: each.step for each in checkpoints.saved(run.folder) if each.model}
    here = {path: manifest.step_of(path.name.removesuffix(EXPORT)) for path in _exported(run.ckpt)}
    found = {path: step for path, step in {**here, **listed}.items() if path.is_dir()} | final(run)
    problems = []
    for path, step in found.items():
        problems += [f"{path.name}: {problem}" for problem in model_folder.problems(path, code=False)]
        problems += prior_problems(path.name, path, step, states) if not path.is_symlink() else []
    return Part("models", f"{len(found):,} exported" if found else "none exported", problems)


def _exported(ckpt: Path | None) -> Iterable[Path]:
    found = ckpt.glob(f"*{EXPORT}") if ckpt else ()
    return (path for path in found if manifest.TAG.fullmatch(path.name.removesuffix(EXPORT)))


def final(run: Run) -> dict[Path, int]:
    """The model at the end of a complete run, and its step."""
    recorded = replay.dig(run.json.get("args"), "ckpt", "output_dir")
    if not run.ended or not isinstance(recorded, str) or "\0" in recorded:
        return {}
    folder = checkpoints.beside(run.folder, recorded)
    return {folder: run.last} if folder.is_dir() else {}


def listing(run: Run) -> Part:
    """checkpoints.jsonl against the disk."""
    if not run.ckpt:
        return Part("list", "no --ckpt.path is known")
    found = differences(run)
    unlisted = [f"{words}; --rebuild lists it" for words in found._replace(gone={}).words()]
    gone = found._replace(new=[]).words()  # mostly to make room: a long run has hundreds
    notes = [*gone[-SHOWN:], *([f"and {len(gone) - SHOWN:,} before"] if len(gone) > SHOWN else [])]
    return Part("list", f"{len(checkpoints.rows(run.folder)):,} lines in {LIST}", unlisted, notes)


def differences(run: Run) -> checkpoints.Differences:
    if not run.ckpt:
        return checkpoints.Differences([], {})
    return checkpoints.differences(run.folder, run.ckpt, run.last, lambda path: model_folder.problems(path, code=False))
