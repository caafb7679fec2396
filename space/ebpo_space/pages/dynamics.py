"""Training dynamics: runs overlaid, one panel per metric."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import gradio as gr
import numpy as np

from openrlhf_ebpo.record.catalogue import GROUPS, HELD_OUT, Metric, Shown, find
from openrlhf_ebpo.record.own_metrics import COLUMNS

from .. import results
from ..errors import RunError
from ..figures import Line, board, line_panel
from ..metrics import Metrics
from ..page import Page
from ..parameters import flag, names, number, one_of, span
from ..parts import Parts, menu
from ..tables import NO_RUNS, choice, empty, notices, settings_table
from ..text import HTML, html, joined, middle_cut, plain
from ..workspace import Opened, Workspace

DRAWN = "Faint: every step. Bold: the moving mean. The numbers are where it ends, in the runs’ colours."
OTHERS = 12  # panels of metrics that the catalogue does not know; "More metrics" has all of them
TITLE = 120  # characters
LONGEST = 300  # characters of a name that gets one of them: as many as a link takes
OTHER_NOTE = "Logged by code of your own, or by a later OpenRLHF."
AXES = {"step": "step", "rollouts": "rollouts", "time": "hours"}
PARAMETERS = {
    "x": ("step", one_of(AXES)),
    "log": (False, flag),
    "smooth": (0.05, number(0, 0.3)),
    "more": ([], names),
    "zoom": ("", span),
}


def lay_out(parts: Parts, workspace: Workspace) -> None:
    with gr.Row(elem_classes=["controls"]):
        parts.html("quick")
        smooth = gr.Slider(0, 0.3, 0.05, step=0.01, label="Smoothing (share of run)")
        parts.control("smooth", smooth, "release")
        more = gr.Dropdown(
            [], value=[], multiselect=True, label="More metrics", allow_custom_value=True, elem_classes=["grow"]
        )
        parts.control("more", more, "change")
    parts.html("notes")
    parts.board("board")
    parts.html("table")


def render(view: dict, workspace: Workspace) -> dict:
    """board: the panels; table: differing settings; notes: problems, or what to do when nothing is there."""
    if not workspace.runs.listed() and not view["runs"]:
        return {"board": board([]), "table": "", "notes": NO_RUNS, "quick": "", **_menu([])}
    opened, problems = workspace.open_all(view)
    present = [run for run in opened if len(run.metrics.steps)]
    notes = notices(problems)
    if opened and not present:
        notes += empty("No steps yet", "These runs have no metrics so far. The page looks again every few seconds.")
    return {
        "board": board(sections(present, view), AXES[view["x"]], zoomed(view)),
        "table": settings_table([(run.run.key, run.run.number, run.about) for run in opened]),
        "notes": notes,
        "quick": quick(view),
        **_menu(sorted({name for run in present for name in run.metrics.columns} - {"time"})),
    }


def _menu(found: Sequence[str]) -> dict:
    return {"controls": {"more": menu(found, least=0)}}


def quick(view: dict) -> HTML:
    """What stands on the x axis, and the log scale."""
    axes = joined(choice({"x": name, "zoom": ""}, shown, name == view["x"]) for name, shown in AXES.items())
    log = choice({"log": not view["log"]}, "log scale", view["log"])
    return html(
        '<div class="pair"><div class="choices" role="group" aria-label="Over">{}</div><div class="choices">{}</div></div>',
        *(axes, log),
    )


def sections(runs: Sequence[Opened], view: dict) -> list[dict]:
    """All panels that at least one run has values for, each once: asked-for metrics first, unknown ones last."""
    names = dict.fromkeys(name for run in runs for name in run.metrics.columns)
    own = {name: metric for run in reversed(runs) for name, metric in run.own_metrics.items()}
    asked = [described(name, own) for name in view["more"] if name in names]
    others = [described(name, own) for name in _unknown(names, own) if name not in view["more"]]
    rest = f" {len(others) - OTHERS} more are among “More metrics”." if len(others) > OTHERS else ""
    shelves = [
        ("Chosen metrics", "", asked),
        *((each.title, each.note, _at_first(each.metrics, view["more"])) for each in GROUPS),
        ("Other", OTHER_NOTE + rest, others[:OTHERS]),
    ]
    found = [
        {"title": title, "note": note, "panels": [panel for each in metrics if (panel := _panel(runs, view, each))]}
        for title, note, metrics in shelves
    ]
    shown = [section for section in found if section["panels"]]
    return [{**section, "note": section["note"] or DRAWN} if section is shown[0] else section for section in shown]


def described(name: str, own: Mapping[str, Metric]) -> Metric:
    """What is known of a metric: by the catalogue, by a run that logs it, or its name alone."""
    found = find(name) or own.get(name) or Metric(name, name, "", "")
    return found if found.name == name else replace(found, name=name, title=name)


def _unknown(names: Collection[str], own: Mapping[str, Metric]) -> list[str]:
    """Names that the catalogue does not have; first those that a run describes."""
    in_order = dict.fromkeys((*(name for name in own if name in names), *sorted(names)))
    return [name for name in in_order if name not in COLUMNS and len(name) <= LONGEST and not find(name)]


def _at_first(metrics: Sequence[Metric], asked: Sequence[str]) -> list[Metric]:
    return [metric for metric in metrics if Shown.SPACE in metric.shown and metric.name not in asked]


def zoomed(view: dict) -> tuple[float, float] | None:
    """The part of the x axis that is looked at."""
    low, _, high = view["zoom"].partition(":")
    return (float(low), float(high)) if high else None


def _panel(runs: Sequence[Opened], view: dict, metric: Metric) -> dict | None:
    held_out = metric.name == HELD_OUT
    lines = [line for run in runs if (line := _held_out(run, view) if held_out else _line(run, metric, view))]
    if not lines:
        return None
    return line_panel(
        metric.name,
        plain(middle_cut(metric.title, TITLE)),
        lines,
        unit=AXES[view["x"]],
        share=0 if held_out else view["smooth"],
        log=view["log"],
        note=plain(" · ".join(filter(None, (metric.tells, metric.unit)))),
        worry=plain(metric.worry),
        zoom=zoomed(view),
    )


def _line(run: Opened, metric: Metric, view: dict) -> Line | None:
    steps, values = run.metrics.series(metric.name)
    if not len(steps) and metric.stand_in:
        steps, values = run.metrics.series(metric.stand_in)
    return Line(run.run.key, run.run.number, positions(run.metrics, steps, view["x"]), values) if len(steps) else None


def _held_out(run: Opened, view: dict) -> Line | None:
    """Evaluation during training (the mean over data sets), or the saved results of eval/ (the mean over tasks)."""
    names = [name for name in run.metrics.columns if (found := find(name)) and found.name == HELD_OUT]
    if names:
        stacked = np.stack([run.metrics.columns[name] for name in names])
        present = np.isfinite(stacked).all(0)
        steps, values = run.metrics.steps[present], stacked[:, present].mean(0)
    else:
        steps, values = _saved_results(run)
    if not len(steps):
        return None
    return Line(run.run.key, run.run.number, positions(run.metrics, steps, view["x"]), values)


def _saved_results(run: Opened) -> tuple[np.ndarray, np.ndarray]:
    try:
        found, _ = results.find(run.run)
    except RunError:
        found = []
    shown = results.largest_protocol(found)
    tasks = {result.task for result in found if result.protocol == shown}
    by_step: dict[int, list[float]] = {}
    for result in found:
        if result.protocol == shown and "pass@1" in result.metrics:
            by_step.setdefault(result.step, []).append(result.metrics["pass@1"]["value"])
    whole = sorted(step for step, values in by_step.items() if len(values) == len(tasks))
    return np.array(whole, int), np.array([np.mean(by_step[step]) for step in whole])


def positions(metrics: Metrics, steps: np.ndarray, axis: str) -> np.ndarray:
    """Where steps stand on the x axis: the step, responses so far, or hours since the first step."""
    if axis == "step" or not len(metrics.steps):
        return steps
    name = "time" if axis == "time" else "rollout/num_samples"
    column = metrics.columns.get(name)
    if column is None:
        return steps
    along = (column - np.nanmin(column)) / 3600 if axis == "time" else np.nancumsum(column)
    known = np.isfinite(along)
    return np.interp(steps, metrics.steps[known], along[known], left=0.0) if known.any() else steps


PAGE = Page("dynamics", PARAMETERS, lay_out, render)
