"""Measurements in units that are kept, a JSON line each: a killed command repeats none of them, and more seeds add to
them."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.files import read_json_lines
from openrlhf_ebpo.progress import Append, progress_file

FILE = "measured.jsonl"
SETTINGS = {"laboratory": 1}  # to be raised where a change of the laboratory changes what it measures
ADVICE = "take it out, or begin again with --force, which keeps the old file under another name"
Record = dict[str, Any]


@dataclass(frozen=True)
class Job:
    """A measurement. Its fields are all that the result depends on. A subclass has `one`, or `measure` for many seeds
    together.

    Attributes:
        at_once: seeds that are measured together, and saved together.
        title: in the progress bar.
    """

    at_once: ClassVar[int] = 10
    title: ClassVar[str]

    def one(self, seed: int, work: Path) -> Record:
        """The record of a seed: metric -> numbers. What it needs to keep goes into `work`."""
        raise NotImplementedError

    def measure(self, seeds: list[int], work: Path) -> list[Record]:
        return [self.one(seed, work) for seed in seeds]

    @property
    def identity(self) -> dict:
        return {"kind": type(self).__name__, **asdict(self)}


class Measured:
    """Records by job and seed."""

    def __init__(self, seeds: Sequence[int], lines: Iterable[dict] = ()):
        self.seeds = seeds
        self.records: dict[tuple[str, int], Record] = {}
        for line in lines:
            self.take(line)

    def take(self, line: dict) -> None:
        for seed, record in zip(line["seeds"], line["measured"], strict=True):
            self.records[key(line["job"]), seed] = record

    def missing(self, job: Job) -> list[list[int]]:
        """Seeds that are still to be measured, as many in a list as go together."""
        left = [seed for seed in self.seeds if (key(job.identity), seed) not in self.records]
        return [left[i : i + job.at_once] for i in range(0, len(left), job.at_once)]

    def of(self, job: Job) -> list[Record]:
        """One for each seed that was measured."""
        found = (self.records.get((key(job.identity), seed)) for seed in self.seeds)
        return [record for record in found if record is not None]

    def values(self, job: Job, metric: str) -> np.ndarray:
        """(seeds, points)."""
        return np.array([record[metric] for record in self.of(job)], float)


def key(identity: dict) -> str:
    return json.dumps(identity, sort_keys=True)


def recorded(output: Path, kind: type[Job]) -> list[tuple[dict, dict[int, Record]]]:
    """The fields of every job of this kind that is kept in `output`, and its records by seed."""
    lines = read_json_lines(output / FILE)[1:] if (output / FILE).exists() else []
    found: dict[str, dict[int, Record]] = {}
    for (job, seed), record in sorted(Measured((), lines).records.items()):
        found.setdefault(job, {})[seed] = record
    jobs = [(json.loads(job), records) for job, records in found.items()]
    return [(job, records) for job, records in jobs if job.pop("kind") == kind.__name__]


def measure(
    jobs: Sequence[Job], seeds: Sequence[int], output: Path, force: bool = False, minutes: float = math.inf
) -> Measured:
    """Measure what is missing, and return all: the first seeds of every job, then the next ones.

    Args:
        minutes: after so many no further seed is begun.

    Raises:
        UsageError: another process is at work in `output`, or its file is of another version or damaged.
    """
    with progress_file(output / FILE, SETTINGS, force) as (lines, append):
        try:
            measured = Measured(seeds, lines)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise UsageError(f"{output / FILE} has a line that is not a measurement ({error!r}): {ADVICE}") from error
        units = [(job, chunk) for job in dict.fromkeys(jobs) for chunk in measured.missing(job)]
        units.sort(key=lambda unit: seeds.index(unit[1][0]))
        for line in with_progress(units, output, append, minutes):
            measured.take(line)
    return measured


def with_progress(units: list[tuple[Job, list[int]]], output: Path, append: Append, minutes: float) -> Iterator[dict]:
    from tqdm import tqdm

    end, begun = time.monotonic() + 60 * minutes, units[0][1][0] if units else None
    seen = sys.stderr.isatty()
    with tqdm(total=len(units), mininterval=1 if seen else 30, disable=not units) as bar:
        for job, chunk in units:
            if chunk[0] != begun and time.monotonic() >= end:
                print(f"{minutes:g} minutes are over: seed {chunk[0]} is left for another call", flush=True)
                return
            begun = chunk[0]
            bar.set_description(job.title, refresh=seen)
            line = {"job": job.identity, "seeds": chunk, "measured": job.measure(chunk, output)}
            append(line)
            bar.update()
            yield line
