"""Rollouts: an index of all groups and of the numbers of their responses.

A run of a million rows has a few hundred thousand groups. Their index is made from the columns without text, a file at a
time, once per file; it takes some 150 bytes per group and 20 per response. Prompts and answers are read for what is on the
page only.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from openrlhf_ebpo.run.run_log import rollouts_path, step_files

from .bounded import columns_of, read
from .errors import RunError, attempt, reading
from .runs import Run, inside
from .text import middle_cut, plain

NUMBERS = ("reward", "baseline", "shrinkage", "advantage", "grpo_advantage", "response_length")
LIGHT = ("group", "prompt_id", "cluster", "valid", "error", "truncated", *NUMBERS)
NEEDED = ("group", "prompt", "response", "reward")
MAX_GROUPS = 2**22  # of a run
MAX_RESPONSES = 2**22  # of a run, those of the latest steps, whose numbers are kept
_CLOSE = 1e-6
_NO_ROWS = pa.table({"group": pa.array([], pa.int64())})


@dataclass(frozen=True)
class Groups:
    """K groups, one entry each, in order of step and group."""

    step: np.ndarray
    group: np.ndarray
    row: np.ndarray  # first row in its file
    size: np.ndarray  # rows
    mean: np.ndarray  # reward, over valid samples; NaN without any
    lowest: np.ndarray
    highest: np.ndarray
    success: np.ndarray  # fraction of valid samples above the middle between fail and pass reward
    baseline: np.ndarray
    shrinkage: np.ndarray
    rescued: np.ndarray  # samples with zero advantage under GRPO and another one here
    pushed_down: np.ndarray  # of these, samples with a negative advantage
    truncated: np.ndarray  # samples
    errors: np.ndarray  # samples whose reward failed
    valid: np.ndarray  # samples
    compared: np.ndarray  # valid samples with both advantages
    ignored: np.ndarray  # of these, samples with zero advantage under GRPO
    push: np.ndarray  # sum of the advantages of the rescued
    shift: np.ndarray  # sum of |advantage - GRPO's| of the compared
    prompt_id: np.ndarray  # object
    cluster: np.ndarray  # object

    def __len__(self) -> int:
        return len(self.step)

    def all_fail(self, fail: float = 0.0) -> np.ndarray:
        return (self.valid > 0) & (np.abs(self.highest - fail) <= _CLOSE) & (np.abs(self.lowest - fail) <= _CLOSE)

    def all_pass(self, reward: float = 1.0) -> np.ndarray:
        return (self.valid > 0) & (np.abs(self.highest - reward) <= _CLOSE) & (np.abs(self.lowest - reward) <= _CLOSE)


def clusters(found: Sequence[Groups]) -> list[tuple[str, str]]:
    """Choices of a menu: each cluster as it is shown, and its name."""
    names = {str(name) for groups in found for name in groups.cluster if name is not None}
    return [(plain(middle_cut(name, 80)), name) for name in sorted(names)[:500]]


@dataclass(frozen=True, eq=False)
class Responses:
    """Numbers of N responses with a reward: float32, NaN where unknown. group: place of its group in the index."""

    group: np.ndarray
    reward: np.ndarray
    advantage: np.ndarray
    grpo_advantage: np.ndarray
    length: np.ndarray

    def __len__(self) -> int:
        return len(self.group)


class Index:
    """All groups of one run; `read` adds new files and drops removed ones."""

    def __init__(self, run: Run, fail: float = 0.0, passing: float = 1.0):
        self.run, self.middle = run, (fail + passing) / 2
        self._lock = threading.Lock()
        self._blocks: dict[int, tuple[tuple, tuple[Groups, np.ndarray] | None, str]] = {}
        self._joined: tuple[frozenset, tuple[Groups, list[str], Responses]] | None = None

    def read(self) -> tuple[Groups, list[str]]:
        """The index, and what could not be read."""
        return self.read_all()[:2]

    def read_all(self) -> tuple[Groups, list[str], Responses]:
        """The index, what could not be read, and the responses of these groups."""
        with self._lock:
            signs = {step: _sign(path) for step, path in step_files(self.run.path).items()}
            gone = self._blocks.keys() - signs.keys()  # rolled back: there is room for responses of earlier ones
            self._blocks = {
                step: block
                for step, block in self._blocks.items()
                if signs.get(step) == block[0] and not (gone and _is_cut(block[1]))
            }
            missing = [step for step in reversed(signs) if step not in self._blocks]
            there = [kept for _, kept, _ in self._blocks.values() if kept]
            self._count, count = sum(len(groups) for groups, _ in there), 0
            if missing:
                with ThreadPoolExecutor(4) as pool:
                    for step, (kept, problem) in zip(missing, pool.map(self._block, missing), strict=True):
                        if kept and count > MAX_RESPONSES:  # of the later files
                            kept = (kept[0], kept[1][:, :0].copy())
                        count += kept[1].shape[1] if kept else 0
                        self._blocks[step] = (signs[step], kept, problem)
            state = frozenset((name, block[0]) for name, block in self._blocks.items())
            if self._joined is None or self._joined[0] != state:
                problems = [self._blocks[step][2] for step in signs if self._blocks[step][2]]
                groups, responses = self._join(list(signs))
                self._joined = (state, (groups, problems, responses))
            return self._joined[1]

    def _join(self, steps: list[int]) -> tuple[Groups, Responses]:
        """Put the files together; each then is a view of all, so that nothing is held twice."""
        steps = [step for step in steps if self._blocks[step][1] is not None]
        left = MAX_RESPONSES
        for step in reversed(steps):
            sign, (part, each), problem = self._blocks[step]
            self._blocks[step] = (sign, (part, each if left > 0 else each[:, :0].copy()), problem)
            left -= each.shape[1]
        parts = [self._blocks[step][1] for step in steps] or [_summarise(0, _NO_ROWS, 0.5)]
        groups = Groups(
            **{f.name: np.concatenate([getattr(part, f.name) for part, _ in parts]) for f in fields(Groups)}
        )
        numbers = np.concatenate([each for _, each in parts], axis=1)
        at = of_group = 0
        owners = [np.zeros(0, np.int32)]
        for step, (part, each) in zip(steps, parts, strict=False):
            sign, _, problem = self._blocks[step]
            places = np.arange(of_group, of_group + len(part), dtype=np.int32)
            owners += [np.repeat(places, part.valid)] if each.size else []
            view = Groups(*(getattr(groups, f.name)[of_group : of_group + len(part)] for f in fields(Groups)))
            self._blocks[step] = (sign, (view, numbers[:, at : at + each.shape[1]]), problem)
            of_group, at = of_group + len(part), at + each.shape[1]
        return groups, Responses(np.concatenate(owners), *numbers)

    @property
    def damage(self) -> str:
        """Count the files that could not be read when the index was read last; "" for none."""
        bad = sum(block[1] is None for block in list(self._blocks.values()))
        return f"{bad} of {len(self._blocks)} rollout files cannot be read; the page Samples names them." if bad else ""

    def _block(self, step: int) -> tuple[tuple[Groups, np.ndarray] | None, str]:
        def summarised() -> tuple[Groups, np.ndarray]:
            if self._count > MAX_GROUPS:
                raise RunError(
                    f"Rollouts before step {step + 1} are left out: the later ones have {MAX_GROUPS:,} groups."
                )
            groups, numbers = _summarise(step, read_columns(self.run, step, LIGHT), self.middle)
            self._count += len(groups)
            return groups, numbers

        problems: list[str] = []
        return attempt(summarised, None, problems, f"rollouts/step-{step:06d}.parquet"), "".join(problems)


def _is_cut(kept: tuple[Groups, np.ndarray] | None) -> bool:
    return kept is not None and not kept[1].size and bool(kept[0].valid.any())


def file_of(run: Run, step: int) -> str:
    """Name of the file of a step's rollouts.

    Raises:
        RunError: there is none.
    """
    path = rollouts_path(run.path, step)
    path = path if path.is_file() else step_files(run.path).get(step)
    if path is None:
        raise RunError(
            f"The rollouts of step {step} are gone (the run was resumed from an earlier step, or keeps the newest only)."
        )
    return path.name


def _sign(path: Path) -> tuple:
    try:
        status = path.stat()
    except OSError:
        return ()
    return status.st_size, status.st_mtime_ns, status.st_ino


def open_file(run: Run, step: int) -> pq.ParquetFile:
    """Open the rollouts of a step.

    Raises:
        RunError: it cannot be read, leads out of the run, or lacks a column that every schema so far has.
    """
    name = file_of(run, step)
    with reading(f"rollouts/{name}"):
        file = pq.ParquetFile(inside(run, "rollouts", name))
        present = columns_of(file)
    if len(set(present)) < len(present):
        raise RunError(f"rollouts/{name} is left out: it has columns of the same name.")
    lacking = [column for column in NEEDED if column not in present]
    if lacking:
        raise RunError(f"rollouts/{name} is left out: it lacks the columns {', '.join(lacking)} (another schema?).")
    return file


def read_columns(run: Run, step: int, columns: Collection[str], rows: slice = slice(0, None)) -> pa.Table:
    """Read those of the columns that a step's file has, cut to `rows`.

    Raises:
        RunError: as `open_file`, or the rows are too large.
    """
    return read(open_file(run, step), f"rollouts/{file_of(run, step)}", columns, rows.start, rows.stop)


def rows_of(table: pa.Table) -> list[dict]:
    """The rows of a table as dicts.

    Raises:
        RunError: a column cannot be read.
    """
    names = table.column_names
    return [dict(zip(names, values, strict=True)) for values in zip(*map(listed, table.columns), strict=True)]


def listed(column: pa.ChunkedArray) -> list:
    """Python's own values. Arrow does not look whether text is UTF-8: what is not becomes �.

    Raises:
        RunError: values that Python does not have.
    """
    with reading(f"A column of type {str(column.type)[:80]}"):
        try:
            return column.to_pylist()
        except UnicodeDecodeError:
            return [v if v is None else v.decode("utf-8", "replace") for v in column.cast(pa.binary()).to_pylist()]


def _summarise(step: int, table: pa.Table, middle: float) -> tuple[Groups, np.ndarray]:
    """The groups of one file, and (4, N): reward, advantage, GRPO's, and length of the N responses with a reward."""
    rows = table.num_rows
    number = {name: _floats(table, name, rows) for name in NUMBERS}
    group = _whole(table["group"])
    valid = _flags(table, "valid", rows, default=np.isfinite(number["reward"])) & np.isfinite(number["reward"])
    truncated = _flags(table, "truncated", rows, default=np.zeros(rows, bool))
    failed = table["error"].is_valid().to_numpy(zero_copy_only=False) if "error" in table.column_names else ~valid
    starts = np.flatnonzero(np.concatenate([[True], group[1:] != group[:-1]])) if rows else np.zeros(0, int)

    def total(values: np.ndarray) -> np.ndarray:
        return np.add.reduceat(values.astype(float), starts) if rows else np.zeros(0)

    def extreme(kind, values: np.ndarray) -> np.ndarray:
        return kind.reduceat(values, starts) if rows else np.zeros(0)

    reward, count = number["reward"], total(valid)
    safe = np.maximum(count, 1)
    # other estimators have no baseline here, and a KL penalty may move their advantages away from 0
    advantage, grpo = number["advantage"], number["grpo_advantage"]
    rescued = (grpo == 0) & (np.abs(advantage) > 0) & np.isfinite(number["baseline"]) & valid
    none, compared = count == 0, valid & np.isfinite(advantage) & np.isfinite(grpo)
    groups = Groups(
        step=np.full(len(starts), step, np.int32),
        group=group[starts],
        row=starts.astype(np.int32),
        size=np.diff(np.append(starts, rows)).astype(np.int32),
        mean=np.where(none, np.nan, total(np.where(valid, reward, 0)) / safe),
        lowest=extreme(np.minimum, np.where(valid, reward, np.inf)),
        highest=extreme(np.maximum, np.where(valid, reward, -np.inf)),
        success=np.where(none, np.nan, total(valid & (reward > middle)) / safe),
        baseline=number["baseline"][starts],
        shrinkage=number["shrinkage"][starts],
        rescued=total(rescued).astype(np.int32),
        pushed_down=total(rescued & (advantage < 0)).astype(np.int32),
        truncated=total(truncated).astype(np.int32),
        errors=total(failed).astype(np.int32),
        valid=count.astype(np.int32),
        compared=total(compared).astype(np.int32),
        ignored=total(compared & (grpo == 0)).astype(np.int32),
        push=total(np.where(rescued & compared, advantage, 0)),
        shift=total(np.where(compared, np.abs(advantage - grpo), 0)),
        prompt_id=_texts(table, "prompt_id", starts),
        cluster=_texts(table, "cluster", starts),
    )
    return groups, np.stack([_short(each[valid]) for each in (reward, advantage, grpo, number["response_length"])])


