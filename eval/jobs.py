"""One task for one model: what has been generated, on disk as it comes, and the result made of it.

<results>/<protocol>/<task>/step-000000/
  progress.jsonl    settings, then one line per question with all its responses; gone once the result is there
  samples.parquet, summary.json    the result (run/results.py)
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path

import numpy as np

from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.progress import progress_file
from openrlhf_ebpo.run.results import check_counts, save_result, step_directory
from openrlhf_ebpo.run.run_log import versions

from . import effort, endpoint_questions, models, rescore
from .grader import Grader
from .job import Job, storing
from .metrics import summarise
from .models import Model
from .pairs import rules_text
from .prompts import PromptForm
from .protocols import Protocol
from .tasks import OWN, Question, Task

CAUSES = 3  # of failed scores that are named
UNSCORED = "responses could not be scored and count as wrong: "


def plan(model: Model, tasks: Sequence[Task], protocol: Protocol, form: PromptForm, results: Path) -> list[Job]:
    """The jobs of a model, nothing read or written yet."""
    identity = model.endpoint.identity() if model.endpoint else models.identity(model.path)
    return [
        Job(
            task,
            protocol.samples(task.name),
            model,
            step_directory(results, protocol.name, task.name, model.step),
            {
                **identity,
                "task": f"{task.name}@{task.fingerprint()}",
                "prompt": prompt_settings(form),
                "protocol": f"{protocol.name} ({protocol.fingerprint()})",
            },
        )
        for task in tasks
    ]


def prompt_settings(form: PromptForm) -> dict:
    """The settings of a form as JSON has them, without its source."""
    settings = {
        name: value for name, value in dataclasses.asdict(form).items() if name != "source" and value is not None
    }
    if form.template_kwargs:
        settings["template_kwargs"] = form.given()
    if not form.bos:  # recorded where it is on
        del settings["bos"]
    return settings


def open_jobs(stack: ExitStack, jobs: Sequence[Job], results: Path, force: bool) -> None:
    """Claim the jobs' directories until `stack` closes, and read what they hold. force: move that aside first.

    Raises:
        UsageError: what is there is from other settings, or another process has it locked.
    """
    aside = results / "superseded" / f"{datetime.now():%Y%m%dT%H%M%S.%f}"
    for job in jobs:
        if force and job.directory.exists():
            target = aside / job.directory.relative_to(results)
            target.parent.mkdir(parents=True)
            job.directory.rename(target)
        if job.finished and rescore.has_another_scorer(job):
            with storing(job.directory):
                rescore.reopen(job, aside / job.directory.relative_to(results))
        if job.finished:
            check_finished(job)
            continue
        with storing(job.directory):
            lines, job.append = stack.enter_context(progress_file(job.progress, job.asked))
        job.records = {line.pop("id"): line for line in lines}


def check_finished(job: Job) -> None:
    """Check that the result on disk was made with this job's settings.

    Raises:
        UsageError: it was made with others.
    """
    found = job.result.get("settings", {})
    names = [name for name in job.settings if found.get(name) != job.settings[name]]
    if names:
        differences = "; ".join(f"{name}: {found.get(name)!r} there, {job.settings[name]!r} now" for name in names)
        raise UsageError(
            f"{job.directory} holds a result of other settings ({differences}): choose another --output_dir, or start "
            "over with --force, which moves the old result to superseded/"
        )


def passes_of(jobs: Sequence[Job]) -> list[dict]:
    """The passes that generated the jobs' responses, the one under way among them."""
    stamps = [record["pass"] for job in jobs for record in job.records.values() if "pass" in record]
    return effort.merged([*stamps, *(job.effort.now() for job in jobs if job.effort)])


def finish(job: Job, grader: Grader, protocol: Protocol, form: PromptForm, passes: Sequence[dict]) -> None:
    """Score the responses and write the result; the progress file goes.

    passes: that generated them, with all tasks (passes_of).

    Raises:
        StorageError: it cannot be written; the responses stay in the progress file.
    """
    job = dataclasses.replace(job, task=job.answered_task)  # settings stay: they say what was asked
    rows, scoring = score(job, grader)
    with storing(job.directory):
        save_result(job.directory, summary(job, protocol, form, rows, scoring, passes), rows)
        job.progress.unlink()
    job.records.clear()  # responses of many steps would not fit into memory


