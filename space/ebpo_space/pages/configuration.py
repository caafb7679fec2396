"""Configuration: every setting of the runs, those that differ first; searched, and copied as flags."""

from __future__ import annotations

import re
from collections.abc import Sequence

import gradio as gr

from ..page import Page
from ..parameters import text
from ..parts import Parts
from ..settings import Setting, as_flags, command, compared, grouped, matching, settings_of
from ..tables import NO_RUNS, dot, empty, notices, table
from ..text import HTML, harmless, html, joined, run_name
from ..workspace import Opened, Workspace

PARAMETERS = {"setting": ("", text)}
ROWS = 800  # settings on the page; a search finds the others
CUT = 400  # characters of a value in the table


def lay_out(parts: Parts, workspace: Workspace) -> None:
    with gr.Row(elem_classes=["controls"]):
        search = gr.Textbox("", label="Search names and values", placeholder="adam lr", max_lines=1)
        parts.control("setting", search, "submit", "blur")
    parts.html("notes")
    parts.html("settings")


def render(view: dict, workspace: Workspace) -> dict:
    """settings: those that differ, then all by the first part of their names; notes: problems."""
    if not workspace.runs.listed() and not view["runs"]:
        return {"notes": NO_RUNS, "settings": ""}
    opened, problems = workspace.open_all(view)
    flat = [settings_of(run.about) for run in opened]
    found = matching(compared(flat), view["setting"])
    return {"notes": notices(problems), "settings": _page(opened, flat, found, view["setting"])}


def _page(opened: Sequence[Opened], flat: Sequence[dict], found: Sequence[Setting], searched: str) -> HTML:
    if not found:
        return _nothing(searched) if opened else HTML()
    differing = [setting for setting in found if setting.differs and setting.decides]
    shown = found[:ROWS]
    more = html('<p class="more">{} more settings are found by a search.</p>', len(found) - ROWS)
    return joined(
        (
            _differences(opened, differing) if len(opened) > 1 else "",
            html(
                '<section class="passage"><h2>All settings{}</h2>',
                html(" that match “{}”", searched) if searched else "",
            ),
            *(_group(opened, name, part, bool(searched)) for name, part in grouped(shown).items()),
            more if len(found) > ROWS else "",
            HTML("</section>"),
            _flags(opened, flat, [setting.name for setting in found]),
        )
    )


def _nothing(searched: str) -> HTML:
    if searched:
        return empty("No setting fits", f"No name and no value has all words of “{searched[:60]}”.")
    return empty("No settings", "run.json is missing or holds none.")


def _differences(opened: Sequence[Opened], differing: Sequence[Setting]) -> HTML:
    if not differing:
        return HTML(
            '<section class="passage"><h2>Settings that differ</h2><p>None, but names and places.</p></section>'
        )
    shown = _table(opened, differing[:ROWS], "Settings that differ")
    return html('<section class="passage"><h2>Settings that differ</h2>{}</section>', shown)


def _group(opened: Sequence[Opened], name: str, part: Sequence[Setting], searched: bool) -> HTML:
    differ = sum(setting.differs and setting.decides for setting in part)
    count = f"{len(part)} setting{'s' if len(part) > 1 else ''}" + (f", {differ} differ" if differ else "")
    return html(
        "<details {}><summary>{}<small>{}</small></summary>{}</details>",
        HTML("open") if searched or differ else "",
        *(harmless(name, 60), count, _table(opened, part, f"Settings of {name}")),
    )


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


def _flags(opened: Sequence[Opened], flat: Sequence[dict], names: Sequence[str]) -> HTML:
    """The command of each run, and what is shown as flags."""
    parts = []
    for run, settings in zip(opened, flat, strict=True):
        name = dot(run.run.number) + run_name(run.run.key, 40)
        parts += [
            _copied(name + HTML(": the command"), "as it was given last", command(run.about)),
            _copied(
                name + HTML(": these settings as flags"),
                "what is off, not set or secret is left out",
                as_flags(settings, names),
            ),
        ]
    return html('<section class="passage"><h2>To copy</h2>{}</section>', joined(part for part in parts if part))


def _copied(title: HTML, note: str, shown: str) -> HTML:
    if not shown:
        return HTML()
    return html(
        '<details class="copied"><summary>{}<small>{}</small></summary>'
        '<button type="button" data-copy>Copy</button><pre tabindex="0">{}</pre></details>',
        *(title, note, harmless(shown)),
    )


PAGE = Page("configuration", PARAMETERS, lay_out, render, reads=("run.json",))
