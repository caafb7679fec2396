"""Training dynamics: metrics of runs overlaid, how what they measure is spread; where time goes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import gradio as gr

from .. import heatmaps, seeds
from ..figures import board
from ..groups import Groups, clusters
from ..metrics import AXES, positions
from ..page import Page, Parts, menu
from ..parameters import flag, names, number, one_of, span, text
from ..shelves import sections, zoomed
from ..tables import choice, empty, no_runs, notices
from ..text import HTML, html, joined, middle_cut, plain
from ..workspace import Opened, Workspace

LOOKS = ("metrics", "distributions")
HEAT_RUNS = 4  # runs with heat maps at once
PARAMETERS = {
    "look": ("metrics", one_of(LOOKS)),
    "x": ("step", one_of(AXES)),
    "log": (False, flag),
    "smooth": (0.05, number(0, 0.3)),
    "more": ([], names),
    "zoom": ("", span),
    "seeds": ("mean", one_of(("mean", "each"))),
    "topic": ("", text),
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
        topic = gr.Dropdown([], value="", label="Cluster", allow_custom_value=True, visible=False)
        parts.control("topic", topic, "input")
    parts.html("notes")
    parts.board("board")


def render(view: dict, workspace: Workspace) -> dict:
    """board: the panels; notes: problems, or what to do when nothing is there; quick: what is looked at, and how."""
    if not workspace.runs.listed() and not view["runs"]:
        return {
            "board": board([]),
            "notes": no_runs(workspace.runs.awaited()),
            "quick": "",
            "controls": controls(view, [], []),
        }
    opened, problems = workspace.open_all(view)
    present = [run for run in opened if len(run.metrics.steps)]
    metrics = view["look"] == "metrics"
    shown, groups = (sections(opened, view), []) if metrics else distributions(opened, view, workspace, problems)
    notes = notices(problems)
    if opened and not any(section["panels"] for section in shown):
        notes += NO_STEPS if metrics else NO_CLUSTER if view["topic"] else NO_ROLLOUTS
    return {
        "board": board(shown, AXES[view["x"]], zoomed(view)),
        "notes": notes,
        "quick": quick(view, any(len(group) > 1 for group in seeds.grouped(present))),
        "controls": controls(view, present, groups),
    }


NO_STEPS = empty("No steps yet", "These runs have no metrics so far. The page looks again every few seconds.")
NO_ROLLOUTS = empty("No rollouts", "These runs hold no rollouts that could be read.")
NO_CLUSTER = empty("No rollouts of this cluster", "Choose another one, or all prompts, in the menu above.")


def quick(view: dict, several: bool = False) -> HTML:
    """Choose what is looked at, the x axis, the log scale and, if there are several, how seeds are drawn."""
    looks = joined(choice({"look": name}, name, name == view["look"]) for name in LOOKS)
    axes = joined(choice({"x": name, "zoom": ""}, shown, name == view["x"]) for name, shown in AXES.items())
    log = choice({"log": not view["log"]}, "log scale", view["log"]) if view["look"] == "metrics" else HTML()
    each = {"seeds": "mean" if view["seeds"] == "each" else "each"}
    log += choice(each, "every seed", view["seeds"] == "each") if several and view["look"] == "metrics" else HTML()
    return html(
        '<div class="pair"><div class="choices" role="group" aria-label="Look at">{}</div>'
        '<button type="button" class="unfold" data-unfold aria-expanded="false">Settings</button>'
        '<div class="choices folded" role="group" aria-label="Over">{}</div>{}</div>',
        *(looks, axes, html('<div class="choices folded">{}</div>', log) if log else ""),
    )


def controls(view: dict, runs: Sequence[Opened], groups: Sequence[Groups]) -> dict:
    """Choices of the menus; those that this look has no use for are not shown."""
    metrics, names = (
        view["look"] == "metrics",
        sorted({name for run in runs for name in run.metrics.columns} - {"time"}),
    )
    return {
        "smooth": {"visible": metrics},
        "more": {**menu(names, least=0), "visible": metrics},
        "topic": menu(clusters(groups), [("all prompts", "")], least=0 if view["topic"] and not metrics else 2),
    }


def distributions(
    runs: Sequence[Opened], view: dict, workspace: Workspace, problems: list[str]
) -> tuple[list[dict], list[Groups]]:
    """A section of heat maps for each of the first runs, and their groups; what cannot be read is added to `problems`."""
    shown, found = [], []
    for run in runs[:HEAT_RUNS]:
        groups, damaged, responses = workspace.index(run).read_all()
        problems += [f"{run.run.key}: {problem}" for problem in damaged]
        found.append(groups)
        axis = partial(positions, run.metrics, axis=view["x"])
        drawn = heatmaps.panels(
            *(groups, responses, (run.run.key, run.run.number), run.estimator, axis, AXES[view["x"]], view["topic"])
        )
        said = "" if shown else heatmaps.HOW + _left_out(runs)
        note = " ".join(filter(None, (said, heatmaps.partly(groups, responses))))
        shown.append({"title": plain(middle_cut(run.run.key, 60)), "note": note, "panels": drawn})
    return shown, found


def _left_out(runs: Sequence[Opened]) -> str:
    return (
        f" The first {HEAT_RUNS} of {len(runs)} runs are shown; hide others to see the rest."
        if len(runs) > HEAT_RUNS
        else ""
    )


PAGE = Page("dynamics", PARAMETERS, lay_out, render)
