"""Few-shot: answered questions that a model is shown before each one, for base models."""

from __future__ import annotations

import dataclasses

from openrlhf_ebpo.data.table import check_file, read_rows
from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.progress import file_identity

from .prompts import PromptForm
from .protocols import Protocol
from .tasks import OWN, REASONING_GYM, Question, Task
from .tasks.files import ANSWERS, load_file

FLAG = "--shots_file"
WRITTEN = "response"  # column of a file's answers as they are shown


def named(path: str) -> str:
    """Return NAME@DIGEST of a file, as Protocol.shots_file has it.

    Raises:
        UsageError: it is not there, or of another kind.
    """
    check_file(path, FLAG)
    return file_identity(path)


def with_shots(task: Task, protocol: Protocol, file: str | None, form: PromptForm) -> Task:
    """Return the task with the protocol's number of shots: the first of the file that the task does not ask.

    Raises:
        UsageError: there are too few, or one of them has no answer to show.
    """
    if not protocol.shots:
        return task
    pool = load_file(file, flag=FLAG, answers=(*ANSWERS, WRITTEN))
    asked = [bare(question.question) for question in task.questions]
    # a benchmark may put words around a question of its data set
    unasked = [each for each in pool.questions if not any(bare(each.question) in one for one in asked)]
    if len(unasked) < protocol.shots:
        raise UsageError(
            f"--shots {protocol.shots}: {file} has {len(unasked)} questions that task {task.name} does not ask"
        )
    rows = [row for batch in read_rows(file, flag=FLAG) for row in batch]
    examples = unasked[: protocol.shots]
    shots = ((each.question, _written(rows[pool.row_of[each.id] - 1]) or shown_answer(each, form)) for each in examples)
    return dataclasses.replace(task, shots=tuple(shots))


def bare(question: str) -> str:
    """Return what questions have in common that differ in spaces and capitals."""
    return " ".join(question.split()).casefold()


def _written(row: dict) -> str:
    text = row.get(WRITTEN)
    return text.strip() if isinstance(text, str) else ""


def shown_answer(question: Question, form: PromptForm) -> str:
    """Return the gold as a response that its scorer reads, in the form that the template asks for.

    Raises:
        UsageError: the question has no gold.
    """
    if not question.gold or question.rules.kind == OWN:
        raise UsageError(
            f"--shots: {question.question!r:.60} has no gold answer to show; a column {WRITTEN!r} of {FLAG} gives answers in full"
        )
    if question.rules.kind == REASONING_GYM:
        return question.gold
    return f"\\boxed{{{question.gold}}}" if r"\boxed" in form.template else f"Answer: {question.gold}"