def score(job: Job, grader: Grader) -> tuple[list[dict], float]:
    """Rows of samples.parquet, and the seconds that scoring took."""
    started = time.monotonic()
    grades = grader.map(lambda q: grader.grade_samples(q, job.records[q.id]["responses"]), job.task.questions)
    rows = [
        row
        for question, each in zip(job.task.questions, grades, strict=True)
        for row in question_rows(question, job.records[question.id], each)
    ]
    check_counts([row["question_id"] for row in rows], [row["sample"] for row in rows], job.n)
    return rows, time.monotonic() - started


def question_rows(question: Question, record: dict, grades: Sequence[dict]) -> list[dict]:
    rules = rules_text(question.rules)
    columns = zip(record["responses"], record["lengths"], record["finish_reasons"], grades, strict=True)
    return [
        {
            "question_id": question.id,
            "question": question.question,
            "gold": question.gold,
            "response": response,
            "length": length,
            "finish_reason": reason,
            "seed": record["seed"],
            "sample": sample,
            "rules": rules,
            **each,
        }
        for sample, (response, length, reason, each) in enumerate(columns)
    ]


def summary(
    job: Job, protocol: Protocol, form: PromptForm, rows: Sequence[dict], scoring: float, passes: Sequence[dict]
) -> dict:
    def grid(name: str) -> np.ndarray:
        return np.array([row[name] for row in rows]).reshape(-1, job.n)

    truncated = grid("finish_reason") == "length"
    return {
        "model": job.model.path,
        "step": job.model.step,
        "task": {
            "name": job.task.name,
            "source": job.task.source,
            "questions": len(job.task.questions),
            "rows": job.task.rows,
            "fingerprint": job.task.fingerprint(),
            **({"asked": job.task.fingerprint(scorers=False)} if job.task.questions[0].rules.kind == OWN else {}),
            "notes": [*job.task.notes, *_left_out(job), *_of_server(job, protocol), *failed_scores(job.task, rows)],
            "skipped": list(job.task.skipped),
        },
        "protocol": protocol.record(),
        "prompt": {**prompt_settings(form), "source": form.source},
        "metrics": summarise(grid("correct").astype(bool), grid("class"), grid("length"), truncated),
        "versions": {**versions(), **_scorer_version()},
        "seeds": sorted({row["seed"] for row in rows}),
        "counts": {
            "excluded_golds": len(job.task.skipped) - len(job.left_out),
            **({"refused": len(job.left_out)} if job.left_out else {}),
            "errors": sum(row["error"] is not None for row in rows),
        },
        "seconds": {"generation": round(effort.seconds_of(passes), 1), "scoring": round(scoring, 1)},
        "tokens": effort.tokens(job.records.values()),
        "passes": list(passes),
        "cost": effort.cost(passes),
        "settings": job.settings,
    }


def _left_out(job: Job) -> list[str]:
    total = len(job.task.questions) + len(job.left_out)
    return [f"{len(job.left_out)} of {total} questions were refused and are in no score"] if job.left_out else []


def _of_server(job: Job, protocol: Protocol) -> list[str]:
    return endpoint_questions.notes(job.records.values(), protocol)


def failed_scores(task: Task, rows: Sequence[dict]) -> list[str]:
    """Why responses have no score of the task's own scorer, the most frequent causes first."""
    if task.questions[0].rules.kind != OWN:
        return []
    causes = Counter(row["error"] for row in rows if row["error"])
    return [f"{count} of {len(rows)} {UNSCORED}{cause}" for cause, count in causes.most_common(CAUSES)]


def _scorer_version() -> dict[str, str]:
    try:
        return {"math-verify": importlib.metadata.version("math-verify")}
    except importlib.metadata.PackageNotFoundError:
        return {}
