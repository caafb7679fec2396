"""Results with their metrics, gathered into the columns of a report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from openrlhf_ebpo.run.results import Result

from .intervals import Estimate, of_average
from .metrics import MAJ_K, asked_for, per_question, scored, summarise
from .tasks import ordered

AVERAGE = "average"


@dataclass(frozen=True)
class Score:
    """One result, its metrics (metrics.summarise) and their values per question (metrics.per_question)."""

    result: Result

    @cached_property
    def values(self) -> dict[str, np.ndarray]:
        samples = self.result.samples
        return per_question(samples.correct, samples.classes, MAJ_K) | self._asked

    @cached_property
    def metrics(self) -> dict:
        samples = self.result.samples
        found = summarise(samples.correct, samples.classes, samples.lengths, samples.truncated, MAJ_K)
        return found | {name: scored(name, values) for name, values in self._asked.items() if name not in found}

    @cached_property
    def _asked(self) -> dict[str, np.ndarray]:
        """What a training was asked for beside (--eval.metrics)."""
        samples, names = self.result.samples, self.result.summary["metrics"]
        return asked_for(samples.correct, samples.classes, names)


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
    """Mean over tasks of each metric that all of them have; the tasks' errors are independent of each other."""
    scores = [column.tasks[task].metrics for task in tasks]
    names = [name for name in column.tasks[tasks[0]].values if all(name in score for score in scores)]
    found = {name: _mean([score[name] for score in scores]) for name in names}
    runs = [score["pass@1"]["run_interval"] for score in scores]
    errors = [score["pass@1"]["standard_error"] for score in scores]
    known = None not in errors
    found["pass@1"]["standard_error"] = float(np.linalg.norm(errors) / len(errors)) if known else None
    found["pass@1"]["run_interval"] = _mean([score["pass@1"] for score in scores], runs)["interval"] if known else None
    return found


def _mean(metrics: Sequence[Mapping], intervals: Sequence | None = None) -> dict:
    ends = intervals or [metric["interval"] for metric in metrics]
    found = of_average([Estimate(metric["value"], *end) for metric, end in zip(metrics, ends, strict=True)])
    return {"value": found.value, "interval": [found.low, found.high]}
