"""Training dynamics: metrics of runs overlaid; where time goes."""

from __future__ import annotations

from collections.abc import Sequence

import gradio as gr

from .. import seeds
from ..components import choice, empty, every_seed, no_runs, notices
from ..figures import board
from ..metric_panels import sections, zoom_range
from ..metrics import AXES
from ..page import Page, Parts, menu
from ..parameters import flag, names, number, one_of, span
from ..text import HTML, html, join
from ..workspace import Opened, Workspace

PARAMETERS = {
    "x": ("step", one_of(AXES)),
    "log": (False, flag),
    "whole": (False, flag),  # values far outside stretch the axis
    "smooth": (0.05, number(0, 0.3)),
    "more": ([], names),
    "zoom": ("", span),
}


def lay_out(parts: Parts, workspace: Workspace) -> None:
    with gr.Row(elem_classes=["controls", "fold"]):
        parts.html("quick")
        smooth = gr.Slider(0, 0.3, 0.05, step=0.01, label="Smoothing (share of run)")
        parts.control("smooth", smooth, "release")
        more = gr.Dropdown(
            [], value=[], multiselect=True, label="More metrics", allow_custom_value=True, elem_classes=["grow"]
        )
        parts.control("more", more, "change")
    parts.html("notes")
    parts.board("board")


def render(view: dict, workspace: Workspace) -> dict:
    """board: the panels; notes: problems, or what to do when nothing is there; quick: how the panels are drawn."""
    if not workspace.runs.listed() and not view["runs"]:
        return {"notes": no_runs(workspace.runs.awaited()), "controls": controls([])}
    opened, problems = workspace.open_all(view)
    present = [run for run in opened if len(run.metrics.steps)]
    shown = sections(opened, view)
    notes = notices(problems)
    if opened and not any(section["panels"] for section in shown):
        notes += NO_STEPS
    return {
        "board": board(shown, AXES[view["x"]], zoom_range(view)),
        "notes": notes,
        "quick": quick(view, any(len(group) > 1 for group in seeds.group_by_configuration(present))),
        "controls": controls(present),
    }


NO_STEPS = empty("No steps yet", "These runs have no metrics so far. The page looks again every few seconds.")


def quick(view: dict, several: bool = False) -> HTML:
    """Choose the x axis, the log scale and, if there are several, how seeds are drawn."""
    axes = join(choice({"x": name, "zoom": ""}, shown, name == view["x"]) for name, shown in AXES.items())
    log = choice({"log": not view["log"]}, "log scale", view["log"])
    log += choice({"whole": not view["whole"]}, "all values", view["whole"])
    return html(
        '<div class="pair"><div class="choices" role="group" aria-label="Over">{}</div>'
        '<button type="button" class="unfold" data-unfold aria-expanded="false">Settings</button>'
        '<div class="choices folded">{}</div>{}</div>',
        *(axes, log, every_seed(view) if several else ""),
    )


def controls(runs: Sequence[Opened]) -> dict:
    """Choices of the menu of metrics."""
    return {"more": menu(sorted({name for run in runs for name in run.metrics.columns} - {"time"}), least=0)}


PAGE = Page("dynamics", PARAMETERS, lay_out, render)
