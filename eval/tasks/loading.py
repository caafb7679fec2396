"""The task of a benchmark: rows from the Hub, from a file or from the benchmark's own, and what it makes of them."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import MappingProxyType

from openrlhf_ebpo.data.source import lookup
from openrlhf_ebpo.data.training_tables import READ_SUFFIXES
from openrlhf_ebpo.errors import UsageError

from .benchmark import Benchmark
from .task_rows import (
    TASKS_FLAG,
    HubSet,
    Rows,
    choose_column,
    custom_rows,
    file_rows,
    hub_rows,
    make_task,
    question_text,
)
from .types import Rules, Task


def load_benchmark(benchmark: Benchmark, named: str, place: str | None = None) -> Task:
    """Return the task of a benchmark.

    named: what --tasks calls it. place: a file, or OWNER/NAME[@REVISION] of one of its copies on the Hub; None: the
    default copy.

    Raises:
        UsageError: it cannot be read, or a function of the benchmark is wrong.
    """
    rows = _rows(benchmark, named, place)
    question = choose_column(rows.columns, benchmark.question, rows.place, "question")
    answer = choose_column(rows.columns, benchmark.answer, rows.place, "gold answer")

    def read(row: dict) -> tuple[str, str, Rules]:
        row = MappingProxyType(row)  # a function of the benchmark that changed it would change the gold
        text, value = benchmark.prompt_of(question_text(row, question), row), lookup(row, answer)
        gold = benchmark.gold_of(value)
        return text, gold, benchmark.rules_of(row, value, gold)

    there = {*rows.columns, *(name for row in rows.rows for name in row)}
    missing = [column for column in benchmark.columns if column not in there]
    notes = [f"{rows.place} has no {', '.join(missing)}: what they say of a question is not known"] if missing else []
    task = make_task(benchmark.name, rows, read, notes, benchmark.rows)
    return dataclasses.replace(task, reward=str(benchmark.reward)) if benchmark.reward else task


def _rows(benchmark: Benchmark, named: str, place: str | None) -> Rows:
    if place is None and benchmark.data:
        return custom_rows(benchmark.data, named)
    if place is None:
        if not benchmark.copies:
            raise UsageError(f"{TASKS_FLAG} {named}: it has no data; name a file, {TASKS_FLAG} {named}=FILE")
        first = benchmark.copies[0]
        return file_rows(first) if isinstance(first, Path) else _from_hub(first, benchmark, named)
    if Path(place).suffix.lower() in READ_SUFFIXES:
        return file_rows(place)
    repo, _, revision = place.partition("@")
    known = {copy.repo: copy for copy in benchmark.copies if isinstance(copy, HubSet)}
    if repo not in known:
        raise UsageError(
            f"{TASKS_FLAG} {named}={place}: neither a {'/'.join(READ_SUFFIXES)} file nor a known copy on the Hub "
            f"({', '.join(known) or 'none'}). {TASKS_FLAG} file:PATH evaluates on any file with questions "
            f"and answers"
        )
    return _from_hub(dataclasses.replace(known[repo], revision=revision or None), benchmark, named)


def _from_hub(copy: HubSet, benchmark: Benchmark, named: str) -> Rows:
    names = (*benchmark.question, *benchmark.answer)
    return hub_rows(copy, [*names, *(name.capitalize() for name in names), *benchmark.columns], named)
