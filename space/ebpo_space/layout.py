"""Where things stand: the frame around the pages, and every page's components in its tab."""

from __future__ import annotations

from dataclasses import dataclass

import gradio as gr

from .pages import PAGES
from .parts import Control, Parts
from .workspace import Workspace

HEADER = (
    '<header class="masthead"><div><h1>EBPO<span>step by step</span></h1></div>'
    '<button type="button" data-theme-toggle aria-label="Switch between light and dark">◐</button></header>'
)


@dataclass
class Layout:
    """frame: what stands on every page: the masthead, the bar of runs. locator: number and address of what is shown.
    pages: by name."""

    frame: Parts
    locator: gr.HTML
    tabs: gr.Tabs
    pages: dict[str, Parts]

    @property
    def controls(self) -> dict[str, Control]:
        return {name: control for parts in self.pages.values() for name, control in parts.controls.items()}

    @property
    def shown(self) -> list[gr.HTML]:
        return [component for parts in (self.frame, *self.pages.values()) for component in parts.shown.values()]


def lay_out(workspace: Workspace) -> Layout:
    """Create all components; must run inside gr.Blocks()."""
    frame, pages = Parts(), {name: Parts() for name in PAGES}
    with gr.Row(elem_classes=["top-row"]):
        frame.html("masthead", value=HEADER, js=" window.space.start(trigger);")
        frame.html("bar", classes=("wide-bar",))
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
