"""eval/ of a run: results with intervals, pass@k, questions and samples. One damaged result does not hide the
others."""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.eval.differences import spread
from openrlhf_ebpo.files import whole_characters
from openrlhf_ebpo.run.results import SAMPLES_FILE, SUMMARY, read_result
from openrlhf_ebpo.run.score_text import k_of, majorities, passes

from .errors import RunError, attempt, reading
from .figures import colour
from .parquet import read, rows_of, to_python
from .runs import Run, inside, stamp, summaries

BASE = -1
MAX_COLUMNS = 6  # of a table: checkpoints side by side
RUNS = 4  # with their first and last checkpoints side by side
MAX_CACHED_RESULTS = 2000
MAX_NAME_CHARS = 300  # of a task or a protocol, as many as a link has


@dataclass(frozen=True)
class Result:
    """One task at one step. metrics: name -> {value, interval, standard_error, run_interval}, fractions, as
    run/results.py reads them."""

    run: str
    protocol: str
    task: str
    step: int
    metrics: dict
    questions: int
    samples: int
    place: str  # of samples.parquet, below the run
    seeds: tuple[Result, ...] = ()  # those that this one averages

    @property
    def parts(self) -> tuple[Result, ...]:
        return self.seeds or (self,)

    @property
    def vote(self) -> str | None:
        """maj@k of the most responses, where several vote."""
        return next((name for name in reversed(majorities(self.metrics)) if k_of(name) > 1), None)

    def pass_curve(self) -> list[tuple[int, dict]]:
        return [(k_of(name), self.metrics[name]) for name in passes(self.metrics)]


class Column(NamedTuple):
    """A checkpoint of a run. number: of the run's colour, BASE of the base model of all runs."""

    number: int
    run: str
    step: int

    @property
    def shade(self) -> str:
        return "muted" if self.number == BASE else colour(self.number)

    @property
    def name(self) -> str:
        return f"{self.run} · {self.step_name}"

    @property
    def step_name(self) -> str:
        return f"step {self.step}" if self.step else "base model"


def average_seeds(name: str, by_run: Sequence[Sequence[Result]]) -> list[Result]:
    """Average the results of runs of one configuration where most of them have one; all results as they are if they
    share none as late as the last of every run. name: of the configuration, which is the average's run.

    Of the base model, which all seeds start from, the interval is the first run's, over questions, around the mean.
    """
    places: dict[tuple, list[Result]] = {}
    for result in itertools.chain(*by_run):
        places.setdefault((result.protocol, result.task, result.step), []).append(result)
    runs = Counter(key for results in by_run for key in {(each.protocol, each.task) for each in results})
    found = [each for place, each in places.items() if len(each) > 1 and 2 * len(each) > runs[place[:2]]]
    if max((each[0].step for each in found), default=-1) < min(max(each.step for each in own) for own in by_run):
        return list(itertools.chain(*by_run))
    return [
        replace(each[0], run=name, seeds=tuple(each), metrics=_average(each) if each[0].step else _moved(each))
        for each in found
    ]


def _average(results: Sequence[Result]) -> dict:
    """Average every metric that all results have; its interval is over seeds."""
    names = [name for name in results[0].metrics if all(name in each.metrics for each in results)]
    values = {name: np.array([each.metrics[name]["value"] for each in results]) for name in names}
    ends = {name: [float(np.clip(end, 0, 1)) for end in spread(each)] for name, each in values.items()}
    return {name: {"value": float(each.mean()), "interval": ends[name]} for name, each in values.items()}


def _moved(results: Sequence[Result]) -> dict:
    """Move the first result's metrics to the mean of all."""
    found = {}
    for name, metric in results[0].metrics.items():
        value = float(np.mean([each.metrics.get(name, metric)["value"] for each in results]))
        ends = [min(max(end + value - metric["value"], 0.0), 1.0) for end in metric["interval"]]
        found[name] = {**metric, "value": value, "interval": ends}
    return found


def checkpoints(found: Iterable[tuple[int, Result]]) -> list[Column]:
    return sorted({Column(number, result.run, result.step) for number, result in found})


def columns(found: Iterable[tuple[int, Result]], names: Collection[str] = (), one_base: bool = False) -> list[Column]:
    """Choose checkpoints by name; without any, take all, or of many the first and the last of each run, up to RUNS
    runs, one of each configuration in turn.

    Args:
        one_base: all runs started from the same base model, which gets one column, the first.
    """
    every = checkpoints(found)
    chosen = [column for column in every if column.name in names][:MAX_COLUMNS] or every
    if len(chosen) > MAX_COLUMNS:
        configurations: dict[int, dict[str, list[Column]]] = {}
        for column in every:
            configurations.setdefault(column.number, {}).setdefault(column.run, []).append(column)
        turns = itertools.zip_longest(*(runs.values() for runs in configurations.values()))
        runs = [steps for turn in turns for steps in turn if steps][:RUNS]
        chosen = [column for steps in sorted(runs) for column in dict.fromkeys((steps[0], steps[-1]))]
    if not one_base:
        return chosen
    base = [column._replace(number=BASE) for column in chosen if not column.step]
    return base[:1] + [column for column in chosen if column.step]


def largest_protocol(found: Sequence[Result]) -> str:
    """Return the protocol with the most results; numbers of two protocols do not belong into one mean. "" without
    results."""
    counted = Counter(result.protocol for result in sorted(found, key=lambda result: result.protocol))
    return max(counted, key=counted.__getitem__, default="")


