"""The Gradio app: controls, what they change, and what is shown. What pages show comes from `pages`.

A view is a dict of values (`links.PARAMETERS`), kept in the visitor's session. Every event changes it, renders the
current page, and writes the address.
"""

from __future__ import annotations

import functools
import time
import traceback
from dataclasses import dataclass

import gradio as gr

from openrlhf_ebpo.run.heartbeat import FILE as HEARTBEAT
from openrlhf_ebpo.run.run_log import LOCK

from .components import notices
from .errors import attempt
from .links import PARAMETERS, Session, Turn, address, clean, parse_address
from .page import NO_PANELS, Control, Parts
from .pages import PAGES
from .run_state import PATIENCE, SILENCE
from .run_table import bar
from .runs import AT_ONCE, stamp, summaries
from .text import HTML
from .workspace import Rendered, Workspace

REFRESH = 5.0  # seconds between polls of a run that may still be growing
FAILED = "This page could not be made ({}); it is tried again every few seconds, and the app's output has the details."
UNKNOWN = object()  # a value that no control has
HEADER = '<header class="masthead"><h1>EBPO<span>step by step</span></h1></header>'


@dataclass
class Layout:
    """frame: what stands on every page: the masthead, the runs. locator: number and address of what is shown.
    pages: by name."""

    frame: Parts
    locator: gr.HTML
    tabs: gr.Tabs
    pages: dict[str, Parts]

    @property
    def controls(self) -> dict[str, Control]:
        return {name: control for parts in self.pages.values() for name, control in parts.controls.items()}

    @property
    def outputs(self) -> list[gr.HTML]:
        return [component for parts in (self.frame, *self.pages.values()) for component in parts.outputs.values()]


def lay_out(workspace: Workspace) -> Layout:
    """Create all components; must run inside gr.Blocks()."""
    frame, pages = Parts(), {name: Parts() for name in PAGES}
    with gr.Row(elem_classes=["top-row"]):
        frame.html("masthead", value=HEADER, js=" window.space.start(trigger);")
        frame.html("bar", classes=("wide-bar",))
    frame.html("table")
    locator = gr.HTML(
        "",
        html_template="<i></i>",
        js_on_load="window.space.locate(props, trigger, watch);",
        elem_classes=["unseen"],
        apply_default_css=False,
    )
    with gr.Tabs(elem_id="pages") as tabs:
        for name, page in PAGES.items():
            with gr.Tab(name.capitalize(), id=name):
                page.lay_out(pages[name], workspace)
    return Layout(frame, locator, tabs, pages)


