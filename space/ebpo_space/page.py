"""What a page is: everything that the app knows of it. Each module of `pages` makes one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from .parameters import Parameter
from .parts import Parts
from .workspace import Workspace


def _as_it_is(view: dict) -> None:
    """Any values go together."""


@dataclass(frozen=True)
class Page:
    """name: in links, and on its tab.
    parameters: values of a view that are the page's own, by their names in links.
    lay_out: creates its components, within gr.Blocks().
    render: what the components show for a view, by their names; besides, where it has them, "controls": properties of
        controls (their choices), by the parameter's name, and "view": what of the view is decided only here.
    settle: changes values of a view that do not go together.
    reads: files and folders of a run whose change changes the page; none where it shows no runs."""

    name: str
    parameters: Mapping[str, Parameter]
    lay_out: Callable[[Parts, Workspace], None]
    render: Callable[[dict, Workspace], dict]
    settle: Callable[[dict], None] = _as_it_is
    reads: tuple[str, ...] = ("metrics.jsonl", "run.json", "rollouts")
