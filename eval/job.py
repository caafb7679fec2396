"""A job: one task for one model, with its progress file."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from openrlhf_ebpo.errors import ReportedError
from openrlhf_ebpo.progress import Append

from .effort import Pass
from .models import Model
from .tasks import Question, Task

PROGRESS = "progress.jsonl"


class StorageError(ReportedError, RuntimeError):
    """Something cannot be written; what was written before is whole."""


@dataclass
class Job:
    """task, with n responses to a question, for a model. settings: what the responses depend on, as JSON. records:
    finished questions by id (generate.to_record). effort: of the pass that generates now, with which they are stamped.
    left_out: why questions were refused which the result is to do without, by id. They are in no file before it: a repeated
    command asks them again."""

    task: Task
    n: int
    model: Model
    directory: Path
    settings: dict
    records: dict[str, dict] = field(default_factory=dict)
    append: Append | None = None
    effort: Pass | None = None
    left_out: dict[str, str] = field(default_factory=dict)

    @property
    def finished(self) -> bool:
        return (self.directory / "summary.json").is_file()

    @property
    def progress(self) -> Path:
        return self.directory / PROGRESS

    @property
    def result(self) -> dict:
        """summary.json of a finished job."""
        return json.loads((self.directory / "summary.json").read_text())

    @property
    def asked(self) -> dict:
        """The settings that the responses depend on: a scorer of one's own may be mended while they come."""
        return {**self.settings, "task": f"{self.task.name}@{self.task.fingerprint(scorers=False)}"}

    @property
    def missing(self) -> list[Question]:
        return [each for each in self.task.questions if each.id not in self.records and each.id not in self.left_out]

    @property
    def answered_task(self) -> Task:
        """The task without what was left out: other questions, and so another fingerprint."""
        if not self.left_out:
            return self.task
        kept = tuple(question for question in self.task.questions if question.id not in self.left_out)
        why = [
            f"row {self.task.row_of.get(key, '?')} of {self.task.source} is left out, question {key}: {error}"
            for key, error in self.left_out.items()
        ]
        return dataclasses.replace(self.task, questions=kept, skipped=(*self.task.skipped, *why))

    def add(self, question_id: str, record: dict) -> None:
        """Append a finished question to the progress file.

        Raises:
            StorageError: it cannot be written; the question then counts as not done.
        """
        record = {**record, "pass": self.effort.now()} if self.effort else record
        with storing(self.progress):
            self.append({"id": question_id, **record})
        self.records[question_id] = record


@contextmanager
def storing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError(f"{path} cannot be written: {error.strerror or error}") from error
