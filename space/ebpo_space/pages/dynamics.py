"""Training dynamics: metrics of runs overlaid; where time goes."""

from __future__ import annotations

from collections.abc import Sequence

import gradio as gr

from .. import seeds
from ..components import choice, empty, every_seed, notices
from ..figures import board
from ..metric_panels import sections, zoom_range
from ..metrics import AXES
from ..page import Page, Parts
from ..parameters import flag, number, one_of, span, text
from ..text import HTML, harmless, html, join
from ..workspace import LoadedRun, Workspace

PARAMETERS = {
    "x": ("step", one_of(AXES)),
    "log": (False, flag),
    "whole": (False, flag),  # values far outside stretch the axis
    "smooth": (0.05, number(0, 0.3)),
    "metric": ("", text),  # filter by name
    "zoom": ("", span),
}


def lay_out(parts: Parts, workspace: Workspace) -> None:
    with gr.Row(elem_classes=["controls", "fold"]):
        parts.html("quick")
        smooth = gr.Slider(0, 0.3, 0.05, step=0.01, label="Smoothing (share of run)")
        parts.control("smooth", smooth, "release")
        metric = gr.Textbox("", label="Find metrics", placeholder="all, by words of their names", visible=False)
        parts.control("metric", metric, "submit", "blur")
    parts.html("notes")
    parts.board("board")
    parts.html("zeros")


def render(view: dict, workspace: Workspace) -> dict:
    """board: the panels; notes: problems, or the next step if there is no panel; quick: how the panels are drawn."""
    opened, problems = workspace.open_all(view)
    present = [run for run in opened if len(run.metrics.steps)]
    shown, zeros = sections(opened, view)
    notes = notices(problems)
    if opened and not shown:
        notes += NO_METRIC if present and view["metric"].strip() else "" if zeros else NO_STEPS
    return {
        "board": board(shown, AXES[view["x"]], zoom_range(view)),
        "notes": notes,
        "quick": quick(view, present),
        "zeros": html('<p class="zeros">0 at every step: {}.</p>', harmless(", ".join(zeros), 2000)) if zeros else "",
        "controls": {"metric": {"visible": bool(present)}},
    }


NO_STEPS = empty("No steps yet", "These runs have no metrics so far. The page looks again every few seconds.")
NO_METRIC = empty("No such metric", "No name of a metric of these runs has any of these words.")


def quick(view: dict, runs: Sequence[LoadedRun]) -> HTML:
    """Choose the x axis (by rollouts if batches differ), the log scale and, if there are several, how seeds are
    drawn."""
    several = any(len(group) > 1 for group in seeds.group_by_configuration(runs))
    sizes = [run.metrics.series("rollout/num_samples")[1] for run in runs]
    differ = len({float(end) for each in sizes if len(each) for end in (each.min(), each.max())}) > 1
    names = [name for name in AXES if name != "rollouts" or differ or name == view["x"]]
    axes = join(choice({"x": name, "zoom": ""}, AXES[name], name == view["x"]) for name in names)
    log = choice({"log": not view["log"]}, "log scale", view["log"])
    log += choice({"whole": not view["whole"]}, "all values", view["whole"])
    return html(
        '<div class="pair"><div class="choices" role="group" aria-label="Over">{}</div>'
        '<button type="button" class="unfold" data-unfold aria-expanded="false">Settings</button>'
        '<div class="choices folded">{}</div>{}</div>',
        *(axes, log, every_seed(view) if several else ""),
    )


PAGE = Page("dynamics", PARAMETERS, lay_out, render)
