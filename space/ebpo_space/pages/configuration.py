"""Configuration: the settings in which runs differ; of a single run all of them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ..page import Page, Parts
from ..settings import Setting, compared, settings_of
from ..tables import dot, empty, no_runs, notices, table
from ..text import HTML, harmless, html, joined, run_name
from ..workspace import Opened, Workspace

MAX_ROWS = 800  # settings on the page
MAX_VALUE_CHARS = 400  # in the table


def lay_out(parts: Parts, workspace: Workspace) -> None:
    parts.html("notes")
    parts.html("settings")


def render(view: dict, workspace: Workspace) -> dict:
    """settings: a table; notes: problems."""
    if not workspace.runs.listed() and not view["runs"]:
        return {"notes": no_runs(workspace.runs.awaited()), "settings": ""}
    opened, problems = workspace.open_all(view)
    found = compared([settings_of(run.about) for run in opened])
    return {"notes": notices(problems), "settings": _settings(opened, found) if opened else ""}


def _settings(opened: Sequence[Opened], found: Sequence[Setting]) -> HTML:
    if not found:
        return empty("No settings", "run.json is missing or holds none.")
    shown = found if len(opened) == 1 else [setting for setting in found if setting.differs]
    title = "Settings" if len(opened) == 1 else "Settings that differ"
    more = html('<p class="more">{} more settings are in run.json.</p>', len(shown) - MAX_ROWS)
    return html(
        '<section class="passage"><h2>{}</h2>{}{}</section>',
        *(title, _table(opened, shown[:MAX_ROWS], title) if shown else HTML("<p>None, but names and places.</p>")),
        more if len(shown) > MAX_ROWS else "",
    )


def _table(opened: Sequence[Opened], part: Sequence[Setting], caption: str) -> HTML:
    head = ["setting", *(dot(run.run.number) + run_name(run.run.key, 32) for run in opened)]
    return table(head, [[_name(setting), *map(_value, setting.values)] for setting in part], caption, "settings")


def _name(setting: Setting) -> HTML:
    parts = map(harmless, re.split(r"(?<=[._])", setting.name[:200]))
    return html("<code>{}</code>", joined(part + HTML("<wbr>") for part in parts))


def _value(value: str | None) -> HTML:
    if value is None:
        return HTML('<span class="none">not set</span>')
    return (
        html("<code>{}</code>", harmless(value, MAX_VALUE_CHARS)) if value else HTML('<span class="none">empty</span>')
    )


PAGE = Page("configuration", {}, lay_out, render, reads=("run.json",))
