"""metrics.jsonl as columns, followed while it grows: a read takes only what was appended since the last one."""

from __future__ import annotations

import itertools
import json
import math
import threading
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import orjson

from openrlhf_ebpo.run.catalogue import HELD_OUT, find

AXES = {"step": "step", "rollouts": "rollouts", "time": "hours"}  # what a step may stand at, and its unit
FAR = 25  # widths of the middle half (it is 1.35 standard deviations of a normal distribution wide)
FEW, FEW_SHARE = 3, 0.005  # of a run's steps may lie outside
REWARD = ("rollout/reward_mean", "reward")  # names of the mean reward
LEAST = 8  # steps: fewer have no usual range
AT_A_TIME = 2**22  # bytes whose rows are held at once, some tens of times as large as the file says
_TAIL = 64  # bytes before the last position that must still be the same


@dataclass(frozen=True, eq=False)
class Metrics:
    """steps (N,) ascending; each column (N,) float64, NaN where a step has no value, or one that is not a number."""

    steps: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    columns: dict[str, np.ndarray] = field(default_factory=dict)
    problems: tuple[str, ...] = ()

    def series(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Return steps and values, without gaps."""
        values = self.columns.get(name)
        if values is None:
            return self.steps[:0], np.zeros(0)
        present = np.isfinite(values)
        return self.steps[present], values[present]

    def rewards(self) -> tuple[np.ndarray, np.ndarray]:
        """Return steps and mean rewards, by the first of their names that was logged."""
        found = map(self.series, REWARD)
        return next((each for each in found if len(each[0])), self.series(REWARD[0]))

    def held_out(self) -> tuple[np.ndarray, np.ndarray]:
        """Return steps and success of evaluations during training: the mean over data sets, where all were
        evaluated."""
        names = [name for name in self.columns if (known := find(name)) and known.name == HELD_OUT]
        if not names:
            return self.series(HELD_OUT)
        stacked = np.stack([self.columns[name] for name in names])
        present = np.isfinite(stacked).all(0)
        return self.steps[present], stacked[:, present].mean(0)

    def at(self, step: int, name: str) -> float | None:
        found = np.flatnonzero(self.steps == step)
        value = self.columns[name][found[0]] if len(found) and name in self.columns else math.nan
        return float(value) if math.isfinite(value) else None


class Follower:
    """One metrics.jsonl. `read` may be called from many threads."""

    def __init__(self, path: Path):
        self.path = path
        self._lock = threading.Lock()
        self._reset()

    def _reset(self) -> None:
        self._offset, self._tail = 0, b""
        self._damaged, self._metrics = 0, Metrics()

    def read(self) -> Metrics:
        """Read all complete lines so far; a file that was replaced or truncated is read from its start."""
        with self._lock:
            try:
                with open(self.path, "rb") as file:
                    self._follow(file)
            except FileNotFoundError:
                self._reset()
            except OSError as error:
                return Metrics(problems=(f"metrics.jsonl cannot be read ({error.strerror}).",))
            return self._metrics

    def _follow(self, file) -> None:
        file.seek(max(self._offset - len(self._tail), 0))
        if self._offset and file.read(len(self._tail)) != self._tail:
            self._reset()
            file.seek(0)
        while appended := file.read(AT_A_TIME):
            appended += file.readline()
            whole = appended[: appended.rfind(b"\n") + 1]
            if not whole:
                return
            self._offset += len(whole)
            self._tail = (self._tail + whole[-_TAIL:])[-_TAIL:]
            rows = [_row(line) for line in whole.split(b"\n") if line.strip()]
            self._damaged += rows.count(None)
            lines = "1 damaged line is" if self._damaged == 1 else f"{self._damaged} damaged lines are"
            problems = (f"metrics.jsonl: {lines} left out.",) if self._damaged else ()
            self._metrics = replace(_merge(self._metrics, [row for row in rows if row]), problems=problems)


def _row(line: bytes) -> dict | None:
    """Read a line; None if it is damaged. Python's own writer says NaN and Infinity, which are not JSON: they cost a
    metric one value, not the line."""
    try:
        try:
            row = orjson.loads(line)
        except orjson.JSONDecodeError:
            row = json.loads(line.decode("utf-8", "replace"), parse_constant=lambda _: None)
            "".join(row if isinstance(row, dict) else ()).encode()  # half a character in a name cannot be sent on
    except (ValueError, RecursionError):
        return None
    good = isinstance(row, dict) and type(row.get("step")) is int and 0 <= row["step"] < 2**31
    return row if good else None


def _merge(metrics: Metrics, rows: list[dict]) -> Metrics:
    """Merge rows of a known step into it, as `run_log.read_metrics` does."""
    if not rows:
        return metrics
    fresh_steps, index = np.unique([row["step"] for row in rows], return_inverse=True)
    steps = np.union1d(metrics.steps, fresh_steps)
    seen = dict.fromkeys(metrics.columns)
    for row in rows:
        fresh = row.keys() - seen.keys() - {"step"}
        seen |= dict.fromkeys(name for name in row if name in fresh and _number(row[name]) is not None)
    columns = {name: np.full(len(steps), np.nan) for name in seen}
    was = np.searchsorted(steps, metrics.steps)
    for name in metrics.columns:
        columns[name][was] = metrics.columns[name]
    at = np.searchsorted(steps, fresh_steps)[index].tolist()
    for i, row in zip(at, rows, strict=True):
        for name, value in row.items():
            if name in columns and (number := _number(value)) is not None and math.isfinite(number):
                columns[name][i] = number
    return Metrics(steps, columns)


def _number(value) -> float | None:
    """Read a metric's value: NaN for null and what no float64 holds, None for what was never a number."""
    if value is None:
        return math.nan
    try:
        return float(value) if type(value) in (float, int) else None
    except OverflowError:
        return math.nan


def positions(metrics: Metrics, steps: np.ndarray, axis: str) -> np.ndarray:
    """Place steps on the x axis: the step, responses so far, or hours since the first step."""
    if axis == "step" or not len(metrics.steps):
        return steps
    name = "time" if axis == "time" else "rollout/num_samples"
    column = metrics.columns.get(name)
    if column is None:
        return steps
    along = (column - np.nanmin(column)) / 3600 if axis == "time" else np.nancumsum(column)
    known = np.isfinite(along)
    return np.interp(steps, metrics.steps[known], along[known], left=0.0) if known.any() else steps


def outside(values: np.ndarray) -> np.ndarray:
    """Find the values that would squeeze all others into a line: further from the middle half than FAR times its
    width. None if there are more than a few of them, which then are what the run did."""
    if len(values) < LEAST:
        return np.zeros(len(values), bool)
    low, high = np.percentile(values, (25, 75))
    width = high - low
    far = (values < low - FAR * width) | (values > high + FAR * width) if width > 0 else np.zeros(len(values), bool)
    return far if far.sum() <= max(FEW, FEW_SHARE * len(values)) else np.zeros(len(values), bool)


def decimate(
    x: np.ndarray, y: np.ndarray, points: int, zoom: tuple[float, float] | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Keep at most about `points` of them: the lowest and the highest of each stretch, so that no spike is lost, and
    both ends. With a zoom that many inside it, and a few outside."""
    if zoom is not None:
        low, high = np.searchsorted(x, zoom)
        parts = [(slice(0, low), points // 8), (slice(low, high), points), (slice(high, len(x)), points // 8)]
        kept = [decimate(x[part], y[part], count) for part, count in parts]
        return np.concatenate([each[0] for each in kept]), np.concatenate([each[1] for each in kept])
    if len(y) <= points:
        return x, y
    edges = np.linspace(0, len(y), max(points // 2, 1) + 1).astype(int)
    keep = {0, len(y) - 1}
    for low, high in itertools.pairwise(edges):
        keep |= {low + int(y[low:high].argmin()), low + int(y[low:high].argmax())}
    kept = np.array(sorted(keep))
    return x[kept], y[kept]
