"""Results with their metrics, gathered into the columns of a report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from openrlhf_ebpo.record.results import Result

from .metrics import MAJ_K, per_question, summarise
from .resampling import average_interval
from .tasks import ordered

AVERAGE = "average"


@dataclass(frozen=True)
class Score:
    """One result, its metrics (metrics.summarise) and their values per question (metrics.per_question)."""

    result: Result

    @cached_property
    def values(self) -> dict[str, np.ndarray]:
        samples = self.result.samples
        return per_question(samples.correct, samples.classes, MAJ_K)

    @cached_property
    def metrics(self) -> dict:
        samples = self.result.samples
        return summarise(samples.correct, samples.classes, samples.lengths, samples.truncated, MAJ_K)


@dataclass(frozen=True)
class Column:
    """A model at one step."""

    label: str
    tasks: Mapping[str, Score]

    def metrics(self, task: str) -> dict:
        return self.tasks[task].metrics if task in self.tasks else {}

    def metric(self, task: str, name: str) -> dict | None:
        return self.metrics(task).get(name)


def common_tasks(columns: Sequence[Column]) -> list[str]:
    return ordered(set.intersection(*[set(column.tasks) for column in columns]))


def average_title(shared: Sequence[str], tasks: Sequence[str]) -> str:
    """Names the tasks unless it is all of them."""
    return AVERAGE if list(shared) == list(tasks) else f"{AVERAGE} of {', '.join(shared)}"


def average(column: Column, tasks: Sequence[str]) -> dict:
    """Mean over tasks of each metric that all of them have; its interval resamples questions within their task, its
    standard error assumes that the tasks' runs are independent."""
    scores = [column.tasks[task] for task in tasks]
    names = [name for name in scores[0].values if all(name in score.values for score in scores)]
    values = [np.column_stack([score.values[name] for name in names]) for score in scores]
    means = np.mean([each.mean(axis=0) for each in values], axis=0)
    found = {
        name: {"value": float(mean), "interval": [float(low), float(high)]}
        for name, mean, low, high in zip(names, means, *average_interval(values), strict=True)
    }
    errors = [score.metrics["pass@1"]["standard_error"] for score in scores]
    known = all(error is not None for error in errors)
    found["pass@1"]["standard_error"] = float(np.linalg.norm(errors) / len(errors)) if known else None
    return found