def _short(values: np.ndarray) -> np.ndarray:
    """float32, NaN for what it does not hold."""
    return np.where(np.abs(values) < np.finfo(np.float32).max, values, np.nan).astype(np.float32)


def _whole(column: pa.ChunkedArray) -> np.ndarray:
    if column.null_count:
        raise ValueError("a number is missing")
    return column.cast(pa.int64()).to_numpy()


def _floats(table: pa.Table, name: str, rows: int) -> np.ndarray:
    if name not in table.column_names:
        return np.full(rows, np.nan)
    return table[name].cast(pa.float64()).to_numpy(zero_copy_only=False).astype(float)


def _flags(table: pa.Table, name: str, rows: int, default: np.ndarray) -> np.ndarray:
    if name not in table.column_names:
        return default
    column = table[name].cast(pa.bool_())
    return np.where(
        column.is_valid().to_numpy(zero_copy_only=False),
        pc.fill_null(column, False).to_numpy(zero_copy_only=False),
        default,
    )


def _texts(table: pa.Table, name: str, starts: np.ndarray) -> np.ndarray:
    if name not in table.column_names:
        return np.full(len(starts), None, object)
    values = np.empty(len(starts), object)
    values[:] = [None if v is None else sys.intern(str(v)[:200]) for v in listed(table[name].take(pa.array(starts)))]
    return values
