"""A page: everything that the app knows of it, its components, and how each is tied to the view. What they do is in
app.py."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import gradio as gr

from .components import no_runs
from .parameters import Parameter
from .workspace import Workspace

_ACTIONS = "window.space.actions(element, props, trigger, server, watch);"
_BOARD = "window.space.board(element, props, trigger, watch); "
NO_PANELS = '{"sections": []}'


@dataclass(frozen=True)
class Control:
    """A component in which the visitor sets a parameter, and what else a change of it sets."""

    component: object
    events: tuple[Callable, ...]
    also: dict


@dataclass
class Parts:
    """The components of one page. outputs: by name, what `render` fills. boards: names of those that are figures, not
    HTML. controls: by parameter; buttons change the others."""

    outputs: dict[str, gr.HTML] = field(default_factory=dict)
    boards: set[str] = field(default_factory=set)
    controls: dict[str, Control] = field(default_factory=dict)

    def html(self, name: str, value: str = "", js: str = "", classes: tuple[str, ...] = ()) -> gr.HTML:
        """HTML that this app has written, inserted verbatim: a value is never parsed as a template."""
        self.outputs[name] = gr.HTML(
            value, js_on_load=_ACTIONS + js, apply_default_css=False, elem_classes=["own", *classes]
        )
        return self.outputs[name]

    def board(self, name: str) -> gr.HTML:
        """Plotly figures. They are data: the template does not show them, boards.js draws them."""
        self.boards.add(name)
        self.outputs[name] = gr.HTML(
            NO_PANELS,
            html_template='<div class="board"></div>',
            js_on_load=_BOARD,
            apply_default_css=False,
            elem_classes=["own"],
        )
        return self.outputs[name]

    def control(self, name: str, component, *events: str, also: dict | None = None):
        """Add a component that sets the parameter `name` at these of its events."""
        self.controls[name] = Control(component, tuple(getattr(component, event) for event in events), also or {})
        return component


def menu(found: Sequence, first: Sequence = (), least: int = 1) -> dict:
    """Properties of a dropdown; one that has less than `least` to choose from is not shown."""
    enough = len(found) >= least
    return {"choices": [*first, *found] if enough else [], "visible": enough}


@dataclass(frozen=True)
class Page:
    """name: in links, and on its tab.
    parameters: values of a view that are the page's own, by their names in links.
    lay_out: creates its components, within gr.Blocks().
    render: what the components show for a view, by their names, nothing where it is absent; besides, where it has
        them, "controls": properties of controls (their choices), by the parameter's name, and "view": what of the view
        is decided only here.
    reconcile: changes values of a view that do not go together.
    reads: files and folders of a run whose change changes the page; none where it shows no runs."""

    name: str
    parameters: Mapping[str, Parameter]
    lay_out: Callable[[Parts, Workspace], None]
    render: Callable[[dict, Workspace], dict]
    reconcile: Callable[[dict], None] = lambda view: None
    reads: tuple[str, ...] = ("metrics.jsonl", "run.json", "rollouts")

    def show(self, view: dict, workspace: Workspace) -> dict:
        """Render the page; without a run, what to do."""
        if self.reads and not workspace.chosen(view):
            return {"notes": no_runs(workspace.runs.awaited())}
        return self.render(view, workspace)
