"""Which pictures a report has; plots.py draws them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from openrlhf_ebpo.run.score_text import k_of, passes

from . import plots
from .scores import AVERAGE, Column, average, average_title, common_tasks
from .tables import curve_names
from .tasks import ordered

History = Mapping[int, Column]
STEP = "training step (bands: 95 % over questions)"


def draw(output: Path, columns: Sequence[Column], histories: Mapping[str, History]) -> dict[str, str]:
    """Write all pictures to `output`; returns the Markdown that shows them, by section.

    With one sample per question there is no pass@k to draw, and a question's pass rate says nothing."""
    output.mkdir(parents=True, exist_ok=True)
    shown = {}
    if any(column.metrics(task)["samples_per_question"] > 1 for column in columns for task in column.tasks):
        draw_pass_at_k(output / "pass_at_k.png", columns)
        draw_difficulty(output / "difficulty.png", columns)
        shown["pass_at_k"] = "![pass@k with 95 % intervals over questions](pass_at_k.png)"
        shown["difficulty"] = "![Share of questions by pass rate](difficulty.png)"
    names = draw_validation(output, {label: history for label, history in histories.items() if len(history) > 1})
    if names:
        shown["validation"] = "\n\n".join(f"![Validation curve]({name})" for name in names)
    return shown


def draw_pass_at_k(path: Path, columns: Sequence[Column]) -> None:
    tasks = ordered(task for column in columns for task in column.tasks)
    colours = dict(zip([column.label for column in columns], plots.model_colours(len(columns)), strict=True))
    panels = {
        task: [
            _over_k(column.label, colours[column.label], column.metrics(task))
            for column in columns
            if task in column.tasks
        ]
        for task in tasks
    }
    shared = common_tasks(columns)
    if len(shared) > 1:
        panels[average_title(shared, tasks)] = [_over_k(c.label, colours[c.label], average(c, shared)) for c in columns]
    title, x_label = (
        "pass@k: at least one of k samples is right",
        "k, samples per question (bands: 95 % over questions)",
    )
    plots.curves(path, panels, title, x_label, powers=True)


def _over_k(label: str, colour: str, metrics: Mapping[str, dict]) -> plots.Line:
    names = passes(metrics)
    return _line(label, colour, [k_of(name) for name in names], [metrics[name] for name in names])


def _line(label: str, colour: str, x: Sequence[float], metrics: Sequence[dict]) -> plots.Line:
    low, high = zip(*[metric["interval"] for metric in metrics], strict=True)
    return plots.Line(label, colour, x, [metric["value"] for metric in metrics], (low, high))


def draw_difficulty(path: Path, columns: Sequence[Column]) -> None:
    colours = dict(zip([column.label for column in columns], plots.model_colours(len(columns)), strict=True))
    tasks = ordered(task for column in columns for task in column.tasks)
    panels = {task: {c.label: _shares(c, task) for c in columns if task in c.tasks} for task in tasks}
    shared = common_tasks(columns)
    if len(shared) > 1:
        panels[average_title(shared, tasks)] = {
            c.label: np.mean([_shares(c, task) for task in shared], axis=0) for c in columns
        }
    plots.difficulty(path, panels, colours)


def _shares(column: Column, task: str) -> np.ndarray:
    return plots.pass_rate_shares(column.tasks[task].values["pass@1"])


def steady_tasks(history: History) -> list[str]:
    """Tasks that were evaluated at every step."""
    return common_tasks(list(history.values()))


def draw_validation(output: Path, histories: Mapping[str, History]) -> list[str]:
    """One model: one picture with its metrics. Several: one picture per metric. Returns the files' names."""
    if not histories:
        return []
    curves = {label: _over_steps(history) for label, history in histories.items()}
    if len(curves) == 1:
        ((label, panels),) = curves.items()
        lines = {task: list(metrics.values()) for task, metrics in panels.items()}
        plots.curves(output / "validation.png", lines, f"{label}: scores over training", STEP, powers=False)
        return ["validation.png"]
    colours = dict(zip(curves, plots.model_colours(len(curves)), strict=True))
    names = list(dict.fromkeys(n for panels in curves.values() for metrics in panels.values() for n in metrics))
    files = {name: f"validation_{name.replace('@', '_at_')}.png" for name in names}
    for name, file in files.items():
        _draw_metric(output / file, curves, colours, name)
    return list(files.values())


def _draw_metric(path: Path, curves: Mapping, colours: Mapping[str, str], name: str) -> None:
    tasks = [*ordered(t for panels in curves.values() for t in panels if t != AVERAGE), AVERAGE]
    panels = {
        task: [
            plots.Line(label, colours[label], line.x, line.value, line.interval)
            for label, each in curves.items()
            if (line := each.get(task, {}).get(name))
        ]
        for task in tasks
    }
    shown = {task: lines for task, lines in panels.items() if lines}
    plots.curves(path, shown, f"{name} over training", STEP, powers=False)


def _over_steps(history: History) -> dict[str, dict[str, plots.Line]]:
    """Lines by task, and by metric: pass@1, maj@k, pass@k."""
    tasks = ordered(task for column in history.values() for task in column.tasks)
    points = {t: {step: c.metrics(t) for step, c in history.items() if t in c.tasks} for t in tasks}
    shared = steady_tasks(history)
    if len(shared) > 1:
        points[AVERAGE] = {step: average(column, shared) for step, column in history.items()}
    return {task: _metric_lines(found) for task, found in points.items()}


def _metric_lines(points: Mapping[int, Mapping[str, dict]]) -> dict[str, plots.Line]:
    names = curve_names(points.values())
    colours = zip(names, plots.METRIC_COLOURS, strict=False)
    return {name: _line(name, colour, list(points), [p[name] for p in points.values()]) for name, colour in colours}
