"""Rollouts: an index of all groups and of the numbers of their responses.

A run of a million rows has a few hundred thousand groups. Their index is made from the columns without text, a file at a
time, once per file; it takes some 150 bytes per group and 20 per response. Prompts and answers are read for what is on the
page only.
"""

from __future__ import annotations

import re
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from .bounded import columns_of, read
from .errors import RunError, attempt, reading
from .runs import Run, inside

NUMBERS = ("reward", "baseline", "shrinkage", "advantage", "grpo_advantage", "response_length")
LIGHT = ("group", "prompt_id", "cluster", "valid", "error", "truncated", *NUMBERS)
NEEDED = ("group", "prompt", "response", "reward")
_NAME = re.compile(r"step-(\d{1,9})\.parquet", re.ASCII)
MAX_GROUPS = 2**22  # of a run
MAX_RESPONSES = 2**22  # of a run, those of the latest steps, whose numbers are kept
_CLOSE = 1e-6


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
    """All groups of one run; `read` adds new files and drops removed ones. responses: as of the last `read`."""

    def __init__(self, run: Run, fail: float = 0.0, passing: float = 1.0):
        self.run, self.middle = run, (fail + passing) / 2
        self._lock = threading.Lock()
        self._blocks: dict[str, tuple[tuple, tuple[Groups, Responses] | None, str]] = {}
        self._joined: tuple[frozenset, Groups, list[str]] | None = None
        self.responses = Responses(*(np.zeros(0, np.float32) for _ in fields(Responses)))

    def read(self) -> tuple[Groups, list[str]]:
        """The index, and what could not be read."""
        with self._lock:
            files = rollout_files(self.run)
            signs = {path.name: _sign(path) for path in files}
            self._blocks = {name: block for name, block in self._blocks.items() if signs.get(name) == block[0]}
            missing = [path for path in reversed(files) if path.name not in self._blocks]
            self._count = [sum(len(kept[i]) for _, kept, _ in self._blocks.values() if kept) for i in (0, 1)]
            if missing:
                with ThreadPoolExecutor(4) as pool:
                    for path, (kept, problem) in zip(missing, pool.map(self._block, missing), strict=True):
                        self._blocks[path.name] = (signs[path.name], kept, problem)
            state = frozenset((name, block[0]) for name, block in self._blocks.items())
            if self._joined is None or self._joined[0] != state:
                blocks = [self._blocks[path.name] for path in files]
                groups, self.responses = _concatenated([block[1] for block in blocks if block[1] is not None])
                self._joined = (state, groups, [block[2] for block in blocks if block[2]])
            return self._joined[1], self._joined[2]

    @property
    def damage(self) -> str:
        """How many files could not be read when the index was read last; "" for none."""
        bad = sum(block[1] is None for block in list(self._blocks.values()))
        return f"{bad} of {len(self._blocks)} rollout files cannot be read; the page Samples names them." if bad else ""

    def _block(self, path: Path) -> tuple[tuple[Groups, Responses] | None, str]:
        def summarised() -> tuple[Groups, Responses]:
            if self._count[0] > MAX_GROUPS:
                raise RunError(f"rollouts/{path.name} is left out: the later steps have {MAX_GROUPS:,} groups.")
            groups, responses = _summarise(step_of(path), read_columns(self.run, path.name, LIGHT), self.middle)
            if self._count[1] > MAX_RESPONSES:
                responses = _only(responses, slice(0, 0))
            self._count = [self._count[0] + len(groups), self._count[1] + len(responses)]
            return groups, responses

        problems: list[str] = []
        return attempt(summarised, None, problems, f"rollouts/{path.name}"), "".join(problems)


def rollout_files(run: Run) -> list[Path]:
    """In order of step."""
    folder = run.path / "rollouts"
    found = [path for path in folder.glob("step-*.parquet") if _NAME.fullmatch(path.name)] if folder.is_dir() else []
    return sorted(found, key=step_of)


def step_of(path: Path) -> int:
    return int(_NAME.fullmatch(path.name)[1])


