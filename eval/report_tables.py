"""Results side by side, and the Markdown tables of a report. Values are fractions and shown in percent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.run.results import Result
from openrlhf_ebpo.run.run_log import flatten
from openrlhf_ebpo.run.score_text import NONE, k_of, majorities, passes, percent, points, score
from openrlhf_ebpo.run.score_text import reported as reported_text

from .differences import compare
from .intervals import Estimate, of_average

AVERAGE = "average"
MAX_NOTES = 5  # on a task


@dataclass(frozen=True)
class Column:
    """A model at one step, with its results by task."""

    label: str
    results: Mapping[str, Result]

    def metrics(self, task: str) -> dict:
        return self.results[task].metrics if task in self.results else {}


def tasks_of(columns: Iterable[Column]) -> list[str]:
    return sorted({task for column in columns for task in column.results})


def common_tasks(columns: Sequence[Column]) -> list[str]:
    return sorted(set.intersection(*[set(column.results) for column in columns]))


def by_task(columns: Sequence[Column]) -> list[tuple[str, list[str], list[dict]]]:
    """Return (title, tasks, metrics by column) of each task and, last, of the average of those that all columns have.

    Metrics are {} for a column that lacks the task.
    """
    tasks, shared = tasks_of(columns), common_tasks(columns)
    rows = [(task, [task], [column.metrics(task) for column in columns]) for task in tasks]
    if len(shared) > 1:
        title = AVERAGE if shared == tasks else f"{AVERAGE} of {', '.join(shared)}"
        rows.append((title, shared, [average(column, shared) for column in columns]))
    return rows


def average(column: Column, tasks: Sequence[str]) -> dict:
    """Return mean over tasks of each pass@k and maj@k that all of them have; the tasks' errors are independent of
    each other."""
    scores = [column.metrics(task) for task in tasks]
    common = set.intersection(*map(set, scores))
    found = {name: _mean([score[name] for score in scores]) for name in [*passes(common), *majorities(common)]}
    errors = [score["pass@1"].get("standard_error") for score in scores]
    known = None not in errors
    found["pass@1"]["standard_error"] = float(np.linalg.norm(errors) / len(errors)) if known else None
    return found


def _mean(metrics: Sequence[Mapping]) -> dict:
    found = of_average([Estimate(metric["value"], *metric["interval"]) for metric in metrics])
    return {"value": found.value, "interval": [found.low, found.high]}


def _votes(names: Iterable[str]) -> list[str]:
    """Return the maj@k of several samples: one is not a vote."""
    return [name for name in majorities(names) if k_of(name) > 1]


def curve_names(metrics: Sequence[Mapping]) -> list[str]:
    """Return pass@1, maj@k and the pass@k of that k, those that all have."""
    common = set.intersection(*map(set, metrics))
    votes = _votes(common)[-1:]
    return [name for name in ("pass@1", *votes, *(f"pass@{k_of(name)}" for name in votes)) if name in common]


def table(head: Sequence[str], rows: Sequence[Sequence], text: int = 1) -> str:
    """Return a Markdown table; the first `text` columns are text, the others numbers."""
    lines = [head, ["---"] * text + ["---:"] * (len(head) - text), *rows]
    return "\n".join(f"| {' | '.join(escape(str(cell)) for cell in line)} |" for line in lines)


def table_of(rows: Sequence[Mapping], text: int = 1) -> str:
    """Return a table of rows that name their columns."""
    return table(list(rows[0]), [list(row.values()) for row in rows], text)


def escape(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def pass_at_1(columns: Sequence[Column], reported: Mapping[str, Mapping[str, float]]) -> str:
    """Set tasks against models, and the paper's columns behind."""
    rows = []
    for title, tasks, metrics in by_task(columns):
        known = [[values.get(task) for task in tasks] for values in reported.values()]
        means = [NONE if None in values else reported_text(sum(values) / len(values)) for values in known]
        rows.append([title, *[score(each.get("pass@1")) for each in metrics], *means])
    return table(["task", *[column.label for column in columns], *[f"{name} (reported)" for name in reported]], rows)


