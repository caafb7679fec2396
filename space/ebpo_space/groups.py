"""Rollouts: an index of all groups.

A run of a million rows has a few hundred thousand groups. Their index is made from the columns without text, a file
at a time, once per file; it takes some 150 bytes per group. Prompts and answers are read for what is on the
page only.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from openrlhf_ebpo.run.run_log import rollouts_path, step_files

from .errors import RunError, attempt, reading
from .parquet import columns_of, flags, numbers, read, to_python
from .runs import Run, inside, stamp
from .text import middle_cut, plain

NUMBERS = ("reward", "baseline", "shrinkage", "advantage", "grpo_advantage", "response_length")
LIGHT = ("group", "prompt_id", "cluster", "valid", "error", "truncated", *NUMBERS)
NEEDED = ("group", "prompt", "response", "reward")
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
    length: np.ndarray  # sum of the responses' tokens
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


class Index:
    """All groups of one run; `read` adds new files and drops removed ones."""

    def __init__(self, run: Run, fail: float = 0.0, passing: float = 1.0):
        self.run, self.middle = run, (fail + passing) / 2
        self._lock = threading.Lock()
        self._blocks: dict[int, tuple[tuple, Groups | None, str]] = {}  # by step: sign of the file, groups, problem
        self._joined: tuple[frozenset, tuple[Groups, list[str]]] | None = None

    def read(self) -> tuple[Groups, list[str]]:
        """Return the index, and what could not be read."""
        with self._lock:
            signs = {step: stamp(path) for step, path in step_files(self.run.path).items()}
            self._blocks = {step: block for step, block in self._blocks.items() if signs.get(step) == block[0]}
            missing = [step for step in reversed(signs) if step not in self._blocks]
            if missing:
                with ThreadPoolExecutor(4) as pool:
                    for step, (kept, problem) in zip(missing, pool.map(self._block, missing), strict=True):
                        self._blocks[step] = (signs[step], kept, problem)
            state = frozenset((step, block[0]) for step, block in self._blocks.items())
            if self._joined is None or self._joined[0] != state:
                self._joined = (state, (self._join(list(signs)), [p for s in signs if (p := self._blocks[s][2])]))
            return self._joined[1]

    def _join(self, steps: list[int]) -> Groups:
        """Put the files together; each then is a view of all, so that nothing is held twice."""
        steps = [step for step in steps if self._blocks[step][1] is not None]
        parts = [self._blocks[step][1] for step in steps] or [_summarise(0, _NO_ROWS, 0.5)]
        names = [field.name for field in fields(Groups)]
        groups = Groups(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))
        at = 0
        for step, part in zip(steps, parts, strict=False):
            sign, _, problem = self._blocks[step]
            view = Groups(*(getattr(groups, name)[at : at + len(part)] for name in names))
            self._blocks[step], at = (sign, view, problem), at + len(part)
        return groups

    @property
    def damage(self) -> str:
        """Count the files that could not be read when the index was read last; "" for none."""
        bad = sum(block[1] is None for block in list(self._blocks.values()))
        return f"{bad} of {len(self._blocks)} rollout files cannot be read; the page Samples names them." if bad else ""

    def _block(self, step: int) -> tuple[Groups | None, str]:
        problems: list[str] = []
        made = lambda: _summarise(step, read_columns(self.run, step, LIGHT), self.middle)  # noqa: E731
        return attempt(made, None, problems, f"rollouts/step-{step:06d}.parquet"), "".join(problems)


def open_file(run: Run, step: int) -> pq.ParquetFile:
    """Open the rollouts of a step.

    Raises:
        RunError: it is gone, cannot be read, leads out of the run, or lacks a column that every schema so far has.
    """
    path = rollouts_path(run.path, step)
    if not path.is_file():
        why = "the run was resumed from an earlier step, or keeps the newest only"
        raise RunError(f"The rollouts of step {step} are gone ({why}).")
    name = path.name
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
        RunError: as `open_file`.
    """
    return read(open_file(run, step), f"rollouts/step-{step:06d}.parquet", columns, rows.start, rows.stop)


def _summarise(step: int, table: pa.Table, middle: float) -> Groups:
    """Summarise the groups of one file."""
    rows = table.num_rows
    number = {name: numbers(table, name) for name in NUMBERS}
    if table["group"].null_count:
        raise ValueError("a group has no number")
    group = table["group"].cast(pa.int64()).to_numpy()
    valid = flags(table, "valid", np.isfinite(number["reward"])) & np.isfinite(number["reward"])
    truncated = flags(table, "truncated", np.zeros(rows, bool))
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
    return Groups(
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
        length=total(np.nan_to_num(number["response_length"])),
        prompt_id=_texts(table, "prompt_id", starts),
        cluster=_texts(table, "cluster", starts),
    )


def _texts(table: pa.Table, name: str, starts: np.ndarray) -> np.ndarray:
    if name not in table.column_names:
        return np.full(len(starts), None, object)
    values = np.empty(len(starts), object)
    values[:] = [None if v is None else sys.intern(str(v)[:200]) for v in to_python(table[name].take(pa.array(starts)))]
    return values