def build(workspace: Workspace) -> gr.Blocks:
    """Build all pages over the runs of a workspace."""
    with gr.Blocks(title="EBPO, step by step", analytics_enabled=False, fill_width=True) as demo:
        layout = lay_out(workspace)
        controls = layout.controls
        visitor, rendered = gr.State(Session()), Rendered()

        def show(session: Session, turn: Turn, also: dict | None = None) -> dict:
            try:
                stamp = fingerprint(workspace, turn.view)  # before reading: the next tick sees later writes
                key = (address(turn.view), stamp, *workspace.runs.listed())
                found = rendered.get(key, lambda: PAGES[turn.view["tab"]].show(dict(turn.view), workspace))
                update = _page_updates(layout, workspace, turn.view, found)
            except Exception as error:  # the next tick tries again
                traceback.print_exc()
                stamp = "failed"
                update = {layout.frame.outputs["table"]: notices([FAILED.format(type(error).__name__)])}
            owed = session.end(turn, stamp)
            if owed is None:
                return gr.skip()
            for name in owed & controls.keys():
                _set(update, controls[name].component, value=turn.view[name])
            return update | {layout.locator: session.sent} | (also or {})

        def whole(session: Session, located: str, changes: dict | None = None) -> dict:
            turn = session.begin(changes or {}, located, typed=dict.fromkeys(PARAMETERS, UNKNOWN))
            return show(session, turn, {layout.tabs: gr.Tabs(selected=turn.view["tab"])})

        def load(session: Session, request: gr.Request) -> dict:
            return whole(session, "", clean(dict(request.query_params)))

        def relocated(session: Session, located: str, event: gr.EventData) -> dict:
            """Answer with all of the view once more: an older answer came last, or the browser went back to an
            address."""
            data = event._data if isinstance(event._data, dict) else {}
            return whole(session, located, clean(parse_address(str(data["address"]))) if "address" in data else None)

        def tick(session: Session) -> dict:
            if session.view is None or session.busy or session.stamp == fingerprint(workspace, session.view):
                return gr.skip()
            return show(session, session.begin({}))

        def edited(name: str, session: Session, located: str, value) -> dict:
            if session.view is None and not located:  # the page has not loaded yet
                return gr.skip()
            if (
                value == (session.view or clean(parse_address(located)))[name]
            ):  # a dropdown also fires when a response sets it
                return gr.skip()
            return show(session, session.begin({name: value, **controls[name].also}, located, typed={name: value}))

        def clicked(session: Session, located: str, event: gr.EventData) -> dict:
            data = event._data if isinstance(event._data, dict) else {}
            view = session.view or clean(parse_address(located))
            order = data["order"] if isinstance(data.get("order"), int) else 0
            turn = session.begin(changes_of(data, workspace.chosen(view), view["hidden"]), located, order=order)
            return show(session, turn, {layout.tabs: gr.Tabs(selected=turn.view["tab"])} if "tab" in data else None)

        # without Gradio's queue an event is one request: quicker, and no stream that holds one of a browser's six
        # connections
        every = [*(each.component for each in controls.values()), *layout.outputs, layout.locator, layout.tabs]
        quiet = {"outputs": every, "show_progress": "hidden", "api_visibility": "private", "queue": False}
        demo.load(load, visitor, **quiet)
        gr.Timer(REFRESH).tick(tick, visitor, **quiet)
        layout.locator.click(relocated, [visitor, layout.locator], **quiet)
        for component in layout.outputs:
            # not "always_last": it sends a later click with the first one's data
            component.click(clicked, [visitor, layout.locator], trigger_mode="multiple", **quiet)
        for name, control in controls.items():
            inputs = [visitor, layout.locator, control.component]
            for event in control.events:
                event(functools.partial(edited, name), inputs, trigger_mode="always_last", **quiet)
    return demo


def _page_updates(layout: Layout, workspace: Workspace, view: dict, found: dict) -> dict:
    """Updates of the current page, which has rendered `found`, and of the bar of runs; what only rendering decides is
    put into the view."""
    parts = layout.pages[view["tab"]]
    update = {
        component: found.get(name, NO_PANELS) if name in parts.boards else HTML.escape(found.get(name, ""))
        for name, component in parts.outputs.items()
    }
    chips, table = bar(workspace, view) if PAGES[view["tab"]].reads else (HTML(), HTML())
    update |= {layout.frame.outputs["bar"]: chips, layout.frame.outputs["table"]: table}
    for name, properties in found.get("controls", {}).items():
        _set(update, parts.controls[name].component, **properties)
    view |= found.get("view", {})
    return update


def _set(update: dict, component, **properties) -> None:
    update[component] = update.get(component, {}) | gr.update(**properties)


def changes_of(data: dict, chosen: list[str], hidden: list[str]) -> dict:
    """Read the changes that a button asks for: values of the view, or "add", a run to add to the chosen ones, of which
    a hidden one or the first leaves if they are many. It comes from a browser, so anything may be in it; `clean`
    decides."""
    changes = {name: value for name, value in data.items() if name in PARAMETERS}
    if data.get("add") and isinstance(data["add"], str):
        leaves = next((key for key in chosen if key in hidden), chosen[0]) if len(chosen) >= AT_ONCE else None
        changes["runs"] = [*(key for key in chosen if key != leaves), data["add"]]
    return changes


def fingerprint(workspace: Workspace, view: dict) -> str:
    """Changes when a file of the view's runs does."""
    marks = []
    for key in workspace.chosen(view):
        run = workspace.runs.known(key)
        for place in PAGES[view["tab"]].reads:
            marks.append(_mark(run.path / place) if run else key)
            if run and place == "eval":
                marks += map(_mark, attempt(lambda run=run: summaries(run.path), [], []))  # they may go meanwhile
    if HEARTBEAT in PAGES[view["tab"]].reads:
        marks.append(str(int(time.time() // PATIENCE)))  # what says nothing is late after a while, and no file changes
    return "|".join([view["tab"], *marks])


def _mark(path) -> str:
    found = stamp(path)
    if found and path.name == LOCK:  # touched every few seconds; what counts is whether it still is
        return str(time.time() - found[1] / 1e9 <= SILENCE)
    return str(found)
