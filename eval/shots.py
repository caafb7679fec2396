"""Few-shot: answered questions that a model is shown before each one, for base models."""

from __future__ import annotations

import dataclasses
import hashlib
from itertools import islice
from pathlib import Path

from openrlhf_ebpo.data.table import check_file, read_rows
from openrlhf_ebpo.errors import UsageError

from . import tasks
from .prompts import PromptForm
from .protocols import Protocol
from .tasks import OWN, REASONING_GYM, Question, Task
from .tasks.files import ANSWERS

FLAG = "--shots_file"
WRITTEN = "response"  # column of a file's answers as they are shown


def named(path: str) -> str:
    """Return NAME@DIGEST of a file, as Protocol.shots_file has it.

    Raises:
        UsageError: it is not there, or of another kind.
    """
    check_file(path, FLAG)
    return f"{Path(path).name}@{hashlib.sha256(Path(path).read_bytes()).hexdigest()[:12]}"


def with_shots(task: Task, protocol: Protocol, file: str | None, form: PromptForm, spec: str = "") -> Task:
    """Return the task with the protocol's number of shots: the first of the file that the task does not ask, or the task's own
    first ones, which are then not asked. spec: its item of --tasks.

    Raises:
        UsageError: there are too few, or one of them has no answer to show.
    """
    if not protocol.shots:
        return task
    pool = tasks.load_shots(spec, file, FLAG, (*ANSWERS, WRITTEN)) if file else task
    asked = [bare(question.question) for question in task.questions] if file else []
    # a file without the task's columns has questions without what the benchmark puts around them
    unasked = (each for each in pool.questions if not any(bare(each.question) in one for one in asked))
    examples = list(islice(unasked, protocol.shots))
    shown = {bare(question.question) for question in examples}
    left = tuple(question for question in task.questions if bare(question.question) not in shown)
    if len(examples) < protocol.shots or not left:
        place = f"{file} has {len(examples)} that it does not ask" if file else f"it has {len(task.questions)}"
        raise UsageError(
            f"--shots {protocol.shots}: too few questions for task {task.name}: {place}; fewer, or {FLAG} FILE"
        )
    written = _written(file, pool) if file else {}
    shots = tuple((each.question, written.get(each.id) or shown_answer(each, form)) for each in examples)
    gone = len(task.questions) - len(left)
    notes = [f"{gone} questions are shown with their answers, and not asked"] if gone and not file else []
    return dataclasses.replace(task, questions=left, shots=shots, notes=(*task.notes, *notes))


def bare(question: str) -> str:
    """Return what questions have in common that differ in spaces and capitals."""
    return " ".join(question.split()).casefold()


def _written(file: str, pool: Task) -> dict[str, str]:
    """Return the answers that the file has as complete responses, by the question's id."""
    texts = [row.get(WRITTEN) for batch in read_rows(file, flag=FLAG) for row in batch]
    by_id = {question: texts[number - 1] for question, number in pool.row_of.items()}
    return {question: text.strip() for question, text in by_id.items() if isinstance(text, str)}


def shown_answer(question: Question, form: PromptForm) -> str:
    """Return the gold as a response that its scorer reads, in the form that the template asks for.

    Raises:
        UsageError: the question has no gold.
    """
    if not question.gold or question.rules.kind == OWN:
        raise UsageError(
            f"--shots: {question.question!r:.60} has no gold answer to show; give a {FLAG} whose column {WRITTEN!r} has answers"
        )
    if question.rules.kind == REASONING_GYM:
        return question.gold
    return f"\\boxed{{{question.gold}}}" if r"\boxed" in form.template else f"Answer: {question.gold}"