def file_of(run: Run, step: int) -> str | None:
    usual = f"step-{int(step):06d}.parquet"
    if (run.path / "rollouts" / usual).is_file():
        return usual
    return next((path.name for path in rollout_files(run) if step_of(path) == int(step)), None)


def _sign(path: Path) -> tuple:
    try:
        status = path.stat()
    except OSError:
        return ()
    return status.st_size, status.st_mtime_ns, status.st_ino


def open_file(run: Run, name: str, needed: tuple[str, ...] = NEEDED) -> pq.ParquetFile:
    """Open a rollout file of a run.

    Raises:
        RunError: it cannot be read, leads out of the run, or lacks a column that every schema so far has.
    """
    with reading(f"rollouts/{name}"):
        file = pq.ParquetFile(inside(run, "rollouts", name))
        present = columns_of(file)
    if len(set(present)) < len(present):
        raise RunError(f"rollouts/{name} is left out: it has columns of the same name.")
    lacking = [column for column in needed if column not in present]
    if lacking:
        raise RunError(f"rollouts/{name} is left out: it lacks the columns {', '.join(lacking)} (another schema?).")
    return file


def read_columns(run: Run, name: str, columns: tuple[str, ...], rows: slice | None = None) -> pa.Table:
    """Those columns that the file has, cut to `rows` if given.

    Raises:
        RunError: as `open_file`, or the rows are too large.
    """
    file, rows = open_file(run, name), rows or slice(0, None)
    return read(file, f"rollouts/{name}", columns, rows.start, rows.stop)


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


def _summarise(step: int, table: pa.Table, middle: float) -> tuple[Groups, Responses]:
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
        step=np.full(len(starts), step),
        group=group[starts],
        row=starts,
        size=np.diff(np.append(starts, rows)),
        mean=np.where(none, np.nan, total(np.where(valid, reward, 0)) / safe),
        lowest=extreme(np.minimum, np.where(valid, reward, np.inf)),
        highest=extreme(np.maximum, np.where(valid, reward, -np.inf)),
        success=np.where(none, np.nan, total(valid & (reward > middle)) / safe),
        baseline=number["baseline"][starts],
        shrinkage=number["shrinkage"][starts],
        rescued=total(rescued).astype(int),
        pushed_down=total(rescued & (advantage < 0)).astype(int),
        truncated=total(truncated).astype(int),
        errors=total(failed).astype(int),
        valid=count.astype(int),
        compared=total(compared).astype(int),
        ignored=total(compared & (grpo == 0)).astype(int),
        push=total(np.where(rescued & compared, advantage, 0)),
        shift=total(np.where(compared, np.abs(advantage - grpo), 0)),
        prompt_id=_texts(table, "prompt_id", starts),
        cluster=_texts(table, "cluster", starts),
    )
    owner = np.repeat(np.arange(len(starts), dtype=np.int32), groups.size)
    kept = (owner, *map(_short, (reward, advantage, grpo, number["response_length"])))
    return groups, _only(Responses(*kept), valid)


def _short(values: np.ndarray) -> np.ndarray:
    """float32, NaN for what it does not hold."""
    return np.where(np.abs(values) < np.finfo(np.float32).max, values, np.nan).astype(np.float32)


def _only(responses: Responses, rows) -> Responses:
    return Responses(*(getattr(responses, f.name)[rows] for f in fields(Responses)))


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
    values[:] = [None if v is None else str(v)[:200] for v in listed(table[name].take(pa.array(starts)))]
    return values


def _concatenated(blocks: list[tuple[Groups, Responses]]) -> tuple[Groups, Responses]:
    blocks = blocks or [_summarise(0, pa.table({"group": pa.array([], pa.int64())}), 0.5)]
    starts = np.cumsum([0, *(len(groups) for groups, _ in blocks[:-1])], dtype=np.int32)
    moved = [replace(each, group=each.group + start) for (_, each), start in zip(blocks, starts, strict=True)]
    return _joined(Groups, [groups for groups, _ in blocks]), _joined(Responses, moved)


def _joined(kind: type, parts: list):
    return kind(**{f.name: np.concatenate([getattr(part, f.name) for part in parts]) for f in fields(kind)})
