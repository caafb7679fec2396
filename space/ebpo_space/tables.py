"""HTML of what the pages share: the bar of runs, notices, tables."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from openrlhf_ebpo.redact import without_homes

from .figures import colour
from .text import HTML, attribute, harmless, html, joined, middle_cut, run_name

STATE = {  # of a run, in words
    "training": "training",
    "stalled": "stalled",
    "silent": "no sign of life",
    "failed": "failed",
    "interrupted": "interrupted",
    "paused": "paused",
    "complete": "complete",
    "unknown": "state unknown",
}


def setting(**values) -> HTML:
    """The attribute that makes a button change the view."""
    return html('data-set="{}"', attribute(json.dumps(values)))


def choice(values: dict, name: str, chosen: bool) -> HTML:
    """A button of a row of choices."""
    pressed = "true" if chosen else "false"
    return html('<button type="button" {} aria-pressed="{}">{}</button>', setting(**values), pressed, name)


def notices(problems: Sequence[str]) -> HTML:
    """List problems once, where the visitor sees them."""
    shown = list(dict.fromkeys(problems))
    items = joined(html("<li>{}</li>", harmless(problem, 400)) for problem in shown[:8])
    more = html("<li>and {} more</li>", len(shown) - 8) if len(shown) > 8 else ""
    return html('<div class="notice" role="status"><ul>{}{}</ul></div>', items, more) if shown else HTML()


def empty(title: str, *lines: str, kind: str = "") -> HTML:
    """The empty state: what is missing and what to do."""
    said = joined(html("<p>{}</p>", line) for line in lines)
    return html('<div class="empty {}"><h2>{}</h2>{}</div>', kind, title, said)


def no_runs(awaited: Sequence[str]) -> HTML:
    """Say what to do without a run. awaited: folders that the app was started with."""
    if awaited:
        places = joined(html("<code>{}</code> ", harmless(without_homes(each), 200)) for each in awaited[:8])
        return empty("Waiting for a run", places, "A run appears here as soon as training writes it.", kind="nothing")
    return empty(
        "No runs yet",
        HTML("Start with run directories: <code>openrlhf-ebpo space --runs runs/quickstart</code>"),
        HTML(
            "A training run writes one, <code>bash scripts/quickstart.sh</code> makes the smallest. A data set repository of "
            "the Hub works too: <code>--runs owner/name</code>."
        ),
        "The page Understand needs none.",
        kind="nothing",
    )


class Chip(NamedTuple):
    """One run in the bar, or all seeds of one configuration. states: how many runs are in which of `STATE`."""

    name: str
    keys: tuple[str, ...]
    number: int
    states: Mapping[str, int]


def run_bar(chips: Sequence[Chip], others: Sequence[str], allowed: Sequence[str], view: dict) -> HTML:
    """The chosen runs as chips, hidden ones included, how many runs they are of how many, a menu of the others, and a field
    for a Hub repository."""
    keys = [key for chip in chips for key in chip.keys]
    shown = joined(_chip(chip, view) for chip in chips)
    count = html("<small>{} of {} runs</small>", len(keys), len(keys) + len(others)) if others and keys else ""
    parts = shown, count, _menu(keys, others), _hub_field(allowed)
    return html('<div class="runs" role="group" aria-label="Runs">{}{}{}{}</div>', *parts)


def dot(number: int, kind: str = "dot") -> HTML:
    """A run's colour."""
    return html('<i class="{}" style="background:var(--{})"></i>', kind, colour(number))


def _chip(chip: Chip, view: dict) -> HTML:
    name = attribute(chip.name, 60)
    hidden = set(chip.keys) <= set(view["hidden"])
    others = [key for key in view["hidden"] if key not in chip.keys]
    mark = dot(chip.number, "dot live" if chip.states.get("training") else "dot")
    switch = html(
        '<button type="button" class="see" {0} title="{2}" aria-label="{1} is {2}">{3}</button>',
        *(setting(hidden=others if hidden else [*others, *chip.keys]), name),
        *("hidden; show it" if hidden else "shown; hide it", mark),
    )
    return html(
        '<span class="chip {}" style="--shade:var(--{})">{}<b>{}</b><small>{}</small></span>',
        *(
            "hidden" if hidden else "",
            colour(chip.number),
            switch,
            run_name(chip.name, 44),
            _states(chip),
        ),
    )


def _states(chip: Chip) -> str:
    """The state of a run; the count of a configuration's runs, and of those that are not complete."""
    if len(chip.keys) == 1:
        (kind,) = chip.states
        return STATE[kind] if kind != "unknown" else ""
    left = [f"{count} {STATE[kind]}" for kind, count in chip.states.items() if kind != "complete"]
    return ", ".join([f"{len(chip.keys)} seeds", *left])


def _menu(keys: list[str], others: Sequence[str]) -> HTML:
    if not others:
        return HTML()
    options = joined(
        html('<option value="{}">{}</option>', attribute(key), middle_cut(key, 60)) for key in others[:500]
    )
    return html(
        '<select data-name="add" aria-label="Add a run"><option value="">Add a run…</option>{}</select>',
        options,
    )


def _hub_field(allowed: Sequence[str]) -> HTML:
    if not allowed:
        return HTML()
    return html(
        '<input data-name="add" type="text" placeholder="owner/name on the Hub" spellcheck="false" '
        'aria-label="Add a data set repository of the Hub (allowed: {})">',
        attribute(", ".join(allowed), 120),
    )


def table(head: Sequence[str], rows: Sequence[Sequence[str]], caption: str, kind: str = "") -> HTML:
    """The first column is a row header."""
    heads = joined(html('<th scope="col">{}</th>', cell) for cell in head)
    body = joined(
        html('<tr><th scope="row">{}</th>{}</tr>', row[0], joined(html("<td>{}</td>", cell) for cell in row[1:]))
        for row in rows
    )
    return html(
        '<div class="scroll" tabindex="0" role="region" aria-label="{}"><table class="{}"><caption>{}</caption>'
        "<thead><tr>{}</tr></thead><tbody>{}</tbody></table></div>",
        *(attribute(caption, 200), kind, harmless(caption, 200), heads, body),
    )
