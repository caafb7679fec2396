"""Training dynamics: metrics of runs overlaid, how what they measure is spread; where time goes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import gradio as gr

from .. import heatmaps, seeds
from ..figures import board
from ..groups import Groups
from ..metrics import AXES, positions
from ..page import Page, Parts, menu
from ..parameters import flag, names, number, one_of, span, text
from ..shelves import sections, speed_section, zoomed
from ..tables import choice, empty, no_runs, notices
from ..text import HTML, html, joined, middle_cut, plain
from ..workspace import Opened, Workspace

LOOKS = {
    "metrics": "metrics",
    "distributions": "distributions",
}
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
        topic = gr.Dropdown(
            [], value="", label="Cluster", allow_custom_value=True, visible=False, elem_classes=["short"]
        )
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
    shown, groups = LOOKED[view["look"]](opened, view, workspace, problems)
    notes = notices(problems)
    if opened and not any(section["panels"] for section in shown):
        notes += NOTHING[view["look"]] if present or groups else NO_STEPS
    return {
        "board": board(shown, AXES[view["x"]], zoomed(view)),
        "notes": notes,
        "quick": quick(view, any(len(group) > 1 for group in seeds.grouped(present))),
        "controls": controls(view, present, groups),
    }


NO_STEPS = empty("No steps yet", "These runs have no metrics so far. The page looks again every few seconds.")
NOTHING = {
    "metrics": NO_STEPS,
    "distributions": empty("No rollouts", "These runs hold no rollouts that could be read."),
}


def quick(view: dict, several: bool = False) -> HTML:
    """Choose what is looked at, the x axis, the log scale and, if there are several, how seeds are drawn."""
    looks = joined(choice({"look": name}, shown, name == view["look"]) for name, shown in LOOKS.items())
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
    look, names = view["look"], sorted({name for run in runs for name in run.metrics.columns} - {"time"})
    named = [(middle_cut(plain(name), 80), name) for name in heatmaps.topics(groups)]
    return {
        "smooth": {"visible": look != "distributions"},
        "more": {**menu(names, least=0), "visible": look == "metrics"},
        "topic": {
            **menu(named, [("all prompts", "")], least=2),
            **({} if look == "distributions" else {"visible": False}),
        },
    }


Found = tuple[list[dict], list[Groups]]


def _metrics(runs: Sequence[Opened], view: dict, workspace: Workspace, problems: list[str]) -> Found:
    over = partial(_over, axis=view["x"])
    named = [(*_named(run), run.metrics) for run in runs]
    return [*sections(runs, view), speed_section(named, over, AXES[view["x"]], view["smooth"], view["log"])], []


def _distributions(runs: Sequence[Opened], view: dict, workspace: Workspace, problems: list[str]) -> Found:
    shown, found = [], []
    for run in runs[:HEAT_RUNS]:
        groups, damaged, responses = workspace.index(run).read_all()
        problems += [f"{run.run.key}: {problem}" for problem in damaged]
        found.append(groups)
        said = "" if shown else heatmaps.HOW + _left_out(runs)
        drawn = heatmaps.panels(
            *(groups, responses, _named(run), run.estimator, _axis(run, view), AXES[view["x"]], view["topic"])
        )
        note = " ".join(filter(None, (said, heatmaps.partly(groups, responses))))
        shown.append({"title": plain(middle_cut(run.run.key, 60)), "note": note, "panels": drawn})
    return shown, found


LOOKED = {"metrics": _metrics, "distributions": _distributions}


def _left_out(runs: Sequence[Opened]) -> str:
    return (
        f" The first {HEAT_RUNS} of {len(runs)} runs are shown; hide others to see the rest."
        if len(runs) > HEAT_RUNS
        else ""
    )


def _named(run: Opened) -> tuple[str, int]:
    return run.run.key, run.run.number


def _axis(run: Opened, view: dict) -> Callable:
    return lambda steps: positions(run.metrics, steps, view["x"])


def _over(metrics, steps, axis: str):
    return positions(metrics, steps, axis)


PAGE = Page("dynamics", PARAMETERS, lay_out, render)
