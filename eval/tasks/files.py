"""`file:PATH`: a data set on this machine with questions and answers."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from openrlhf_ebpo.data.clean import prompt_text
from openrlhf_ebpo.data.questions import bare_question
from openrlhf_ebpo.data.source import ANSWER_COLUMNS, PROMPT_COLUMNS, lookup
from openrlhf_ebpo.errors import UsageError

from .benchmark import gold_text, label_text
from .task_rows import TASKS_FLAG, Rows, choose_column, file_rows, folder_name, make_task
from .types import MATH, Task, column_rules

# A prepared training set has both: `prompt` is `question` in its instruction, which the protocol adds.
QUESTIONS = tuple(dict.fromkeys(("question", "problem", *PROMPT_COLUMNS)))
ANSWERS = tuple(dict.fromkeys(("answer", "gold", "label", "answerKey", *ANSWER_COLUMNS)))
CHOICES = ("choices", "options")


def load_file(
    path: str,
    question_column: str | None = None,
    answer_column: str | None = None,
    flag: str = TASKS_FLAG,
    answers: tuple[str, ...] = ANSWERS,
    reward: str = MATH,
) -> Task:
    """Read the rows of a file. Instructions of DAPO's are taken off the questions; RULE_COLUMNS
    are used where the file has them.

    flag: that names the file. answers: names that the column with the gold answers may have. reward: MATH, or a file,
    which gets the golds as they are.

    Raises:
        UsageError: no such file, an empty one, or no column for questions or answers.
    """
    rows = file_rows(path, flag)
    question = _column(rows, question_column, QUESTIONS, "question", "--question_column", flag)
    answer = _column(rows, answer_column, answers, "gold answer", "--answer_column", flag)

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

    return replace(make_task(folder_name(f"file-{Path(path).stem}"), rows, read, flag=flag), reward=reward)


def _column(rows: Rows, named: str | None, known: tuple[str, ...], what: str, naming: str, flag: str) -> str:
    """Return the column's name. naming: the flag that names the column of a task's file; others have none."""
    if named is None:
        return choose_column(rows.columns, known, rows.place, what, naming if flag == TASKS_FLAG else "", flag)
    if named not in rows.columns:
        raise UsageError(
            f"{naming} {named}: {TASKS_FLAG} file:{rows.place} has no such column, only {', '.join(rows.columns)} "
            "(dots lead into structs)"
        )
    return named
