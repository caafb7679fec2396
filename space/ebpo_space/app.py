"""The Gradio app: controls, what they change, and what is shown. What pages show comes from `pages`.

A view is a dict of values (`links.PARAMETERS`), one control each: a component where the visitor edits it, a State where
buttons do. Every event makes the whole view, renders the current page, and writes the address.
"""

from __future__ import annotations

import functools

import gradio as gr

from . import layout
from .links import PARAMETERS, address, clean
from .pages import dynamics, evaluation, samples, understand
from .runs import AT_ONCE
from .tables import run_bar
from .workspace import Workspace

RENDER = {
    "dynamics": dynamics.render,
    "samples": samples.render,
    "evaluation": evaluation.render,
    "understand": understand.render,
}
REFRESH = 5.0  # seconds between looks at a run that may still be growing
_FILTERS = ("steps", "cluster", "from", "to", "rewards_from", "rewards_to", "text")


def build(workspace: Workspace) -> gr.Blocks:
    """All pages over the runs of a workspace."""
    with gr.Blocks(title="EBPO, step by step", analytics_enabled=False, fill_width=True) as demo:
        parts = layout.lay_out(workspace, functools.partial(samples.export_group, workspace))
        stamp = gr.State("")
        names = list(PARAMETERS)
        inputs = [parts.controls[name] for name in names]
        outputs = [*inputs, *parts.shown.values(), parts.locator, parts.tabs, stamp]

        def show(changes: dict, *values, whole: bool = False) -> dict:
            view = clean(dict(zip(names, values, strict=True)) | changes)
            update = _shown(parts, workspace, view)
            changed = names if whole else [*changes, *(["at"] if view["tab"] == "samples" else [])]
            for name in changed:
                update[parts.controls[name]] = _control(name, view)
            return update | {parts.locator: address(view) or "?", stamp: fingerprint(workspace, view)}

        def load(request: gr.Request) -> dict:
            view = clean(dict(request.query_params))
            return show(view, *(view[name] for name in names), whole=True) | {parts.tabs: gr.Tabs(selected=view["tab"])}

        def tick(seen: str, *values) -> dict:
            view = clean(dict(zip(names, values, strict=True)))
            # before `load` has answered nothing is seen, and the values are not yet the address's
            return gr.skip() if seen in ("", fingerprint(workspace, view)) else show({}, *values)

        def edited(changes: dict, seen: str, *values) -> dict:
            # a menu also says so when `load` fills it: then the address is the same already
            view = clean(dict(zip(names, values, strict=True)))
            return gr.skip() if seen in ("", None, address(view) or "?") else show(changes, *values)

        def clicked(event: gr.EventData, *values) -> dict:
            view = clean(dict(zip(names, values, strict=True)))
            return show(changes_of(event._data, view, workspace.chosen(view)), *values)

        # without Gradio's queue an event is one request: quicker, and no stream that holds one of a browser's six connections
        quiet = {"outputs": outputs, "show_progress": "hidden", "api_visibility": "private", "queue": False}
        demo.load(load, None, **quiet)
        gr.Timer(REFRESH).tick(tick, [stamp, *inputs], **quiet)
        for component in parts.clickable:
            component.click(clicked, inputs, trigger_mode="always_last", **quiet)
        for name, trigger in parts.triggers:
            changes = {"at": "", "shown": 1} if name in _FILTERS else {}
            trigger(functools.partial(edited, changes), [parts.locator, *inputs], trigger_mode="always_last", **quiet)
    return demo


def _shown(parts: layout.Parts, workspace: Workspace, view: dict) -> dict:
    """Updates of the current page, and of the bar of runs."""
    page = view["tab"]
    found = RENDER[page](view, workspace)
    update = {parts.shown[f"{page}.{name}"]: value for name, value in found.items() if f"{page}.{name}" in parts.shown}
    update[parts.shown["bar"]] = _bar(workspace, view)
    for control, choices in (("more", "metrics"), ("cluster", "clusters"), ("protocol", "protocols")):
        if choices in found:
            first = {"cluster": [("any", "")], "protocol": [("the largest", "")]}.get(control, [])
            listed = [*first, *found[choices]] if len(found[choices]) > (control == "protocol") else []
            update[parts.controls[control]] = _menu(control, listed)
    if page == "samples":
        view["at"] = found["at"]
    if page == "understand":
        update[parts.controls["right"]] = gr.update(maximum=view["g"], value=view["right"])
    return update


def _menu(name: str, choices: list):
    """A menu that has nothing to choose from is not shown."""
    return gr.update(choices=choices, visible=name == "more" or len(choices) > 1)


def _control(name: str, view: dict):
    value = view[name]
    return gr.update(value=value) if name in layout.EDITED else value


def _bar(workspace: Workspace, view: dict) -> str:
    if view["tab"] == "understand":
        return ""
    opened, _ = workspace.open_all(view)
    chosen = [{"key": run.run.key, "number": run.run.number, "status": run.status} for run in opened]
    others = [key for key in workspace.runs.listed() if key not in {run["key"] for run in chosen}]
    return run_bar(chosen, others, workspace.runs.allowed) if chosen or others or workspace.runs.allowed else ""


def changes_of(data, view: dict, chosen: list[str]) -> dict:
    """What a button asks for: values of the view, or "add", a run to add to the chosen ones. It comes from a browser, so
    anything may be in it; `clean` decides."""
    data = data if isinstance(data, dict) else {}
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
