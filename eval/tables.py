"""Markdown tables of a report. Values are fractions and shown in percent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta

from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.run.results import Result
from openrlhf_ebpo.run.score_text import NONE, between, k_of, majorities, passes, percent, points, score
from openrlhf_ebpo.run.score_text import reported as reported_text

from . import effort, paper
from .resampling import compare
from .scores import AVERAGE, Column, average, average_title, common_tasks

SHOWN = 5  # notes on a task


def table(head: Sequence[str], rows: Sequence[Sequence], text: int = 1) -> str:
    """A Markdown table; the first `text` columns are text, the others numbers."""
    lines = [head, ["---"] * text + ["---:"] * (len(head) - text), *rows]
    return "\n".join(f"| {' | '.join(escape(str(cell)) for cell in line)} |" for line in lines)


def escape(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def pass_at_1(columns: Sequence[Column], tasks: Sequence[str], reported: Mapping[str, Mapping[str, float]]) -> str:
    """Tasks against models, and the paper's columns behind."""
    shared = common_tasks(columns)
    rows = [
        [
            task,
            *[score(column.metric(task, "pass@1")) for column in columns],
            *[reported_text(values[task]) if task in values else NONE for values in reported.values()],
        ]
        for task in tasks
    ]
    if len(shared) > 1:
        rows.append([f"**{average_title(shared, tasks)}**"])
        rows[-1] += [f"**{score(average(column, shared)['pass@1'])}**" for column in columns]
        rows[-1] += [_mean_reported(values, shared) for values in reported.values()]
    titles = [f"{name} (reported)" for name in reported]
    return table(["task", *[column.label for column in columns], *titles], rows)


def _mean_reported(values: Mapping[str, float], tasks: Sequence[str]) -> str:
    if any(task not in values for task in tasks):
        return NONE
    return reported_text(sum(values[task] for task in tasks) / len(tasks))


TWO_ERRORS = (
    "95 % intervals. *These questions, answered again*: only the responses vary; this error shrinks with more responses to a "
    "question, and says nothing of other questions. *Questions like these*: it counts for what the model can do, and shrinks "
    "with more questions. With one response a question, the first cannot be told; the second holds it."
)


def two_errors(columns: Sequence[Column], tasks: Sequence[str]) -> str:
    """Across runs, and over questions."""
    found = [(task, column, column.metric(task, "pass@1")) for task in tasks for column in columns]
    rows = [
        [*_head(columns, task, column), percent(each["value"]), _runs(each), between(each["interval"])]
        for task, column, each in found
        if each
    ]
    titles = _titles(columns)
    names = ["pass@1", "these questions, answered again", "questions like these"]
    return table([*titles, *names], rows, text=len(titles))


def _runs(metric: Mapping) -> str:
    return between(metric["run_interval"]) if metric["run_interval"] else "not known: one response"


def pass_at_k(columns: Sequence[Column], tasks: Sequence[str]) -> str:
    """One row per task and model; maj@k with its interval."""
    shared = common_tasks(columns)
    blocks = [(task, column, column.metrics(task)) for task in tasks for column in columns]
    if len(shared) > 1:
        blocks += [(average_title(shared, tasks), column, average(column, shared)) for column in columns]
    found = {name for _, _, metrics in blocks for name in metrics}
    names = [*passes(found), *_votes(found)]
    rows = [
        [*_head(columns, task, column), *[_plain(name, metrics.get(name)) for name in names]]
        for task, column, metrics in blocks
        if metrics
    ]
    titles = _titles(columns)
    return table([*titles, *names], rows, text=len(titles))


def _votes(names: Iterable[str]) -> list[str]:
    """One sample is no vote."""
    return [name for name in majorities(names) if k_of(name) > 1]


def _plain(name: str, metric: dict | None) -> str:
    return percent(metric["value"]) if metric and name.startswith("pass@") else score(metric)


def _titles(columns: Sequence[Column]) -> list[str]:
    return ["task"] if len(columns) == 1 else ["task", "model"]


def _head(columns: Sequence[Column], task: str, column: Column) -> list[str]:
    return [task] if len(columns) == 1 else [task, column.label]


def answers(columns: Sequence[Column], tasks: Sequence[str]) -> str:
    """What else a score depends on: questions, runs, truncation, length, missing answers, errors."""
    rows = []
    for task in tasks:
        for column in columns:
            if metrics := column.metrics(task):
                counts = column.tasks[task].result.summary.get("counts", {})
                rows.append(
                    [
                        *_head(columns, task, column),
                        metrics["questions"],
                        metrics["samples_per_question"],
                        percent(metrics["truncated"]),
                        f"{metrics['mean_length']:,.0f}",
                        percent(metrics["no_answer"]) if "no_answer" in metrics else NONE,
                        counts.get("errors", 0),
                        counts.get("excluded_golds", 0) + counts.get("refused", 0),
                    ]
                )
    names = ["questions", "runs", "truncated %", "mean length", "no answer %", "grading errors", "rows left out"]
    titles = _titles(columns)
    return table([*titles, *names], rows, text=len(titles))


EFFORT = (
    "Of generation, with the start of the engines; repeated commands add up. Prompts count once, whatever the number of "
    "responses. GPU-hours are those of the GPUs that the engines held."
)


