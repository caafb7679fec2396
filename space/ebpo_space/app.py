"""The Gradio app: controls, what they change, and what is shown. What pages show comes from `pages`.

A view is a dict of values (`links.PARAMETERS`), kept in the visitor's session. Every event changes it, renders the current
page, and writes the address.
"""

from __future__ import annotations

import functools

import gradio as gr

from . import layout
from .links import PARAMETERS, clean, parsed
from .pages import dynamics, evaluation, samples, understand
from .runs import AT_ONCE
from .session import Session, Turn
from .tables import run_bar
from .text import HTML
from .workspace import Workspace

RENDER = {
    "dynamics": dynamics.render,
    "samples": samples.render,
    "evaluation": evaluation.render,
    "understand": understand.render,
}
REFRESH = 5.0  # seconds between polls of a run that may still be growing
DATA = ("board",)  # what space.js draws; all else that pages show is HTML, or text
UNKNOWN = object()  # a value that no control has
_FILTERS = ("steps", "cluster", "from", "to", "rewards_from", "rewards_to", "text")


def build(workspace: Workspace) -> gr.Blocks:
    """All pages over the runs of a workspace."""
    with gr.Blocks(title="EBPO, step by step", analytics_enabled=False, fill_width=True) as demo:
        parts = layout.lay_out(workspace, functools.partial(samples.export_group, workspace))
        visitor = gr.State(Session())

        def show(session: Session, turn: Turn, also: dict | None = None) -> dict:
            try:
                stamp = fingerprint(workspace, turn.view)  # before reading: the next tick sees later writes
                update = _shown(parts, workspace, turn.view)
            except BaseException:
                session.fail()
                raise
            owed = session.end(turn, stamp)
            if owed is None:
                return gr.skip()
            for name in owed & parts.controls.keys():
                _set(update, parts.controls[name], value=turn.view[name])
            return update | {parts.locator: session.sent} | (also or {})

        def whole(session: Session, located: str, changes: dict | None = None) -> dict:
            turn = session.begin(changes or {}, located, typed=dict.fromkeys(PARAMETERS, UNKNOWN))
            return show(session, turn, {parts.tabs: gr.Tabs(selected=turn.view["tab"])})

        def load(session: Session, request: gr.Request) -> dict:
            return whole(session, "", clean(dict(request.query_params)))

        def tick(session: Session) -> dict:
            if session.view is None or session.busy or session.stamp == fingerprint(workspace, session.view):
                return gr.skip()
            return show(session, session.begin({}))

        def edited(name: str, session: Session, located: str, value) -> dict:
            if session.view is None or value == session.view[name]:  # a dropdown also fires when a response sets it
                return gr.skip()
            also = {"at": "", "shown": 1} if name in _FILTERS else {}
            return show(session, session.begin({name: value, **also}, located, typed={name: value}))

        def clicked(session: Session, located: str, event: gr.EventData) -> dict:
            data = event._data if isinstance(event._data, dict) else {}
            view = session.view or clean(parsed(located))
            order = data["order"] if isinstance(data.get("order"), int) else 0
            return show(session, session.begin(changes_of(data, workspace.chosen(view)), located, order=order))

        # without Gradio's queue an event is one request: quicker, and no stream that holds one of a browser's six connections
        outputs = [*parts.controls.values(), *parts.shown.values(), parts.locator, parts.tabs]
        quiet = {"outputs": outputs, "show_progress": "hidden", "api_visibility": "private", "queue": False}
        demo.load(load, visitor, **quiet)
        gr.Timer(REFRESH).tick(tick, visitor, **quiet)
        parts.locator.click(whole, [visitor, parts.locator], **quiet)  # responses arrived out of order
        for component in parts.clickable:
            # not "always_last": it sends a later click with the first one's data
            component.click(clicked, [visitor, parts.locator], trigger_mode="multiple", **quiet)
        for name, trigger in parts.triggers:
            inputs = [visitor, parts.locator, parts.controls[name]]
            trigger(functools.partial(edited, name), inputs, trigger_mode="always_last", **quiet)
    return demo


def _shown(parts: layout.Parts, workspace: Workspace, view: dict) -> dict:
    """Updates of the current page, and of the bar of runs."""
    page = view["tab"]
    found = RENDER[page](view, workspace)
    update = {
        parts.shown[f"{page}.{name}"]: value if name in DATA else HTML.escape(value)
        for name, value in found.items()
        if f"{page}.{name}" in parts.shown
    }
    update[parts.shown["bar"]] = HTML.escape(_bar(workspace, view))
    for control, choices in (
        ("more", "metrics"),
        ("cluster", "clusters"),
        ("protocol", "protocols"),
        ("columns", "checkpoints"),
    ):
        if choices in found:
            first = {"cluster": [("any", "")], "protocol": [("the largest", "")]}.get(control, [])
            listed = [*first, *found[choices]] if len(found[choices]) > (control == "protocol") else []
            # a menu that has nothing to choose from is not shown
            _set(update, parts.controls[control], choices=listed, visible=control == "more" or len(listed) > 1)
    if page == "samples":
        view["at"] = found["at"]
    if page == "understand":
        _set(update, parts.controls["right"], maximum=view["g"], value=view["right"])
    return update


def _set(update: dict, component, **properties) -> None:
    update[component] = update.get(component, {}) | gr.update(**properties)


def _bar(workspace: Workspace, view: dict) -> str:
    if view["tab"] == "understand":
        return ""
    opened, _ = workspace.open_all(view)
    chosen = [{"key": run.run.key, "number": run.run.number, "status": run.status} for run in opened]
    others = [key for key in workspace.runs.listed() if key not in {run["key"] for run in chosen}]
    return run_bar(chosen, others, workspace.runs.allowed) if chosen or others or workspace.runs.allowed else ""


def changes_of(data: dict, chosen: list[str]) -> dict:
    """What a button asks for: values of the view, or "add", a run to add to the chosen ones. It comes from a browser, so
    anything may be in it; `clean` decides."""
    changes = {name: value for name, value in data.items() if name in PARAMETERS}
    if data.get("add"):
        changes["runs"] = [*chosen, str(data["add"])][-AT_ONCE:]
    return changes


def fingerprint(workspace: Workspace, view: dict) -> str:
    """Changes when a file of the view's runs does."""
    marks = []
    for key in workspace.chosen(view):
        run = workspace.runs.known(key)
        for place in ("metrics.jsonl", "run.json", "rollouts", *(["eval"] if view["tab"] == "evaluation" else [])):
            marks.append(_mark(run.path / place) if run else key)
    return "|".join([view["tab"], *marks])


def _mark(path) -> str:
    try:
        status = path.stat()
    except OSError:
        return "-"
    below = [_mark(child) for child in sorted(path.glob("*/*/step-*"))[:2000]] if path.name == "eval" else []
    return f"{status.st_size}.{status.st_mtime_ns}" + "".join(below)
