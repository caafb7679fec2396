"""Rows of a task, from a local file or from the Hugging Face Hub, and the task made of them."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from openrlhf_ebpo.data.questions import question_id
from openrlhf_ebpo.data.training_tables import column_names, identity, read_rows
from openrlhf_ebpo.errors import UsageError

from .types import Question, Rules, Task

logger = logging.getLogger(__name__)

TASKS_FLAG = "--tasks"


@dataclass(frozen=True)
class Rows:
    """columns: names, those inside structs too, with dots. source: for Task.source; place: for messages."""

    columns: Sequence[str]
    rows: Sequence[dict]
    source: str
    place: str


@dataclass(frozen=True)
class HubSet:
    """A data set on the Hub. revision None: the newest."""

    repo: str
    split: str
    subset: str | None = None
    revision: str | None = None


def file_rows(path: str | Path) -> Rows:
    """Return all rows of a data set on this machine, in any form that training reads.

    Raises:
        UsageError: as `read_rows`, or it is empty.
    """
    columns = column_names(path, TASKS_FLAG)
    rows = [row for batch in read_rows(path, flag=TASKS_FLAG) for row in batch]
    if not rows:
        raise UsageError(f"{TASKS_FLAG} {path}: the file is empty")
    digest = identity(path).rpartition("@")[2]
    return Rows(columns, rows, f"{path}@{digest}", str(path))


def hub_rows(hub: HubSet, columns: Sequence[str], named: str) -> Rows:
    """Return the rows with those of `columns` that the data set has; others may be images. Downloaded once, then read
    from the cache of `datasets`, also without a network. named: what --tasks calls the benchmark.

    Raises:
        UsageError: `datasets` is not installed, or the Hub cannot be reached; says how to give a local file.
    """
    try:
        from datasets import load_dataset_builder
    except ImportError:
        raise UsageError(
            f"{TASKS_FLAG} {named}: the Hub needs `pip install 'openrlhf_ebpo[data]'`; {_local_file(named)}"
        ) from None
    try:
        builder = load_dataset_builder(hub.repo, hub.subset, revision=hub.revision)
        builder.download_and_prepare()
        data = builder.as_dataset(split=hub.split)
    except Exception as error:  # the Hub's client raises errors of several libraries
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        raise UsageError(
            f"{TASKS_FLAG} {named}: {hub.repo} cannot be downloaded from the Hub ({reason}). {_local_file(named)}"
        ) from error
    found = [name for name in data.column_names if name in columns]
    rows = data.select_columns(found).with_format("arrow")[:].to_pylist()
    return Rows(data.column_names, rows, f"{hub.repo}@{builder.hash}", hub.repo)


def _local_file(named: str) -> str:
    return (
        f"Without it: download the data set's .parquet or .jsonl file elsewhere, copy it here and name it, "
        f"{TASKS_FLAG} {named}=FILE"
    )


def make_task(
    name: str,
    rows: Rows,
    read: Callable[[dict], tuple[str, str, Rules]],
    notes: Sequence[str] = (),
    expected_rows: tuple[int, ...] = (),
) -> Task:
    """Make a task of all rows that `read` makes a question, a gold answer and rules of.

    read: raises ValueError for a row that cannot be used. Such rows are left out, logged and listed.

    Raises:
        UsageError: no row can be used.
    """
    questions, skipped, row_of = [], [], {}
    seen: Counter[str] = Counter()
    for number, row in enumerate(rows.rows, 1):
        try:
            text, gold, rules = read(row)
        except ValueError as error:
            skipped.append(f"row {number} of {rows.place} is left out: {error}")
            continue
        key = question_id(text)
        seen[key] += 1
        question = Question(key if seen[key] == 1 else f"{key}-{seen[key]}", text, gold, rules)
        questions.append(question)
        row_of[question.id] = number
    if not questions:
        raise UsageError(f"{TASKS_FLAG} {rows.place}: none of its {len(rows.rows)} rows can be used: {skipped[0]}")
    notes = list(notes)
    if expected_rows and len(rows.rows) not in expected_rows:
        numbers = " or ".join(map(str, expected_rows))
        notes.append(f"{rows.place} has {len(rows.rows)} rows, the public data set {numbers}: scores do not compare")
    if repeats := sum(count - 1 for count in seen.values()):
        notes.append(f"{repeats} questions repeat an earlier one")
    for message in (*notes, *skipped):
        logger.warning("%s: %s", name, message)
    return Task(name, tuple(questions), rows.source, tuple(notes), tuple(skipped), len(rows.rows), row_of)
