"""The runs of an app: chips of the few configurations that are looked at, and a sortable table of all runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from openrlhf_ebpo.estimator.registry import title
from openrlhf_ebpo.redact import without_homes

from . import seeds
from .change import format_value, window
from .compared_settings import model_of
from .components import dot, notices, setting, sort_head
from .components import state as state_text
from .figures import colour
from .improvement import read_held_out, shares
from .run_state import Condition, clock, condition, seconds, signs
from .runs import AT_ONCE
from .text import HTML, attribute, harmless, html, join, run_name
from .workspace import LoadedRun, Workspace

MAX_CHIPS = 6  # of more configurations the table alone shows which is which
MAX_ROWS = 500
RUN_COLUMNS = ("run", "estimator", "model", "seed", "state", "step", "reward", "held-out", "started")
SORTS = ("", *RUN_COLUMNS, *(f"-{name}" for name in RUN_COLUMNS))


class Row(NamedTuple):
    """One run. state: "" where it is not among the chosen ones, whose files alone are read. cells: by column, the value
    that it is sorted by, None if unknown, and how it is written."""

    key: str
    number: int
    state: str
    cells: Mapping[str, tuple[object, HTML | str]]


def bar(workspace: Workspace, view: dict) -> tuple[HTML, HTML]:
    """Lay out the chips with the button of the table, and the table if it is open."""
    opened, _ = workspace.open_all({**view, "hidden": []})
    listed = workspace.runs.listed()
    if not listed and not opened:
        return HTML(), HTML()  # the page says what it waits for
    waiting = [
        f"{without_homes(each)} holds no run yet: one is shown here once it is written."
        for each in workspace.runs.awaited()
    ]
    now, groups = time.time(), seeds.group_by_configuration(opened)
    conditions = {run.run.key: condition(run.about, run.metrics, signs(run.run), now) for run in opened}
    states = {key: found.kind for key, found in conditions.items()}
    groups = [[run] for run in opened] if len(opened) <= MAX_CHIPS else groups
    chips = join(_chip(group, states, view) for group in groups) if len(groups) <= MAX_CHIPS else HTML()
    table = HTML()
    if view["table"]:
        read = {run.run.key: run for run in opened}
        rows = [_row(read.get(run.run.key, run), conditions.get(run.run.key)) for run in workspace.describe_runs()]
        table = _table(rows, view)
    button, total = HTML(), len(listed)
    if total > 1:
        count = f"{len(opened)} of {total} runs" if total > len(opened) else f"{total} runs"
        template = '<button type="button" class="all" {} aria-expanded="{}">{}</button>'
        button = html(template, setting(table=not view["table"]), "true" if view["table"] else "false", count)
    return html('<div class="runs" role="group" aria-label="Runs">{}{}</div>', chips, button) + notices(waiting), table


def _chip(group: Sequence[LoadedRun], states: Mapping[str, str], view: dict) -> HTML:
    """Lay out one run, or all seeds of one configuration; a click on its dot hides it."""
    keys = [run.run.key for run in group]
    name, shade, kinds = seeds.name(keys), group[0].run.number, [states[key] for key in keys]
    said = state_text(kinds[0]) if kinds[0] != "unknown" else ""
    if len(keys) > 1:
        left = [f"{kinds.count(kind)} {state_text(kind)}" for kind in dict.fromkeys(kinds) if kind != "complete"]
        said = ", ".join([f"{len(kinds)} seeds", *left])
    hidden = set(keys) <= set(view["hidden"])
    return html(
        '<span class="chip {}" style="--shade:var(--{})">{}<b>{}</b><small>{}</small></span>',
        *("hidden" if hidden else "", colour(shade), _switch(keys, name, shade, view, "training" in kinds)),
        *(run_name(name, 44), said),
    )


def _switch(keys: Sequence[str], name: str, shade: int, view: dict, live: bool = False) -> HTML:
    """Write a dot that hides and shows."""
    hidden = set(keys) <= set(view["hidden"])
    others = [key for key in view["hidden"] if key not in keys]
    return html(
        '<button type="button" class="see" {0} title="{2}" aria-label="{1} is {2}">{3}</button>',
        *(setting(hidden=others if hidden else [*others, *keys]), attribute(name, 60)),
        *("hidden; show it" if hidden else "shown; hide it", dot(shade, "dot live" if live else "dot")),
    )


def _row(run: LoadedRun, state: Condition | None) -> Row:
    key, estimator, model, about = run.run.key, title(run.estimator), model_of(run.about), run.about
    rewards, is_share = shares(run.metrics.rewards()[1], run.rewards)
    last = float(rewards[-window(len(rewards)) :].mean()) if len(rewards) else None
    evaluated = (read_held_out(run.run), run.metrics.held_out()) if state else ()
    held_out = next((values for _, values in evaluated if len(values)), ())
    of = f" of {state.steps:,}" if state and state.steps else ""
    cells = (
        (key.lower(), run_name(key, 48)),
        (estimator, harmless(estimator, 40)),
        (model, run_name(model, 32)),
        _cell(seeds.seed_of(about), str),
        (state.kind, state_text(state.kind)) if state else ("", "not read"),
        _cell(state and state.step, lambda step: f"{step:,}{of}"),
        _cell(last, lambda value: format_value(value, is_share)),
        _cell(float(held_out[-1]) if len(held_out) else None, lambda value: format_value(value, True)),
        _cell(seconds(about.get("started")), clock),
    )
    return Row(key, run.run.number, state.kind if state else "", dict(zip(RUN_COLUMNS, cells, strict=True)))


def _cell(value, write: Callable) -> tuple[object, HTML | str]:
    return value, "–" if value is None else write(value)


def _table(rows: Sequence[Row], view: dict) -> HTML:
    name, reverse = view["sort"].removeprefix("-"), view["sort"].startswith("-")
    if name:
        known = [row for row in rows if row.cells[name][0] is not None]
        unknown = [row for row in rows if row.cells[name][0] is None]
        rows = [*sorted(known, key=lambda row: row.cells[name][0], reverse=reverse), *unknown]
    more = f" {len(rows) - MAX_ROWS} more are not listed." if len(rows) > MAX_ROWS else ""
    unread = sum(not row.state for row in rows)
    note = f"{AT_ONCE} runs are read at a time; one that is added takes the place of a hidden or of the first one."
    return html(
        '<div class="scroll all-runs" tabindex="0" role="region" aria-label="Runs"><table><caption>Runs</caption>'
        "<thead><tr>{}</tr></thead><tbody>{}</tbody></table></div>{}",
        *(
            join(sort_head(each, name, reverse) for each in RUN_COLUMNS),
            join(_line(row, view) for row in rows[:MAX_ROWS]),
        ),
        html('<p class="more">{}{}</p>', note, more) if unread or more else "",
    )


def _line(row: Row, view: dict) -> HTML:
    if row.state:
        button = _switch([row.key], row.key, row.number, view, row.state == "training")
    else:
        template = '<button type="button" class="see" {} title="not read; add it" aria-label="add {}">+</button>'
        button = html(template, setting(add=row.key), attribute(row.key, 60))
    cells = [text for _, text in row.cells.values()]
    kind = "hidden" if row.key in view["hidden"] or not row.state else ""
    return html(
        '<tr class="{}"><th scope="row">{}{}</th>{}</tr>',
        *(kind, button, cells[0], join(html("<td>{}</td>", cell) for cell in cells[1:])),
    )
