"""What has been measured: a line of JSON for each unit of work, so that an interrupted command goes on where it was."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.figures.jobs import Job, Record
from openrlhf_ebpo.progress import Append, progress_file

FILE = "measured.jsonl"
SETTINGS = {"laboratory": 1}  # to be raised where a change of the laboratory changes what it measures
ADVICE = "take it out, or begin anew with --force, which keeps the old file under another name"


class Measured:
    """Records by job and seed."""

    def __init__(self, seeds: int):
        self.seeds = seeds
        self.records: dict[tuple[str, int], Record] = {}

    def take(self, line: dict) -> None:
        for seed, record in zip(line["seeds"], line["measured"], strict=True):
            self.records[key(line["job"]), seed] = record

    def missing(self, job: Job) -> list[list[int]]:
        """Seeds that are still to be measured, as many in a list as go together."""
        left = [seed for seed in range(self.seeds) if (key(job.identity), seed) not in self.records]
        return [left[i : i + job.at_once] for i in range(0, len(left), job.at_once)]

    def values(self, job: Job, metric: str) -> np.ndarray:
        """(seeds, points)."""
        return np.array([self.records[key(job.identity), seed][metric] for seed in range(self.seeds)], float)


def key(identity: dict) -> str:
    return json.dumps(identity, sort_keys=True)


def measure(jobs: Sequence[Job], seeds: int, output: Path, force: bool = False) -> Measured:
    """Measure what is missing, and return all.

    Raises:
        UsageError: another process is at work in `output`, or its file is of another version or damaged.
    """
    with progress_file(output / FILE, SETTINGS, force) as (lines, append):
        measured = Measured(seeds)
        try:
            for line in lines:
                measured.take(line)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise UsageError(f"{output / FILE} has a line that is no measurement ({error!r}): {ADVICE}") from error
        units = [(job, chunk) for job in dict.fromkeys(jobs) for chunk in measured.missing(job)]
        for line in with_progress(units, output, append):
            measured.take(line)
    return measured


def with_progress(units: list[tuple[Job, list[int]]], output: Path, append: Append) -> Iterator[dict]:
    from tqdm import tqdm

    total = sum(job.cost * len(chunk) for job, chunk in units)
    seen = sys.stderr.isatty()
    with tqdm(total=total, unit=" responses", unit_scale=True, mininterval=1 if seen else 30, disable=not units) as bar:
        for number, (job, chunk) in enumerate(units, 1):
            bar.set_description(f"{number} of {len(units)}: {job.title}", refresh=seen)
            records = job.measure(chunk, output, bar.update)
            line = {"job": job.identity, "seeds": chunk, "measured": records}
            append(line)
            yield line
