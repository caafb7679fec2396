"""How rewards, advantages, lengths and success are spread over a run's responses, step by step.

Kept of a rollout file are a few numbers a response (17 bytes) and a group, no text: a run of a million responses takes some
20 MB. Files are read once, in the background and in an order that soon covers the whole run; of a run with more responses than MOST
only every k-th file is read.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .errors import RunError, attempt
from .groups import open_file, read_columns, rollout_files, step_of
from .runs import Run

MOST = 2**20  # responses of a run
MOST_OF_STEP = 2**17  # of one file; more are left out, and said
CLUSTERS = 200  # names; further ones are taken together
OTHER = "other clusters"
WAIT = 0.15  # seconds in which a small run is read before its page is answered
NUMBERS = ("reward", "advantage", "grpo_advantage", "response_length", "baseline", "shrinkage", "group_mean")
COLUMNS = ("group", "cluster", "valid", *NUMBERS)
_AT_ONCE = threading.Semaphore(2)  # runs that are read in the background


@dataclass(frozen=True)
class Responses:
    """N responses with a reward. cluster: place among the names, -1 without one."""

    step: np.ndarray
    cluster: np.ndarray
    reward: np.ndarray
    advantage: np.ndarray
    grpo_advantage: np.ndarray
    length: np.ndarray


@dataclass(frozen=True)
class Grouped:
    """K groups with at least one of them. success: fraction of responses above the middle between fail and pass."""

    step: np.ndarray
    cluster: np.ndarray
    success: np.ndarray
    mean: np.ndarray
    baseline: np.ndarray
    shrinkage: np.ndarray


@dataclass(frozen=True, eq=False)
class Seen:
    """What is known of a run. files: how many there are to look at; looked: at how many has been; every: one of so many
    files is looked at."""

    responses: Responses
    groups: Grouped
    clusters: tuple[str, ...]
    looked: int
    files: int
    every: int
    problems: tuple[str, ...]

    @property
    def whole(self) -> bool:
        return self.looked == self.files

    def only(self, topic: str) -> Seen:
        """What is known of one cluster; of all for ""."""
        if not topic:
            return self
        cluster = self.clusters.index(topic) if topic in self.clusters else None
        return replace(self, responses=_only(self.responses, cluster), groups=_only(self.groups, cluster))


@dataclass
class Reader:
    """The rollouts of one run; `read` may be called from many threads."""

    run: Run
    fail: float = 0.0
    passing: float = 1.0
    _blocks: dict = field(default_factory=dict)
    _names: dict[str, int] = field(default_factory=dict)
    _work: threading.Thread | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _seen: tuple[frozenset, Seen] | None = None

    def read(self, wait: float = WAIT) -> Seen:
        """What has been looked at so far; what has not is read in the background, for which this waits so many seconds."""
        every, signs = self._wanted()
        with self._lock:
            self._blocks = {name: block for name, block in self._blocks.items() if signs.get(name) == block[0]}
            missing = [name for name in signs if name not in self._blocks]
            if missing and (self._work is None or not self._work.is_alive()):
                queue = [(name, signs[name]) for name in spread(missing)]
                self._work = threading.Thread(target=self._look, args=(queue,), daemon=True)
                self._work.start()
            work = self._work
        if missing and work:
            work.join(wait)
        with self._lock:
            return self._joined(every, signs)

    def _wanted(self) -> tuple[int, dict[str, tuple]]:
        """One of how many files is looked at, and the stamps of these; the newest is among them."""
        files = rollout_files(self.run)
        every = -(-len(files) * self._rows(files) // MOST) or 1
        signs = {}
        for path in files[::-1][::every][::-1]:
            try:
                status = path.stat()
            except OSError:  # a run that drops old rollouts
                continue
            signs[path.name] = (status.st_size, status.st_mtime_ns)
        return every, signs

    def _rows(self, files: Sequence[Path]) -> int:
        """Responses of one file: of those that were looked at, else of the newest."""
        counts = [block[3] for block in list(self._blocks.values())[:64] if block[3]]
        if counts:
            return int(np.mean(counts))
        try:
            return min(open_file(self.run, files[-1].name, ("group",)).metadata.num_rows, MOST_OF_STEP) if files else 0
        except RunError:
            return 0

    def _look(self, queue: list[tuple[str, tuple]]) -> None:
        with _AT_ONCE:
            for name, sign in queue:
                problems: list[str] = []
                block = attempt(lambda name=name: self._block(name), (None, None, 0, ""), problems, f"rollouts/{name}")
                block = (sign, *block[:3], *problems) if problems else (sign, *block)
                with self._lock:
                    self._blocks[name] = block

    def _block(self, name: str) -> tuple[Responses, Grouped, int, str]:
        table = read_columns(self.run, name, COLUMNS)
        said = (
            f"rollouts/{name}: the first {MOST_OF_STEP:,} responses are counted."
            if table.num_rows > MOST_OF_STEP
            else ""
        )
        table = table.slice(0, MOST_OF_STEP)
        found = summarised(step_of(Path(name)), table, (self.fail + self.passing) / 2, self._numbered)
        return *found, table.num_rows, said

    def _numbered(self, name: str) -> int:
        with self._lock:
            if name not in self._names and len(self._names) >= CLUSTERS:
                name = OTHER
            return self._names.setdefault(name, len(self._names))

    def _joined(self, every: int, signs: dict) -> Seen:
        state = frozenset((name, block[0]) for name, block in self._blocks.items())
        if self._seen is None or self._seen[0] != state or self._seen[1].files != len(signs):
            blocks = [self._blocks[name] for name in signs if name in self._blocks]
            problems = tuple(block[4] for block in blocks if block[4])
            found = [concatenated(kind, [b[at] for b in blocks if b[at] is not None]) for at, kind in _KINDS]
            self._seen = (state, Seen(*found, tuple(self._names), len(blocks), len(signs), every, problems))
        return self._seen[1]


_KINDS = ((1, Responses), (2, Grouped))


def spread(names: Sequence[str]) -> list[str]:
    """The newest first, then such that what has been seen at any time covers all of them evenly: places in the order of
    their bits from the last to the first."""
    bits = max(len(names) - 1, 1).bit_length()
    order = sorted(range(len(names)), key=lambda place: int(f"{place:0{bits}b}"[::-1], 2))
    return [names[-1 - place] for place in order]


def summarised(step: int, table: pa.Table, middle: float, numbered) -> tuple[Responses, Grouped]:
    """What is kept of one file. numbered: name of a cluster -> its number."""
    rows = table.num_rows
    number = {name: _floats(table, name) for name in NUMBERS}
    valid = np.isfinite(number["reward"]) & _flags(table, "valid")
    group = table["group"].cast(pa.int64()).to_numpy()
    starts = np.flatnonzero(np.concatenate([[True], group[1:] != group[:-1]])) if rows else np.zeros(0, int)
    owner = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, rows)))
    cluster = _clusters(table, starts, numbered)
    reward = number["reward"][valid]
    count = np.bincount(owner[valid], minlength=len(starts))
    some = count > 0
    safe = np.maximum(count, 1)
    responses = Responses(
        step=np.full(len(reward), step, np.int32),
        cluster=cluster[owner[valid]],
        reward=reward,
        advantage=number["advantage"][valid],
        grpo_advantage=number["grpo_advantage"][valid],
        length=number["response_length"][valid],
    )
    passed = np.bincount(owner[valid], reward > middle, minlength=len(starts)) / safe
    mean = np.bincount(owner[valid], reward, minlength=len(starts)) / safe
    groups = Grouped(
        step=np.full(int(some.sum()), step, np.int32),
        cluster=cluster[some],
        success=passed[some].astype(np.float32),
        mean=mean[some].astype(np.float32),
        baseline=number["baseline"][starts][some],
        shrinkage=number["shrinkage"][starts][some],
    )
    return responses, groups


def _floats(table: pa.Table, name: str) -> np.ndarray:
    if name not in table.column_names:
        return np.full(table.num_rows, np.nan, np.float32)
    values = table[name].cast(pa.float64()).to_numpy(zero_copy_only=False)
    return np.where(np.abs(values) < np.finfo(np.float32).max, values, np.nan).astype(np.float32)


def _flags(table: pa.Table, name: str) -> np.ndarray:
    if name not in table.column_names:
        return np.ones(table.num_rows, bool)
    return pc.fill_null(table[name].cast(pa.bool_()), True).to_numpy(zero_copy_only=False)


def _clusters(table: pa.Table, starts: np.ndarray, numbered) -> np.ndarray:
    """Of each group, as the names' numbers."""
    if "cluster" not in table.column_names or not len(starts):
        return np.full(len(starts), -1, np.int16)
    column = table["cluster"].take(pa.array(starts)).cast(pa.binary()).combine_chunks().dictionary_encode()
    names = [value.decode("utf-8", "replace")[:200] for value in column.dictionary.to_pylist()]
    numbers = np.array([*(numbered(name) for name in names), -1], np.int16)
    return numbers[pc.fill_null(column.indices, len(names)).to_numpy(zero_copy_only=False)]


def concatenated(kind: type, blocks: Sequence):
    if not blocks:
        return kind(np.zeros(0, np.int32), np.zeros(0, np.int16), *(np.zeros(0, np.float32) for _ in fields(kind)[2:]))
    return kind(*(np.concatenate([getattr(block, f.name) for block in blocks]) for f in fields(kind)))


def _only(found, cluster: int | None):
    kept = found.cluster == cluster
    return type(found)(*(getattr(found, f.name)[kept] for f in fields(found)))
