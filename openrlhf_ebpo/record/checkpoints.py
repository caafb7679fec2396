"""checkpoints.jsonl: what a run has saved. The one place that reads it, and that brings it in line with the disk.

A line is written after a save. A death between the two leaves a checkpoint that nobody knows; a checkpoint that made room
leaves a line. `differences` finds both, at every resume and for `openrlhf-ebpo verify`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from openrlhf_ebpo.files import read_json_lines, write_text
from openrlhf_ebpo.record.manifest import REPLACED, TAG, damage, step_of
from openrlhf_ebpo.record.resume import CheckpointError
from openrlhf_ebpo.record.run_log import RunDirectoryError, read_metrics, read_run

LIST = "checkpoints.jsonl"
KINDS = ("checkpoint", "model")
EXPORT = "_hf"  # ends the name of an exported model


class Saved(NamedTuple):
    """A line. recorded: the model's path as the line has it; model, checkpoint: where they are, whether or not they are
    there, None where none was saved."""

    step: int
    tag: str
    checkpoint: Path | None
    model: Path | None
    recorded: str | None


def rows(run_dir: str | Path) -> list[dict]:
    """The lines that make sense, as they are written.

    Raises:
        RunDirectoryError: the file is damaged.
    """
    try:
        found = read_json_lines(Path(run_dir) / LIST)
    except (OSError, ValueError, RecursionError) as error:
        raise RunDirectoryError(f"{Path(run_dir) / LIST} is damaged ({str(error)[:300]})") from error
    return [row for row in found if is_row(row)]


def check_none_lost(run_dir: Path, folder: Path) -> None:
    """Check, where `folder` has no checkpoint, that the run never saved one: it would begin at step 0 again.

    Raises:
        CheckpointError: checkpoints.jsonl lists some, or the run is complete.
    """
    run = read_run(run_dir)
    steps = max((row["step"] for row in read_metrics(run_dir)), default=0) if run else 0
    tags = [row.get("tag") for row in rows(run_dir) if row.get("checkpoint")] if steps else []
    if not (tags or (steps and run.get("status") == "complete")):
        return
    saved = f" and checkpoints, the last {tags[-1]}" if tags else ""
    raise CheckpointError(
        f"{run_dir} records {steps} steps{saved}, and no checkpoint is in {folder}: training would begin at step 0 again. "
        "Put the checkpoints back, or begin again with --force, which moves this run aside"
    )


def is_row(row: object) -> bool:
    texts = ("tag", *KINDS)
    return isinstance(row, dict) and type(row.get("step")) is int and all(_is_text(row.get(name)) for name in texts)


def _is_text(value: object) -> bool:
    return value is None or (isinstance(value, str) and "\0" not in value)


def saved(run_dir: str | Path) -> list[Saved]:
    """Every saved step, in the order of saving, where it is today.

    Raises:
        RunDirectoryError: the file, or run.json, is damaged.
    """
    run_dir = Path(run_dir)
    listed = [(row, [beside(run_dir, row[kind]) if row.get(kind) else None for kind in KINDS]) for row in rows(run_dir)]
    return [Saved(row["step"], str(row.get("tag")), *paths, row.get("model")) for row, paths in listed]


def beside(run_dir: Path, recorded: str) -> Path:
    """A recorded path or, where run and checkpoints were moved or copied together, the one that lies as it did from the
    run directory: a copy must not push what has become of the original."""
    before: Any = read_run(run_dir)
    for name in ("args", "logger", "run_dir"):
        before = before.get(name) if isinstance(before, dict) else None
    if not (recorded and before and isinstance(before, str)):
        return Path(recorded)
    moved = Path(os.path.normpath(run_dir / os.path.relpath(recorded, before)))
    return moved if moved.is_dir() else Path(recorded)


# In line with the disk


class Differences(NamedTuple):
    """new: lines for what is complete and not listed. gone: tag -> which of its two are not there any more, where the line
    does not say so."""

    new: list[dict]
    gone: dict[str, list[str]]

    def words(self) -> list[str]:
        return [
            *(f"{row['tag']} is complete and was not in {LIST}" for row in self.new),
            *(f"{tag} in {LIST}: {_state(kinds)}" for tag, kinds in self.gone.items()),
        ]


def differences(run_dir: Path, ckpt_path: Path, step: int, problems: Callable[[Path], list[str]]) -> Differences:
    """What the list and the disk do not have in common, up to `step`, which the run has come to.

    Args:
        problems: says of an exported model what keeps it from being whole.

    Raises:
        RunDirectoryError: the file is damaged.
    """
    listed = rows(run_dir)
    known = {row.get("tag") for row in listed}
    whole = {
        tag: ckpt_path / "_actor" / tag for tag in _tags(ckpt_path / "_actor") if not damage(ckpt_path / "_actor" / tag)
    }
    exported = {path.name.removesuffix(EXPORT): path for path in ckpt_path.glob(f"*{EXPORT}")}
    exported = {
        tag: path for tag, path in exported.items() if TAG.fullmatch(tag) and tag not in known and not problems(path)
    }
    found = sorted({*whole, *exported} - known, key=lambda tag: (step_of(tag), tag))
    new = [
        _row(step_of(tag), tag, *(str(each[tag]) if tag in each else None for each in (whole, exported)))
        for tag in found
        if step_of(tag) <= step
    ]
    gone = {str(row.get("tag")): kinds for row in listed if (kinds := _gone(run_dir, row)) != row.get("gone", [])}
    return Differences(new, gone)


def bring_in_line(run_dir: Path, found: Differences) -> None:
    """Write `found` into the list."""
    if not any(found):
        return
    listed = [{**row, "gone": found.gone.get(str(row.get("tag")), row.get("gone", []))} for row in rows(run_dir)]
    in_order = sorted([*listed, *found.new], key=lambda row: row["step"])
    write_text(run_dir / LIST, "".join(json.dumps(row) + "\n" for row in in_order))


def _state(kinds: list[str]) -> str:
    return f"the {' and the '.join(kinds)} {'is' if len(kinds) == 1 else 'are'} gone" if kinds else "it is there again"


def _gone(run_dir: Path, row: dict) -> list[str]:
    return [kind for kind in KINDS if row.get(kind) and not beside(run_dir, row[kind]).is_dir()]


def _tags(folder: Path) -> Iterator[str]:
    names: Iterable[Path] = folder.iterdir() if folder.is_dir() else ()
    return (path.name for path in names if TAG.fullmatch(path.name) and not path.name.endswith(REPLACED))


def _row(step: int, tag: str, checkpoint: str | None, model: str | None) -> dict:
    return {"step": step, "tag": tag, "checkpoint": checkpoint, "model": model, "complete": True}
