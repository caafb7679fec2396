"""One task for one model: the job, its storage, and the summary of its result.

<results>/<protocol>/<task>/step-000000/
  progress.jsonl    settings, then one line per question with all its responses; deleted once the result is saved
  samples.parquet, summary.json    the result (run/results.py)
"""

from __future__ import annotations

import dataclasses
import itertools
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from operator import itemgetter
from pathlib import Path

import numpy as np

from openrlhf_ebpo.errors import ReportedError, UsageError
from openrlhf_ebpo.files import write_json_lines
from openrlhf_ebpo.progress import Append, changes_between, progress_file
from openrlhf_ebpo.rewards.reward_settings import RewardSettings
from openrlhf_ebpo.run.results import (
    SUMMARY,
    read_columns,
    read_result,
    sample_rows,
    save_result,
    step_directory,
)
from openrlhf_ebpo.run.run_log import versions
from openrlhf_ebpo.run.votes import classes

from . import models, protocols
from .grader import Grader
from .metrics import summarise
from .models import Model
from .prompts import PromptForm
from .protocols import GRADING, Protocol
from .reward_file import Asked, grade_all, reward_identity
from .tasks import MATH, Question, Task

PROGRESS = "progress.jsonl"
ROW_KEYS = {"responses": "response", "lengths": "length", "finish_reasons": "finish_reason"}  # of a record: of a row
PER_QUESTION = ("prompt", "seed")  # of a record, and of all its rows
CAUSES = 3  # of failed rewards that are named
UNGRADED = "responses got no reward and count as wrong: "


# The job


@dataclass
class Job:
    """A task under a protocol, for a model.

    settings: what the result depends on, as JSON. records: finished questions by id (generate.to_record). append:
    writes a line of the progress file.
    """

    task: Task
    protocol: Protocol
    model: Model
    directory: Path
    settings: dict
    records: dict[str, dict] = field(default_factory=dict)
    append: Append | None = None

    @property
    def progress(self) -> Path:
        return self.directory / PROGRESS

    @property
    def finished(self) -> bool:
        return (self.directory / SUMMARY).is_file()

    @property
    def response_settings(self) -> dict:
        """Return the settings that the responses depend on, without the reward: it may change while they come."""
        return {**self.settings, "protocol": name_and_version(self.protocol.sampling)}

    @property
    def missing(self) -> list[Question]:
        return [each for each in self.task.questions if each.id not in self.records]

    def add(self, question_id: str, record: dict) -> None:
        """Append a finished question to the progress file.

        Raises:
            ReportedError: it cannot be written; the question then counts as not done.
        """
        with storage_errors(self.progress):
            self.append({"id": question_id, **record})
        self.records[question_id] = record


def plan(model: Model, tasks: Sequence[Task], protocol: Protocol, form: PromptForm, results: Path) -> list[Job]:
    """Return the jobs of a model, nothing read or written yet."""
    identity, found = models.identity(model.path), []
    for task in tasks:
        own = protocol_of(task, protocol)
        task_settings = {"task": f"{task.name}@{task.fingerprint()}", "prompt": prompt_settings(form)}
        directory = step_directory(results, own.name, task.name, model.step)
        found.append(Job(task, own, model, directory, {**identity, **task_settings, "protocol": name_and_version(own)}))
    return found


def protocol_of(task: Task, protocol: Protocol) -> Protocol:
    """Return the protocol with the task's reward.

    Raises:
        UsageError: its file cannot be read.
    """
    if task.reward == MATH:
        return protocol
    return protocols.with_reward(protocol, reward_identity(task.reward, f"the reward of {task.name},"))


def name_and_version(protocol: Protocol) -> str:
    return f"{protocol.name} ({protocol.fingerprint()})"


def prompt_settings(form: PromptForm) -> dict:
    """Return the settings of a form as JSON has them, without its source."""
    settings = {name: value for name, value in dataclasses.asdict(form).items() if value is not None}
    if form.template_kwargs:
        settings["template_kwargs"] = form.given()
    return {name: value for name, value in settings.items() if name != "source"}


# Its storage


@contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ReportedError(f"{path} cannot be written: {error.strerror or error}") from error


def open_jobs(stack: ExitStack, jobs: Sequence[Job], results: Path, force: bool = False) -> None:
    """Claim the jobs' directories until `stack` closes, and read what they hold. Results whose reward file has changed
    become progress files again, to be graded as any other; force: everything is moved to superseded/ first.

    Raises:
        UsageError: existing files are from other settings, or another process has locked them.
    """
    aside = results / "superseded" / f"{datetime.now():%Y%m%dT%H%M%S.%f}"
    for job in jobs:
        old = aside / job.directory.relative_to(results)
        if force and job.directory.exists():
            old.parent.mkdir(parents=True, exist_ok=True)
            job.directory.rename(old)
        if job.finished and has_another_reward(job):
            with storage_errors(job.directory):
                reopen(job, old)
    for job in jobs:
        if not job.finished:
            with storage_errors(job.directory):
                lines, job.append = stack.enter_context(progress_file(job.progress, job.response_settings))
            job.records = {line.pop("id"): line for line in lines}


