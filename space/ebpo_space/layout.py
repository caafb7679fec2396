"""Where things stand: the components of every page, without what they do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import gradio as gr

from .pages.evaluation import PAPER
from .results import COLUMNS
from .workspace import Workspace

HEADER = (
    '<header class="masthead"><div><h1>EBPO<span>step by step</span></h1></div>'
    '<button type="button" data-theme-toggle aria-label="Switch between light and dark">◐</button></header>'
)
KEYS = "<p class='keys'><kbd>j</kbd> <kbd>k</kbd> next and previous group · <kbd>[</kbd> <kbd>]</kbd> step · <kbd>e</kbd> export</p>"
_ACTIONS = "window.space.actions(element, props, trigger, server, watch);"
_BOARD = "window.space.board(element, props, trigger, watch); "


@dataclass
class Parts:
    """controls: of the view's parameters that the visitor edits; buttons change the others. shown: components that pages
    fill. clickable: those with buttons. triggers: (parameter, event) of the controls."""

    controls: dict = field(default_factory=dict)
    shown: dict = field(default_factory=dict)
    clickable: list = field(default_factory=list)
    triggers: list = field(default_factory=list)
    locator: gr.HTML | None = None
    tabs: gr.Tabs | None = None


def lay_out(workspace: Workspace, export: Callable) -> Parts:
    """Create all components; must run inside gr.Blocks()."""
    parts = Parts()
    with gr.Row(elem_classes=["top-row"]):
        _html(parts, "masthead", value=HEADER, js=_ACTIONS + " window.space.start(trigger);")
        _html(parts, "bar", classes=("wide-bar",))
    parts.locator = gr.HTML(
        "",
        html_template="<i></i>",
        js_on_load="window.space.locate(props, trigger, watch);",
        elem_classes=["unseen"],
        apply_default_css=False,
    )
    with gr.Tabs(elem_id="pages") as parts.tabs:
        for page, build in (
            ("dynamics", _dynamics),
            ("samples", _samples),
            ("evaluation", _evaluation),
            ("understand", _understand),
        ):
            with gr.Tab(page.capitalize(), id=page):
                build(parts, export)
    return parts


def _html(
    parts: Parts, name: str, value: str = "", js: str = _ACTIONS, classes: tuple[str, ...] = (), **more
) -> gr.HTML:
    """HTML that this app has written, inserted verbatim: a value is never parsed as a template."""
    made = gr.HTML(value, js_on_load=js, apply_default_css=False, elem_classes=["own", *classes], **more)
    parts.shown[name] = made
    if _ACTIONS in js:
        parts.clickable.append(made)
    return made


def _board(parts: Parts, name: str) -> None:
    # the figures are data: the template does not show them, space.js draws them
    parts.shown[name] = made = gr.HTML(
        '{"sections": []}',
        html_template='<div class="board"></div>',
        js_on_load=_BOARD,
        apply_default_css=False,
        elem_classes=["own"],
    )
    parts.clickable.append(made)


def _edited(parts: Parts, name: str, component, *events: str):
    parts.controls[name] = component
    parts.triggers += [(name, getattr(component, event)) for event in events]
    return component


def _dynamics(parts: Parts, export: Callable) -> None:
    with gr.Row(elem_classes=["controls"]):
        _html(parts, "dynamics.quick")
        _edited(parts, "smooth", gr.Slider(0, 0.3, 0.05, step=0.01, label="Smoothing (share of run)"), "release")
        more = gr.Dropdown(
            [], value=[], multiselect=True, label="More metrics", allow_custom_value=True, elem_classes=["grow"]
        )
        _edited(parts, "more", more, "change")
    _html(parts, "dynamics.notes")
    _board(parts, "dynamics.board")
    _html(parts, "dynamics.table")


def _samples(parts: Parts, export: Callable) -> None:
    _html(parts, "samples.quick")
    with gr.Accordion("Filters", open=False, elem_classes=["filters"]), gr.Row(elem_classes=["controls"]):
        _edited(
            parts,
            "text",
            gr.Textbox("", label="Text", placeholder="in prompts, answers, labels", elem_classes=["grow"]),
            "submit",
        )
        steps = gr.Textbox("latest", label="Steps", placeholder="latest, all, 12, 10-20")
        _edited(parts, "steps", steps, "submit", "blur")
        _edited(
            parts, "cluster", gr.Dropdown([("any", "")], value="", label="Cluster", allow_custom_value=True), "input"
        )
        _edited(parts, "from", gr.Slider(0, 1, 0, step=0.05, label="Success rate from"), "release")
        _edited(parts, "to", gr.Slider(0, 1, 1, step=0.05, label="Success rate to"), "release")
        _edited(parts, "rewards_from", gr.Number(None, label="Mean reward from"), "submit", "blur")
        _edited(parts, "rewards_to", gr.Number(None, label="Mean reward to"), "submit", "blur")
    _html(parts, "samples.notes")
    with gr.Row(elem_classes=["reader"]):
        _html(parts, "samples.groups", classes=("left",))
        _html(parts, "samples.detail", classes=("right",), server_functions=[_named(export)])
    gr.HTML(KEYS, apply_default_css=False, elem_classes=["own"])


def _named(export: Callable) -> Callable:
    def export_group(wanted: dict) -> list[str]:
        return list(export(wanted))

    return export_group


def _evaluation(parts: Parts, export: Callable) -> None:
    with gr.Row(elem_classes=["controls"]):
        _edited(
            parts,
            "protocol",
            gr.Dropdown([], value="", label="Protocol", allow_custom_value=True, visible=False),
            "input",
        )
        columns = gr.Dropdown(
            [],
            value=[],
            multiselect=True,
            label="Checkpoints",
            allow_custom_value=True,
            visible=False,
            max_choices=COLUMNS,
        )
        _edited(parts, "columns", columns, "change")
        choices = [("not shown", ""), *[(name, key) for key, name in PAPER.items()]]
        _edited(
            parts,
            "paper",
            gr.Dropdown(choices, value="", label="The paper’s numbers", allow_custom_value=True),
            "input",
        )
    _html(parts, "evaluation.notes")
    _html(parts, "evaluation.table")
    _board(parts, "evaluation.board")
    _html(parts, "evaluation.questions")
    _html(parts, "evaluation.question")


def _understand(parts: Parts, export: Callable) -> None:
    _html(parts, "understand.intro")
    with gr.Row(elem_classes=["controls", "sliders"]):
        _edited(parts, "g", gr.Slider(2, 32, 4, step=1, label="Group size G"), "input")
        _edited(parts, "right", gr.Slider(0, 4, 0, step=1, label="Right answers"), "input")
        _edited(parts, "mean", gr.Slider(0.01, 0.99, 0.35, step=0.01, label="Prior mean μ_glob"), "input")
        _edited(parts, "within", gr.Slider(0, 0.25, 0.16, step=0.005, label="Within variance σ²"), "input")
        _edited(parts, "between", gr.Slider(0, 0.25, 0.06, step=0.005, label="Between variance τ²"), "input")
    _html(parts, "understand.story")
    _board(parts, "understand.board")
    _html(parts, "understand.centring")