def pass_at_k(columns: Sequence[Column]) -> str:
    """Return one row per task and model: pass@k from k = 2 on, and maj@k with its interval; "" with one response to
    a question."""
    blocks = [
        (title, column.label, each)
        for title, _, metrics in by_task(columns)
        for column, each in zip(columns, metrics, strict=True)
        if each
    ]
    found = {name for _, _, metrics in blocks for name in metrics}
    several, votes = passes(found)[1:], _votes(found)
    rows = [
        [
            *head,
            *[percent(metrics[name]["value"]) if name in metrics else NONE for name in several],
            *[score(metrics.get(name)) for name in votes],
        ]
        for *head, metrics in blocks
    ]
    return table(["task", "model", *several, *votes], rows, text=2) if several or votes else ""


def comparison(first: Column, other: Column) -> str:
    """Compare: other minus first, in points, on the tasks that both have."""
    shared = common_tasks([first, other])
    for task in shared:
        ids = [set(column.results[task].samples.question_ids) for column in (first, other)]
        if lacking := sorted(ids[0] ^ ids[1]):
            raise UsageError(
                f"{task}: {first.label} and {other.label} have answers to different questions ({len(lacking)} are in "
                f"one only, such as {lacking[0]!r}); evaluate both with the same version"
            )
    groups = [(task, [task]) for task in shared] + ([(AVERAGE, shared)] if len(shared) > 1 else [])
    rows = []
    for name, tasks in groups:
        a, b = ([column.results[task].samples.correct.mean(axis=1) for task in tasks] for column in (first, other))
        found = compare(a, b, [min(column.results[task].n for column in (first, other)) for task in tasks])
        p = "< 0.001" if found["p"] < 0.001 else f"{found['p']:.3f}"
        interval = " to ".join(map(points, found["interval"]))
        row = {"task": name, "questions": sum(map(len, a)), "difference": points(found["difference"])}
        rows.append({**row, "95 % interval": interval, "p": p})
    return table_of(rows)


def answers(columns: Sequence[Column]) -> str:
    """List the conditions of the scores: questions, runs, truncation, length, missing answers, errors."""
    rows = []
    for task, column in ((task, column) for task in tasks_of(columns) for column in columns if task in column.results):
        metrics, counts = column.metrics(task), column.results[task].summary.get("counts", {})
        rows.append(
            {
                "task": task,
                "model": column.label,
                "questions": metrics["questions"],
                "runs": metrics["samples_per_question"],
                "truncated %": percent(metrics["truncated"]),
                "mean length": f"{metrics['mean_length']:,.0f}",
                "no answer %": percent(metrics["no_answer"]),
                "grading errors": counts.get("errors", 0),
                "rows left out": counts.get("excluded_golds", 0),
            }
        )
    return table_of(rows, text=2)


def sources(columns: Sequence[Column]) -> str:
    """List where each task's questions are from, and what a reader should know of them: notes, and rows left out."""
    rows = []
    for task in tasks_of(columns):
        found = [column.results[task].summary["task"] for column in columns if task in column.results]
        notes = [*dict.fromkeys(note for each in found for key in ("notes", "skipped") for note in each.get(key, []))]
        more = [f"… and {len(notes) - MAX_NOTES} more in summary.json"] if len(notes) > MAX_NOTES else []
        from_where = dict.fromkeys(str(each.get("source", NONE)) for each in found)
        noted = "; ".join(notes[:MAX_NOTES] + more) or NONE
        rows.append({"task": task, "source": ", ".join(from_where), "notes": noted})
    return table_of(rows, text=3)


def models(columns: Sequence[Column]) -> str:
    """List which model each column is, and in which prompt it was asked."""
    rows = []
    for column in columns:
        summary = next(iter(column.results.values())).summary
        versions = ", ".join(f"{name} {version}" for name, version in summary.get("versions", {}).items())
        prompt = ", ".join(f"{name} {value}" for name, value in settings(summary.get("prompt") or {}))
        row = {"column": column.label, "model": summary["model"], "step": summary["step"]}
        rows.append({**row, "prompt": prompt or NONE, "versions": versions or NONE})
    note = "\n\nThe models were asked in different prompts." if len({row["prompt"] for row in rows}) > 1 else ""
    return table_of(rows, text=5) + note


def settings(protocol: Mapping) -> list[tuple[str, str]]:
    """Return (name, value) of every setting, nested names with dots."""
    return [(name, f"`{value!r}`") for name, value in flatten(protocol).items()]
