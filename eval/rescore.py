"""Responses that are scored anew, since the task's own scorer has changed: nothing is asked again."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyarrow.parquet as pq

from openrlhf_ebpo.files import replacing

from . import effort
from .jobs import Job

COLUMNS = ["question_id", "sample", "response", "length", "finish_reason", "seed"]


def has_another_scorer(job: Job) -> bool:
    """Whether the result on disk has the responses that are wanted, scored by another version of the task's own scorer."""
    found = job.result.get("settings", {})
    others = {name: found.get(name) for name in job.settings if name != "task"}
    asked = job.result.get("task", {}).get("asked")
    return (
        asked == job.task.fingerprint(scorers=False)
        and found.get("task") != job.settings["task"]
        and others == {name: value for name, value in job.settings.items() if name != "task"}
    )


def reopen(job: Job, aside: Path) -> None:
    """Make the responses of the result a progress file again, in which nothing is missing; the result is kept in `aside`."""
    print(f"{job.task.name}, step {job.model.step}: its scorer has changed, the responses are scored anew", flush=True)
    shutil.copytree(job.directory, aside)
    lines = [{"settings": job.asked}, *records(job.directory, job.result)]
    with replacing(job.progress) as temporary:
        temporary.write_text("".join(json.dumps(line) + "\n" for line in lines))
    (job.directory / "summary.json").unlink()  # from here on it is under way


def records(directory: Path, result: dict) -> list[dict]:
    """The lines of the progress file that a result was made of; what it says of all questions together stands in the first."""
    found: dict[str, dict] = {}
    rows = pq.read_table(directory / "samples.parquet", columns=COLUMNS).to_pylist()
    for row in sorted(rows, key=lambda row: row["sample"]):
        empty = {"id": row["question_id"], "responses": [], "lengths": [], "finish_reasons": [], "seed": row["seed"]}
        record = found.setdefault(row["question_id"], empty)
        record["responses"].append(row["response"])
        record["lengths"].append(row["length"])
        record["finish_reasons"].append(row["finish_reason"])
    lines = list(found.values())
    prompts = (result.get("tokens") or {}).get("prompt")
    if prompts is not None:
        for line in lines:
            line["prompt_tokens"] = prompts if line is lines[0] else 0
    for line, each in zip(lines, effort.recorded(result), strict=False):
        line["pass"] = each
    return lines
