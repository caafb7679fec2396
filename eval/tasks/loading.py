"""Tasks: of a benchmark, with rows from the Hub, from a file or its own; and of `file:PATH`, a data set on this machine
with questions and answers."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from types import MappingProxyType

from openrlhf_ebpo.data.clean import prompt_text
from openrlhf_ebpo.data.questions import bare_question
from openrlhf_ebpo.data.source import ANSWER_COLUMNS, PROMPT_COLUMNS, choose_column, lookup
from openrlhf_ebpo.data.training_tables import READ_SUFFIXES
from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.progress import fingerprint

from .benchmark import Benchmark, gold_text, label_text
from .task_rows import TASKS_FLAG, HubSet, Rows, file_rows, hub_rows, make_task
from .types import MATH, Rules, Task, column_rules

# A prepared training set has both: `prompt` is `question` in its instruction, which the protocol adds.
QUESTIONS = tuple(dict.fromkeys(("question", "problem", *PROMPT_COLUMNS)))
ANSWERS = tuple(dict.fromkeys(("answer", "gold", "label", "answerKey", *ANSWER_COLUMNS)))
CHOICES = ("choices", "options")
FILE = "file:"


def load_benchmark(benchmark: Benchmark, named: str, place: str | None = None) -> Task:
    """Return the task of a benchmark.

    named: what --tasks calls it. place: a file, or OWNER/NAME[@REVISION] of one of its copies on the Hub; None: the
    default copy.

    Raises:
        UsageError: it cannot be read, or a function of the benchmark is wrong.
    """
    rows = _rows(benchmark, named, place)
    columns = (benchmark.question, benchmark.answer)
    question, answer = (choose_column(rows.columns, known, f"{TASKS_FLAG} {rows.place}") for known in columns)

    def read(row: dict) -> tuple[str, str, Rules]:
        row = MappingProxyType(row)  # a function of the benchmark that changed it would change the gold
        text, value = lookup(row, question), lookup(row, answer)
        if not isinstance(text, str) or not text.strip():
            raise ValueError(f"it has no question in column {question!r}")
        text = benchmark.call("prompt", str, text.strip(), row)
        gold = benchmark.gold_of(value)
        return text, gold, benchmark.rules_of(row, value, gold)

    there = {*rows.columns, *(name for row in rows.rows for name in row)}
    missing = [column for column in benchmark.columns if column not in there]
    notes = [f"{rows.place} has no {', '.join(missing)}: what they say of a question is not known"] if missing else []
    task = make_task(benchmark.name, rows, read, notes, benchmark.rows)
    return dataclasses.replace(task, reward=str(benchmark.reward)) if benchmark.reward else task


def _rows(benchmark: Benchmark, named: str, place: str | None) -> Rows:
    if place is None and benchmark.data:
        columns = list(dict.fromkeys(name for row in benchmark.data for name in row))
        digest = fingerprint(repr(benchmark.data).encode())
        return Rows(columns, benchmark.data, f"{named}@{digest}", named)
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
            f"({', '.join(known) or 'none'}). {TASKS_FLAG} {FILE}PATH evaluates on any file with questions "
            f"and answers"
        )
    return _from_hub(dataclasses.replace(known[repo], revision=revision or None), benchmark, named)


def _from_hub(copy: HubSet, benchmark: Benchmark, named: str) -> Rows:
    names = (*benchmark.question, *benchmark.answer)
    return hub_rows(copy, [*names, *(name.capitalize() for name in names), *benchmark.columns], named)


def load_file(
    path: str,
    question_column: str | None = None,
    answer_column: str | None = None,
    reward: str = MATH,
) -> Task:
    """Read the rows of a file. Instructions of DAPO's are taken off the questions; RULE_COLUMNS
    are used where the file has them.

    reward: MATH, or a file, which gets the golds as they are.

    Raises:
        UsageError: no such file, an empty one, or no column for questions or answers.
    """
    rows = file_rows(path)
    place = f"{TASKS_FLAG} {FILE}{rows.place}"
    question = choose_column(rows.columns, QUESTIONS, place, "--question_column", question_column)
    answer = choose_column(rows.columns, ANSWERS, place, "--answer_column", answer_column)

    def read(row: dict):
        """A question of multiple choice would be asked without its choices."""
        value, text = lookup(row, answer), prompt_text(lookup(row, question))
        text = text and bare_question(text)
        if not text:
            raise ValueError(f"it has no question in column {question!r}")
        is_letter = isinstance(value, str) and re.fullmatch(r"[A-Ja-j]", value.strip())
        if any(row.get(name) for name in CHOICES) or (is_letter and {"A", "B"} <= row.keys()):
            raise ValueError("it is multiple choice, which is not asked here: use lighteval")
        gold = gold_text(value) if reward == MATH else label_text(value)
        return text, gold, column_rules(row, value)

    name = re.sub(r"[^\w.=-]+", "-", f"file-{Path(path).stem}").strip("-.")  # fit for a folder
    return dataclasses.replace(make_task(name, rows, read), reward=reward)