def took(columns: Sequence[Column], price: float | None = None) -> str:
    """Tokens, time and cost of each column, and of all; "" where no result says its time. price: of an hour, instead of what they
    say."""
    results = {column.label: [score.result for score in column.tasks.values()] for column in columns}
    known = {label: each for label, each in results.items() if all(effort.recorded(one.summary) for one in each)}
    if not known:
        return ""
    rows = [_took(label, each, price) for label, each in known.items()]
    if len(known) > 1:
        rows.append(_took("all of these", [one for each in known.values() for one in each], price))
    names = ["prompt tokens", "generated tokens", "generated / s", "time", "commands", "engines", "GPU", "GPU-hours"]
    return table(["model", *names, "cost"], rows)


def _took(label: str, results: Sequence[Result], price: float | None) -> list[str]:
    passes = effort.merged(one for result in results for one in effort.recorded(result.summary))
    seconds, cost = effort.seconds_of(passes), effort.cost(passes, price)
    generated = sum(int(result.samples.lengths.sum()) for result in results)
    prompts = [(result.summary.get("tokens") or {}).get("prompt") for result in results]
    return [
        label,
        NONE if None in prompts else f"{sum(prompts):,}",
        f"{generated:,}",
        f"{generated / seconds:,.{0 if generated > 10 * seconds else 2}f}" if seconds else NONE,
        str(timedelta(seconds=round(seconds))),
        str(len(passes)),
        _several(one.get("engines") for one in passes),
        _several(f"{one['gpus']} x {one.get('gpu') or 'GPU'}" if one.get("gpus") else None for one in passes),
        NONE if cost["gpu_hours"] is None else f"{cost['gpu_hours']:,.2f}",
        NONE if cost["total"] is None else f"{cost['total']:,.2f}",
    ]


def _several(values: Iterable) -> str:
    return ", ".join(dict.fromkeys(NONE if value is None else str(value) for value in values))


def sources(columns: Sequence[Column], tasks: Sequence[str]) -> str:
    """Where each task's questions are from, and what a reader should know of them: notes, and rows left out."""
    rows = []
    for task in tasks:
        found = [column.tasks[task].result.summary["task"] for column in columns if task in column.tasks]
        notes = [*dict.fromkeys(note for each in found for key in ("notes", "skipped") for note in each.get(key, []))]
        more = [f"… and {len(notes) - SHOWN} more in summary.json"] if len(notes) > SHOWN else []
        from_where = dict.fromkeys(each["source"] for each in found)
        rows.append([task, ", ".join(from_where), "; ".join(notes[:SHOWN] + more) or NONE])
    return table(["task", "source", "notes"], rows, text=3)


def comparison(first: Column, other: Column) -> str:
    """Other minus first, in points, on the tasks that both have."""
    shared = common_tasks([first, other])
    for task in shared:
        _check_questions(first, other, task)
    groups = [(task, [task]) for task in shared] + ([(AVERAGE, shared)] if len(shared) > 1 else [])
    rows = []
    for name, tasks in groups:
        a, b = ([column.tasks[task].values["pass@1"] for task in tasks] for column in (first, other))
        n = [min(column.metrics(task)["samples_per_question"] for column in (first, other)) for task in tasks]
        found = compare(a, b, n)
        rows.append(
            [
                name,
                sum(map(len, a)),
                points(found["difference"]),
                " to ".join(map(points, found["interval"])),
                _p(found["p"]),
            ]
        )
    return table(["task", "questions", "difference", "95 % interval", "p"], rows)


def _check_questions(first: Column, other: Column, task: str) -> None:
    ids = [set(column.tasks[task].result.samples.question_ids) for column in (first, other)]
    if lacking := sorted(ids[0] ^ ids[1]):
        raise UsageError(
            f"{task}: {first.label} and {other.label} have answers to different questions ({len(lacking)} are in one "
            f"only, such as {lacking[0]!r}); evaluate both with the same version"
        )


def _p(value: float) -> str:
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def validation(history: Mapping[int, Column], tasks: Sequence[str]) -> str:
    """One row per step: pass@1, maj@k, pass@k, averaged over the tasks that every step has."""
    averages = {step: average(column, tasks) for step, column in history.items()}
    names = curve_names(averages.values())
    rows = [[step, *[score(metrics.get(name)) for name in names]] for step, metrics in averages.items()]
    return table(["step", *names], rows)


def curve_names(metrics: Sequence[Mapping]) -> list[str]:
    """pass@1, maj@k and the pass@k of that k, those that all have."""
    every = list(metrics)
    votes = _votes(every[0])
    names = ["pass@1", *votes, *[f"pass@{k_of(name)}" for name in votes]]
    return [name for name in names if all(name in each for each in every)]


def settings(protocol: Mapping, prefix: str = "") -> list[tuple[str, str]]:
    """(name, value) of every setting, nested names with dots."""
    found = []
    for name, value in protocol.items():
        nested = isinstance(value, dict) and value
        found += settings(value, f"{prefix}{name}.") if nested else [(f"{prefix}{name}", f"`{value!r}`")]
    return found


def reported_note(reported: Mapping) -> str:
    return f"Columns marked *(reported)*: {paper.SOURCE}." if reported else ""