def scores(found: Sequence[Result]) -> dict[tuple[int, str], Result]:
    """Return, by step and task, the results with a pass@1 under the largest protocol."""
    protocol = largest_protocol(found)
    return {(each.step, each.task): each for each in found if each.protocol == protocol and "pass@1" in each.metrics}


def ends_of(columns: Sequence[Column]) -> dict[str, tuple[Column, Column]]:
    """Return the first and the last column of each run."""
    ends: dict[str, tuple[Column, Column]] = {}
    for column in sorted(columns, key=lambda column: column.step):
        ends[column.run] = (ends.get(column.run, (column,))[0], column)
    return dict(sorted(ends.items(), key=lambda item: item[1][0].number))


def find(run: Run) -> tuple[list[Result], list[str]]:
    """Results in order of task and step, and what could not be read."""
    results, problems = [], []
    for path in summaries(run.path):
        place = path.parent.relative_to(run.path).as_posix()
        read = lambda place=place: _read(run, place, stamp(inside(run, place, SUMMARY)))  # noqa: E731
        found = attempt(read, None, problems, f"{place}/{SUMMARY}")
        results += [found] if found else []
    tasks = sorted({result.task for result in results})
    return sorted(results, key=lambda r: (r.protocol, tasks.index(r.task), r.step)), problems


@functools.lru_cache(MAX_CACHED_RESULTS)
def _read(run: Run, place: str, stamp: tuple[int, ...]) -> Result:
    try:
        found = read_result(run.path / place)
    except UsageError as error:
        raise RunError(str(error).replace(f"{run.path}/", "")) from None
    return Result(
        run=run.key,
        protocol=_name(found.protocol["name"]),
        task=_name(found.task),
        step=found.step,
        metrics={name: value for name, value in found.metrics.items() if isinstance(value, dict)},
        questions=int(found.metrics["questions"]),
        samples=int(found.metrics["samples_per_question"]),
        place=place,
    )


def _name(value) -> str:
    """Short enough for a link."""
    return whole_characters(str(value)[:MAX_NAME_CHARS])


def _table(run: Run, place: str, columns: Sequence[str], rows: Sequence[int] | None = None) -> pa.Table:
    """Read those columns of samples.parquet, of these rows (ascending) or all."""
    named = f"{place}/samples.parquet"
    with reading(named):
        file = pq.ParquetFile(inside(run, place, "samples.parquet"))
        if rows is None:
            return read(file, named, columns)
        return read(file, named, columns, rows[0], rows[-1] + 1).take([row - rows[0] for row in rows])


@dataclass(frozen=True)
class Question:
    """One question of a result: its key (the same in every result of the task), text, success rate, rows of its
    samples."""

    key: str
    text: str
    gold: str
    rate: float
    rows: tuple[int, ...]


def questions(run: Run, result: Result) -> Sequence[Question]:
    """Return every question with its success rate, in order.

    Raises:
        RunError: the samples cannot be read.
    """
    return _questions(run, result.place, stamp(inside(run, result.place, SAMPLES_FILE)))


def rates(run: Run, result: Result) -> dict[str, float]:
    """Return the success rate by question.

    Raises:
        RunError: the samples cannot be read.
    """
    return {question.key: question.rate for question in questions(run, result)}


@functools.lru_cache(128)
def _questions(run: Run, place: str, stamp: tuple[int, ...]) -> tuple[Question, ...]:
    table = _table(run, place, ("question_id", "question", "gold", "correct"))
    with reading(f"{place}/samples.parquet"):
        found = by_question(table)
        heads = rows_of(table.take(pc.list_element(found["row_list"], 0)))
        parts = to_python(found["key"]), heads, to_python(found["correct_mean"]), to_python(found["row_list"])
    return tuple(
        Question(str(key), str(head.get("question") or ""), str(head.get("gold") or ""), rate, tuple(rows))
        for key, head, rate, rows in zip(*parts, strict=True)
    )


def by_question(table: pa.Table) -> pa.Table:
    """Return key, row_list, correct_mean of each question, in order of their first rows. The key is the question_id or,
    in a row without one, the text. Of millions of rows only these become Python's."""
    names = [table[name].cast(pa.string()) for name in ("question_id", "question") if name in table.column_names]
    keys = pc.coalesce(*(pc.if_else(pc.equal(name, ""), pa.scalar(None, pa.string()), name) for name in names))
    right = pc.fill_null(table["correct"].cast(pa.bool_()), False).cast(pa.float64())
    rows = pa.table({"key": pc.fill_null(keys, ""), "row": pa.array(range(len(table))), "correct": right})
    return rows.group_by("key", use_threads=False).aggregate([("row", "list"), ("correct", "mean")])


def samples(run: Run, result: Result, key: str) -> list[dict]:
    """Read all samples of one question, with the row of each in its file; [] if the result does not have it."""
    question = next((each for each in questions(run, result) if each.key == key), None)
    if question is None:
        return []
    names = (
        *("question_id", "question", "gold", "response", "extracted", "correct", "error"),
        *("length", "finish_reason", "sample"),
    )
    rows = rows_of(_table(run, result.place, names, question.rows))
    return [{**row, "row": number} for number, row in zip(question.rows, rows, strict=True)]


def sample(run: Run, place: str, row: int, columns: Sequence[str]) -> dict:
    """Read one row of a result's samples.

    Raises:
        RunError: it cannot be read.
    """
    return rows_of(_table(run, place, columns, [row]))[0]