def has_another_reward(job: Job) -> bool:
    """Return True if the result on disk has the responses that are wanted, graded by another version of the reward.

    Raises:
        UsageError: it was made with other settings.
    """
    result = read_result(job.directory).summary
    changed = changes_between(result.get("settings", {}), job.settings)
    if [*changed] == ["protocol"] and asked_settings(result["protocol"]) == asked_settings(job.protocol.record()):
        return True
    if changed:
        raise UsageError(
            f"{job.directory} holds a result of other settings ({'; '.join(changed.values())}): choose "
            "another --output_dir, or start over with --force, which moves the old result to superseded/"
        )
    return False


def asked_settings(protocol: Mapping) -> dict:
    """Return the settings in a protocol's record on which responses depend."""
    return {name: value for name, value in protocol.items() if name not in ("name", "fingerprint", *GRADING)}


def reopen(job: Job, aside: Path) -> None:
    """Make the responses of the result a progress file again, in which nothing is missing; the result is kept in
    `aside`."""
    print(f"{job.task.name}, step {job.model.step}: its reward has changed, responses are graded again", flush=True)
    shutil.copytree(job.directory, aside)
    lines = [{"settings": job.response_settings}]
    rows = read_columns(job.directory, ["question_id", *PER_QUESTION, *ROW_KEYS.values()]).to_pylist()
    for key, group in itertools.groupby(rows, key=itemgetter("question_id")):
        samples = list(group)
        columns = {name: [row[column] for row in samples] for name, column in ROW_KEYS.items()}
        lines.append({"id": key, **columns, **{name: samples[0][name] for name in PER_QUESTION}})
    write_json_lines(job.progress, lines)
    (job.directory / SUMMARY).unlink()  # from here on it is under way


def finish(job: Job, grader: Grader, rewards: RewardSettings, form: PromptForm) -> None:
    """Grade the responses, write the result, and delete the progress file. rewards: limits of a reward file.

    Raises:
        ReportedError: it cannot be written (the responses stay in the progress file), or the reward file cannot be
            imported or has changed.
    """
    questions = job.task.questions
    if job.protocol.reward:
        grades = graded_by_file(job, rewards)
    else:
        samples = [(each, job.records[each.id]["responses"], job.records[each.id]["prompt"]) for each in questions]
        grades = grader.map(lambda args: grader.grade_samples(*args), samples)
    rows = []
    for question, each in zip(questions, grades, strict=True):
        record = job.records[question.id]
        columns = {column: record[name] for name, column in ROW_KEYS.items()}
        columns |= {name: [record[name]] * len(each) for name in PER_QUESTION}
        columns |= {name: [grade[name] for grade in each] for name in each[0]}
        rows += sample_rows(question.id, question.question, question.gold, question.rules.text(), columns)
    with storage_errors(job.directory):
        save_result(job.directory, summary(job, form, rows), rows)
        job.progress.unlink()
    job.records.clear()  # responses of many steps would not fit into memory


def graded_by_file(job: Job, rewards: RewardSettings) -> Iterator[list[dict]]:
    """Yield for each question the grades of its responses, with their classes for the vote. Equal texts vote together:
    a reward does not compare answers."""
    records = [job.records[question.id] for question in job.task.questions]
    asked = [
        Asked(record["prompt"], question.gold, response)
        for question, record in zip(job.task.questions, records, strict=True)
        for response in record["responses"]
    ]
    settings = dataclasses.replace(rewards, sources=(job.task.reward,))
    grades = grade_all(settings, job.protocol.reward, asked)
    for start in range(0, len(grades), job.protocol.n):
        group = grades[start : start + job.protocol.n]
        names = classes([each["extracted"] for each in group], [False] * len(group), str, lambda first, answer: False)
        yield [{**each, "class": name} for each, name in zip(group, names, strict=True)]


# The summary of its result


def summary(job: Job, form: PromptForm, rows: Sequence[dict]) -> dict:
    """Return summary.json. rows: of samples.parquet."""

    def grid(name: str) -> np.ndarray:
        return np.array([row[name] for row in rows]).reshape(-1, job.protocol.n)

    truncated = grid("finish_reason") == "length"
    causes = Counter(row["error"] for row in rows if row["error"] and job.protocol.reward)
    notes = [f"{count} of {len(rows)} {UNGRADED}{cause}" for cause, count in causes.most_common(CAUSES)]
    return {
        "model": job.model.path,
        "step": job.model.step,
        "task": job.task.record([*job.task.notes, *notes]),
        "protocol": job.protocol.record(),
        "prompt": {**prompt_settings(form), "source": form.source},
        "metrics": summarise(grid("correct").astype(bool), grid("class"), grid("length"), truncated),
        "versions": versions(),
        "seeds": sorted({row["seed"] for row in rows}),
        "counts": {
            "excluded_golds": len(job.task.skipped),
            "errors": sum(row["error"] is not None for row in rows),
        },
        "settings": job.settings,
    }
