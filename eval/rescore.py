"""Re-scores responses when the task's own scorer has changed: a result becomes a progress file again in which nothing is
missing, and is scored as any other."""

from __future__ import annotations

import itertools
import json
import shutil
from operator import itemgetter
from pathlib import Path

from openrlhf_ebpo.files import replacing
from openrlhf_ebpo.run.results import SUMMARY, read_columns

from .jobs import Job

COLUMNS = {"responses": "response", "lengths": "length", "finish_reasons": "finish_reason"}  # of a record: of a row


def has_another_scorer(job: Job) -> bool:
    """Return whether the result on disk has the responses that are wanted, scored by another version of the task's own
    scorer."""
    result = job.result
    found = result.get("settings", {})
    differing = [name for name in job.settings if found.get(name) != job.settings[name]]
    return differing == ["task"] and result.get("task", {}).get("asked") == job.task.fingerprint(scorers=False)


def reopen(job: Job, aside: Path) -> None:
    """Make the responses of the result a progress file again, in which nothing is missing; the result is kept in `aside`."""
    print(f"{job.task.name}, step {job.model.step}: its scorer has changed, the responses are re-scored", flush=True)
    shutil.copytree(job.directory, aside)
    lines = [{"settings": job.asked}, *records(job.directory, job.result)]
    with replacing(job.progress) as temporary:
        temporary.write_text("".join(json.dumps(line) + "\n" for line in lines))
    (job.directory / SUMMARY).unlink()  # from here on it is under way


def records(directory: Path, result: dict) -> list[dict]:
    """Return the lines of the progress file that a result was made of; what it says of all questions together stands in
    the first ones."""
    rows = read_columns(directory, ["question_id", "seed", *COLUMNS.values()]).to_pylist()
    lines = []
    for key, group in itertools.groupby(rows, key=itemgetter("question_id")):
        samples = list(group)
        columns = {name: [row[column] for row in samples] for name, column in COLUMNS.items()}
        lines.append({"id": key, **columns, "seed": samples[0]["seed"]})
    prompts = (result.get("tokens") or {}).get("prompt")
    if prompts is not None:
        for line in lines:
            line["prompt_tokens"] = prompts if line is lines[0] else 0
    for line, each in zip(lines, result.get("passes") or [], strict=False):
        line["pass"] = each
    return lines
