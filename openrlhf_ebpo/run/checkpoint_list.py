"""checkpoints.jsonl: what a run has saved. The one place that reads it.

A line is written after a save, and stays when the checkpoint makes room. A death between save and line leaves a
checkpoint without one: `find_unlisted` finds it, at every resume and for `openrlhf-ebpo verify`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from openrlhf_ebpo.files import read_json_lines, write_json_lines
from openrlhf_ebpo.run.manifest import TAG, damage, step_of
from openrlhf_ebpo.run.resume import EXPORT, GROUPS, tags_of
from openrlhf_ebpo.run.run_log import RunDirectoryError, get_nested, read_metrics, read_run

LIST = "checkpoints.jsonl"
KINDS = ("checkpoint", "model")


class SavedCheckpoint(NamedTuple):
    """A line. recorded: the model's path as the line has it; model, checkpoint: where they are or would be, None where
    none was saved."""

    step: int
    tag: str
    checkpoint: Path | None
    model: Path | None
    recorded: str | None


def rows(run_dir: str | Path) -> list[dict]:
    """Read the lines that are rows of a step, as they are written.

    Raises:
        RunDirectoryError: the file is damaged.
    """
    try:
        found = read_json_lines(Path(run_dir) / LIST)
    except (OSError, ValueError, RecursionError) as error:
        raise RunDirectoryError(f"{Path(run_dir) / LIST} is damaged ({str(error)[:300]})") from error
    return [
        row
        for row in found
        if isinstance(row, dict)
        and type(row.get("step")) is int
        and all(row.get(name) is None or is_path(row[name]) for name in ("tag", *KINDS))
    ]


def is_path(value: object) -> bool:
    return isinstance(value, str) and "\0" not in value


def saved_steps(run_dir: str | Path) -> list[SavedCheckpoint]:
    """Return every saved step, in the order of saving, where it is today.

    Raises:
        RunDirectoryError: the file, or run.json, is damaged.
    """
    run_dir = Path(run_dir)
    before = recorded_run_dir(run_dir)
    listed = [
        (row, [next_to_run(run_dir, row[kind], before) if row.get(kind) else None for kind in KINDS])
        for row in rows(run_dir)
    ]
    return [SavedCheckpoint(row["step"], str(row.get("tag")), *paths, row.get("model")) for row, paths in listed]


def final_model(run_dir: Path) -> tuple[int, Path] | None:
    """Return the last step of a complete run, and the folder of the model that was exported after it
    (--ckpt.output_dir)."""
    run, steps = read_run(run_dir) or {}, [row["step"] for row in read_metrics(run_dir)]
    recorded = get_nested(run, "args", "ckpt", "output_dir")
    folder = next_to_run(run_dir, recorded, recorded_run_dir(run_dir)) if recorded else run_dir.parent
    there = run.get("status") == "complete" and steps and any(folder.glob("*.safetensors"))
    return (max(steps), folder) if there else None


def recorded_run_dir(run_dir: Path) -> str | None:
    """Return the path of the run directory at the time of writing."""
    before = get_nested(read_run(run_dir), "args", "logger", "run_dir")
    return before if isinstance(before, str) else None


def next_to_run(run_dir: Path, recorded: str, before: str | None) -> Path:
    """Return a recorded path or, where run and checkpoints were moved or copied together, the one that lies as it did
    from the run directory: a copy must not push what has become of the original. before: `recorded_run_dir`."""
    if not (recorded and before):
        return Path(recorded)
    moved = Path(os.path.normpath(run_dir / os.path.relpath(recorded, before)))
    return moved if moved.is_dir() else Path(recorded)


def find_unlisted(run_dir: Path, ckpt_path: Path, step: int, problems: Callable[[Path], list[str]]) -> list[dict]:
    """Return rows for what is complete, of `step` or before, and has no line.

    Args:
        problems: finds what keeps an exported model from being complete.

    Raises:
        RunDirectoryError: the file is damaged.
    """
    known = {row.get("tag") for row in rows(run_dir)}
    actor = ckpt_path / "_actor"
    found = {tag: {"checkpoint": str(actor / tag)} for tag in tags_of([actor]) if not damage(actor / tag)}
    for model in ckpt_path.glob(f"*{EXPORT}"):
        tag = model.name.removesuffix(EXPORT)
        if TAG.fullmatch(tag) and tag not in known and not problems(model):
            found.setdefault(tag, {})["model"] = str(model)
    return [
        {"step": step_of(tag), "tag": tag, "checkpoint": None, "model": None, **found[tag], "complete": True}
        for tag in sorted(found.keys() - known, key=lambda tag: (step_of(tag), tag))
        if step_of(tag) <= step
    ]


def add_rows(run_dir: Path, new: list[dict]) -> None:
    """Write rows in the order of steps."""
    if new:
        write_json_lines(run_dir / LIST, sorted([*rows(run_dir), *new], key=lambda row: row["step"]))


def relocate(run_dir: Path, ckpt_path: Path) -> None:
    """Rewrite the paths of a run that was moved or copied and is resumed: it saves in `ckpt_path`."""
    before = rows(run_dir)
    folders = {"checkpoint": ckpt_path / GROUPS[0], "model": ckpt_path}
    now = [
        {**row, **{kind: str(folders[kind] / Path(row[kind]).name) for kind in KINDS if row.get(kind)}}
        for row in before
    ]
    if now != before:
        write_json_lines(run_dir / LIST, now)
