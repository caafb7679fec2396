"""Configuration: the settings in which runs differ, then all of them, and the command of each run."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ..page import Page, Parts
from ..settings import Setting, command, compared, settings_of
from ..tables import dot, empty, no_runs, notices, table
from ..text import HTML, harmless, html, joined, run_name
from ..workspace import Opened, Workspace

ROWS = 800  # settings on the page
CUT = 400  # characters of a value in the table


def lay_out(parts: Parts, workspace: Workspace) -> None:
    parts.html("notes")
    parts.html("settings")


def render(view: dict, workspace: Workspace) -> dict:
    """settings: those that differ, all, and commands; notes: problems."""
    if not workspace.runs.listed() and not view["runs"]:
        return {"notes": no_runs(workspace.runs.awaited()), "settings": ""}
    opened, problems = workspace.open_all(view)
    flat = [settings_of(run.about) for run in opened]
    return {"notes": notices(problems), "settings": _page(opened, compared(flat))}


def _page(opened: Sequence[Opened], found: Sequence[Setting]) -> HTML:
    if not found:
        return empty("No settings", "run.json is missing or holds none.") if opened else HTML()
    differing = [setting for setting in found if setting.differs and setting.decides]
    more = html('<p class="more">{} more settings are in run.json.</p>', len(found) - ROWS)
    return joined(
        (
            _differences(opened, differing) if len(opened) > 1 else "",
            html(
                '<section class="passage"><details {}><summary>All settings<small>{:,} settings</small></summary>{}{}</details></section>',
                *(HTML("open") if len(opened) == 1 else "", len(found)),
                *(_table(opened, found[:ROWS], "All settings"), more if len(found) > ROWS else ""),
            ),
            _commands(opened),
        )
    )


def _differences(opened: Sequence[Opened], differing: Sequence[Setting]) -> HTML:
    if not differing:
        return HTML(
            '<section class="passage"><h2>Settings that differ</h2><p>None, but names and places.</p></section>'
        )
    shown = _table(opened, differing[:ROWS], "Settings that differ")
    return html('<section class="passage"><h2>Settings that differ</h2>{}</section>', shown)


def _table(opened: Sequence[Opened], part: Sequence[Setting], caption: str) -> HTML:
    head = ["setting", *(dot(run.run.number) + run_name(run.run.key, 32) for run in opened)]
    rows = [[_name(setting), *map(_value, setting.values)] for setting in part]
    return table(head, rows, caption, "settings")


def _name(setting: Setting) -> HTML:
    parts = re.split(r"(?<=[._])", setting.name[:200])
    shown = html("<code>{}</code>", HTML("<wbr>").join(map(harmless, parts)))
    return html("<b>{}</b>", shown) if setting.differs and setting.decides else shown


def _value(value: str | None) -> HTML:
    if value is None:
        return HTML('<span class="none">not set</span>')
    return html("<code>{}</code>", harmless(value, CUT)) if value else HTML('<span class="none">empty</span>')


def _commands(opened: Sequence[Opened]) -> HTML:
    parts = (_copied(dot(run.run.number) + run_name(run.run.key, 40), command(run.about)) for run in opened)
    return html('<section class="passage"><h2>Commands</h2>{}</section>', joined(parts))


def _copied(name: HTML, shown: str) -> HTML:
    if not shown:
        return HTML()
    return html(
        '<details class="copied"><summary>{}<small>as it was given last</small></summary>'
        '<button type="button" data-copy>Copy</button><pre tabindex="0">{}</pre></details>',
        *(name, harmless(shown)),
    )


PAGE = Page("configuration", {}, lay_out, render, reads=("run.json",))
