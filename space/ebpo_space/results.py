"""eval/ of a run: results with intervals, pass@k, questions and samples. One damaged result does not hide the others."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from openrlhf_ebpo.eval.metrics import pass_at_k, powers, standard_error
from openrlhf_ebpo.eval.resampling import bootstrap_interval
from openrlhf_ebpo.eval.results import SCHEMA
from openrlhf_ebpo.eval.scores import ordered

from .errors import RunError
from .runs import Run, inside

PLACES = ("eval/*/*/step-*/summary.json", "*/*/step-*/summary.json")
COUNT = 2000  # results of one run
_LARGEST = 16 * 2**20  # bytes of a summary.json
_ROWS = 5_000_000


@dataclass(frozen=True)
class Result:
    """One task at one step. metrics: name -> {value, interval, standard_error}, fractions."""

    run: str
    protocol: str
    task: str
    step: int
    metrics: dict
    questions: int
    samples: int
    place: str  # of samples.parquet, below the run

    @property
    def label(self) -> str:
        return f"{self.run} · step {self.step}" if self.step else f"{self.run} · base"

    def pass_curve(self) -> list[tuple[int, dict]]:
        found = [
            (int(name[5:]), m) for name, m in self.metrics.items() if name.startswith("pass@") and name[5:].isdigit()
        ]
        return sorted(found)


_cache: dict[tuple, Result] = {}


def find(run: Run) -> tuple[list[Result], list[str]]:
    """Results in order of task and step, and what could not be read."""
    paths = next((found for place in PLACES if (found := sorted(run.path.glob(place)))), [])
    results, problems = [], [f"Only {COUNT} of {len(paths)} results are shown."] if len(paths) > COUNT else []
    for path in paths[:COUNT]:
        try:
            results.append(_result(run, path))
        except RunError as error:
            problems.append(str(error))
    tasks = ordered(result.task for result in results)
    return sorted(results, key=lambda r: (r.protocol, tasks.index(r.task), r.step)), problems


def _result(run: Run, path: Path) -> Result:
    place = "/".join(path.parent.relative_to(run.path).parts)
    path = inside(run, place, "summary.json")
    status = path.stat()
    key = (run.key, str(path), status.st_mtime_ns, status.st_size)
    if key not in _cache:
        _cache[key] = _read(run, path, place)
    return _cache[key]


def _read(run: Run, path: Path, place: str) -> Result:
    shown = f"{place}/summary.json"
    if path.stat().st_size > _LARGEST:
        raise RunError(f"{shown} is left out: larger than {_LARGEST >> 20} MiB.")
    try:
        summary = json.loads(path.read_text(encoding="utf-8", errors="replace"))
        *_, protocol, task, step = place.split("/")
        step = int(step.removeprefix("step-"))
        if "schema" not in summary:
            return _quickstart(run, summary, protocol, task, step, place)
        if not isinstance(summary["schema"], int) or summary["schema"] > SCHEMA:
            raise RunError(
                f"{shown} has schema {str(summary['schema'])[:20]}; this app reads up to {SCHEMA}: update it."
            )
        metrics = {name: _metric(value) for name, value in summary["metrics"].items() if isinstance(value, dict)}
        return Result(
            run=run.key,
            protocol=str(summary["protocol"].get("name") or protocol),
            task=str(summary["task"]["name"]),
            step=step,
            metrics=metrics,
            questions=int(summary["metrics"]["questions"]),
            samples=int(summary["metrics"]["samples_per_question"]),
            place=place,
        )
    except RunError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise RunError(f"{shown} is damaged and left out.") from None


def _metric(value: dict) -> dict:
    low, high = value["interval"]
    error = value.get("standard_error")
    return {
        "value": float(value["value"]),
        "interval": (float(low), float(high)),
        "standard_error": None if error is None else float(error),
    }


def _quickstart(run: Run, summary: dict, protocol: str, task: str, step: int, place: str) -> Result:
    """The quickstart's summaries have no schema and no intervals: they come from its samples."""
    n = int(summary["samples_per_question"])
    correct = np.array([row["correct"] for row in _rows(run, place, ("correct",))], float)
    if len(correct) % n or not len(correct):
        raise RunError(f"{place}/samples.parquet is left out: its samples do not make whole questions.")
    correct = correct.reshape(-1, n)  # written question by question
    values = {f"pass@{k}": pass_at_k(correct.astype(bool), k) for k in powers(n)}
    intervals = bootstrap_interval(np.column_stack(list(values.values())))
    metrics = {
        name: {"value": float(each.mean()), "interval": (float(low), float(high)), "standard_error": None}
        for (name, each), low, high in zip(values.items(), *intervals, strict=True)
    }
    metrics["pass@1"]["standard_error"] = standard_error(correct)
    return Result(run.key, protocol, task, step, metrics, len(correct), n, place)


def _rows(run: Run, place: str, columns: Sequence[str], rows: slice | None = None) -> list[dict]:
    path = inside(run, place, "samples.parquet")
    try:
        file = pq.ParquetFile(path)
        if file.metadata.num_rows > _ROWS:
            raise RunError(f"{place}/samples.parquet is left out: more than {_ROWS:,} rows.")
        present = [name for name in columns if name in file.schema_arrow.names]
        table = file.read(columns=present)
    except FileNotFoundError:
        raise RunError(f"{place}/samples.parquet is missing.") from None
    except (pa.ArrowException, OSError, ValueError):
        raise RunError(f"{place}/samples.parquet is damaged and left out.") from None
    return (table if rows is None else table.slice(rows.start, rows.stop - rows.start)).to_pylist()


@dataclass(frozen=True)
class Question:
    """One question of a result: its key (the same in every result of the task), text and success rate."""

    key: str
    text: str
    gold: str
    rate: float
    answered: int


def questions(run: Run, result: Result) -> list[Question]:
    """Every question with its success rate, in order. Raises RunError where the samples cannot be read."""
    counted: dict[str, list] = {}
    for row in _rows(run, result.place, ("question_id", "question", "gold", "correct")):
        key = str(row.get("question_id") or row.get("question"))
        entry = counted.setdefault(key, [str(row.get("question") or ""), str(row.get("gold") or ""), 0, 0])
        entry[2] += bool(row.get("correct"))
        entry[3] += 1
    return [Question(key, text, gold, right / n, n) for key, (text, gold, right, n) in counted.items()]


def samples(run: Run, result: Result, key: str) -> list[dict]:
    """All samples of one question."""
    names = (
        "question_id",
        "question",
        "gold",
        "response",
        "extracted",
        "correct",
        "error",
        "length",
        "finish_reason",
        "sample",
    )
    rows = _rows(run, result.place, names)
    return [row for row in rows if str(row.get("question_id") or row.get("question")) == key]
