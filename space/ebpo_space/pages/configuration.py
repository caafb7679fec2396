"""Configuration: the settings in which configurations differ; of a single one all of them, and how it was started."""

from __future__ import annotations

import re
from collections.abc import Sequence

from openrlhf_ebpo.estimator.registry import title

from .. import seeds
from ..compared_settings import Setting, command_of, compare_settings, settings_of
from ..components import dot, empty, notices, table
from ..page import Page, Parts
from ..run_state import clock, last_step, lasting, seconds
from ..text import HTML, harmless, html, join, run_name
from ..workspace import LoadedRun, Workspace

MAX_ROWS = 800  # settings on the page
MAX_VALUE_CHARS = 400  # in the table


def lay_out(parts: Parts, workspace: Workspace) -> None:
    parts.html("notes")
    parts.html("settings")


def render(view: dict, workspace: Workspace) -> dict:
    """settings: tables; notes: problems."""
    opened, problems = workspace.open_all(view)
    groups = seeds.group_by_configuration(opened)
    found = compare_settings([[settings_of(run.about) for run in group] for group in groups])
    return {"notes": notices(problems), "settings": _settings(groups, found) if opened else ""}


def _settings(groups: Sequence[Sequence[LoadedRun]], found: Sequence[Setting]) -> HTML:
    if not found:
        return empty("No settings", "run.json is missing or holds none.")
    if len(groups) > 1:
        differ = [setting for setting in found if setting.differs]
        none = HTML("<p>None, but names and places.</p>")
        return _passage("Settings that differ", _table(groups, differ, "Settings that differ") if differ else none)
    unset = [setting for setting in found if not setting.is_set]
    folded = html(
        '<details class="unset"><summary>{} settings without a value</summary><p>{}</p></details>',
        *(len(unset), HTML(", ").join(map(_name, unset))),
    )
    rows = _table(groups, [setting for setting in found if setting.is_set], "Settings")
    start = _start(groups[0][0]) if len(groups[0]) == 1 else HTML()
    return start + _passage("Settings", rows + (folded if unset else HTML()))


def _passage(title: str, content: HTML) -> HTML:
    return html('<section class="passage"><h2>{}</h2>{}</section>', title, content)


def _start(run: LoadedRun) -> HTML:
    """Command, start and duration of one run."""
    started, ended = (seconds(run.about.get(name)) for name in ("started", "ended"))
    last = ended or last_step(run.metrics)[1]
    facts = {
        "command": command_of(run.about),
        "started": clock(started) if started else "",
        "took": lasting(last - started) if started and last and last > started else "",
    }
    rows = join(
        html("<div><dt>{}</dt><dd><code>{}</code></dd></div>", name, harmless(value, 8000))
        for name, value in facts.items()
        if value
    )
    return _passage("Run", html('<dl class="start">{}</dl>', rows)) if rows else HTML()


def _table(groups: Sequence[Sequence[LoadedRun]], part: Sequence[Setting], caption: str) -> HTML:
    def cell(value: str | None) -> HTML:
        if value:
            return html("<code>{}</code>", harmless(value, MAX_VALUE_CHARS))
        return html('<span class="none">{}</span>', "not set" if value is None else "empty")

    head = ["setting", *map(_head, groups)]
    rows = table(head, [[_name(each), *map(cell, each.values)] for each in part[:MAX_ROWS]], caption, "settings")
    more = html('<p class="more">{} more settings are in run.json.</p>', len(part) - MAX_ROWS)
    return rows + (more if len(part) > MAX_ROWS else HTML())


def _head(group: Sequence[LoadedRun]) -> HTML:
    """Name the estimator, and the name of the run or of the seeds."""
    name = run_name(seeds.name([run.run.key for run in group]), 32)
    several = f", {len(group)} seeds" if len(group) > 1 else ""
    mark = dot(group[0].run.number)
    return html("{}{}<small>{}{}</small>", mark, name, harmless(title(group[0].estimator), 40), several)


def _name(setting: Setting) -> HTML:
    parts = map(harmless, re.split(r"(?<=[._])", setting.name[:200]))
    return html("<code>{}</code>", join(part + HTML("<wbr>") for part in parts))


PAGE = Page("configuration", {}, lay_out, render, reads=("run.json",))
