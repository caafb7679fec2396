"""The runs of an app: chips of the few configurations that are looked at, and a sortable table of all runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from openrlhf_ebpo.estimator.registry import title
from openrlhf_ebpo.redact import without_homes

from . import seeds
from .change import format_value
from .components import STATE, dot, notices, setting
from .figures import colour
from .improvement import read_held_out, shares
from .run_state import Condition, clock, condition, seconds, signs
from .runs import AT_ONCE
from .settings import model_of
from .text import HTML, attribute, harmless, html, join, run_name
from .workspace import Opened, Workspace

MAX_CHIPS = 6  # of more configurations the table alone shows which is which
MAX_ROWS = 500


@dataclass(frozen=True)
class Row:
    """One run. state: "" where it is not among the chosen ones, whose files alone are read."""

    key: str
    number: int
    about: dict
    estimator: str
    state: str = ""
    step: int | None = None
    steps: int = 0
    reward: float | None = None
    held_out: float | None = None
    is_share: bool = False  # the reward


def _started(row: Row) -> float | None:
    return seconds(row.about.get("started"))


# name of the column -> what it is sorted by, and how that is written
COLUMNS: Mapping[str, tuple[Callable, Callable]] = {
    "run": (lambda row: row.key.lower(), lambda row: run_name(row.key, 48)),
    "estimator": (lambda row: title(row.estimator), lambda row: harmless(title(row.estimator), 40)),
    "model": (lambda row: model_of(row.about), lambda row: run_name(model_of(row.about), 32)),
    "seed": (lambda row: seeds.seed_of(row.about), lambda row: _or_dash(seeds.seed_of(row.about), str)),
    "state": (lambda row: row.state, lambda row: STATE.get(row.state, "not read")),
    "step": (
        lambda row: row.step,
        lambda row: _or_dash(row.step, lambda step: f"{step:,}{f' of {row.steps:,}' if row.steps else ''}"),
    ),
    "reward": (
        lambda row: row.reward,
        lambda row: _or_dash(row.reward, lambda value: format_value(value, row.is_share)),
    ),
    "held-out": (lambda row: row.held_out, lambda row: _or_dash(row.held_out, lambda value: format_value(value, True))),
    "started": (_started, lambda row: _or_dash(_started(row), clock)),
}
SORTS = ("", *COLUMNS, *(f"-{name}" for name in COLUMNS))


def _or_dash(value, write: Callable) -> str:
    return "–" if value is None else write(value)


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
    table = _table(_rows(workspace, opened, conditions), view) if view["table"] else HTML()
    button = _button(listed, opened, view)
    return html('<div class="runs" role="group" aria-label="Runs">{}{}</div>', chips, button) + notices(waiting), table


def _button(listed: Sequence[str], opened: Sequence[Opened], view: dict) -> HTML:
    keys = {run.run.key for run in opened}
    total = len(keys.union(listed))
    if total < 2:
        return HTML()
    count = f"{len(keys)} of {total} runs" if total > len(keys) else f"{total} runs"
    open_ = "true" if view["table"] else "false"
    return html(
        '<button type="button" class="all" {} aria-expanded="{}">{}</button>',
        *(setting(table=not view["table"]), open_, count),
    )


def _chip(group: Sequence[Opened], states: Mapping[str, str], view: dict) -> HTML:
    """Lay out one run, or all seeds of one configuration; a click on its dot hides it."""
    keys = [run.run.key for run in group]
    name, shade = seeds.name(keys), group[0].run.number
    live = any(states[key] == "training" for key in keys)
    hidden = set(keys) <= set(view["hidden"])
    return html(
        '<span class="chip {}" style="--shade:var(--{})">{}<b>{}</b><small>{}</small></span>',
        *("hidden" if hidden else "", colour(shade), _switch(keys, name, shade, view, live)),
        *(run_name(name, 44), _states([states[key] for key in keys])),
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


def _states(kinds: Sequence[str]) -> str:
    """Write the state of a run; the count of a configuration's runs, and of those that are not complete."""
    if len(kinds) == 1:
        return STATE[kinds[0]] if kinds[0] != "unknown" else ""
    left = [f"{kinds.count(kind)} {STATE[kind]}" for kind in dict.fromkeys(kinds) if kind != "complete"]
    return ", ".join([f"{len(kinds)} seeds", *left])


def _rows(workspace: Workspace, opened: Sequence[Opened], conditions: Mapping[str, Condition]) -> list[Row]:
    there = {run.run.key: run for run in opened}
    return [
        _read(there[run.run.key], conditions[run.run.key])
        if run.run.key in there
        else Row(run.run.key, run.run.number, run.about, run.estimator)
        for run in [
            *workspace.describe_runs(),
            *(run for key, run in there.items() if key not in workspace.runs.listed()),
        ]
    ]


def _read(run: Opened, state: Condition) -> Row:
    rewards, is_share = shares(run.metrics.rewards()[1], run.rewards)
    held = next((values for _, values in (read_held_out(run.run), run.metrics.held_out()) if len(values)), ())
    last = rewards[-max(len(rewards) // 10, 1) :]
    return Row(
        *(run.run.key, run.run.number, run.about, run.estimator, state.kind),
        step=state.step,
        steps=state.steps,
        reward=float(last.mean()) if len(last) else None,
        held_out=float(held[-1]) if len(held) else None,
        is_share=is_share,
    )


def _table(rows: Sequence[Row], view: dict) -> HTML:
    name, reverse = view["sort"].removeprefix("-"), view["sort"].startswith("-")
    if name:
        value = COLUMNS[name][0]
        known = sorted((row for row in rows if value(row) is not None), key=value, reverse=reverse)
        rows = [*known, *(row for row in rows if value(row) is None)]
    more = f" {len(rows) - MAX_ROWS} more are not listed." if len(rows) > MAX_ROWS else ""
    unread = sum(not row.state for row in rows)
    note = f"{AT_ONCE} runs are read at a time; one that is added takes the place of a hidden or of the first one."
    return html(
        '<div class="scroll all-runs" tabindex="0" role="region" aria-label="Runs"><table><caption>Runs</caption>'
        "<thead><tr>{}</tr></thead><tbody>{}</tbody></table></div>{}",
        *(join(_head(each, name, reverse) for each in COLUMNS), join(_line(row, view) for row in rows[:MAX_ROWS])),
        html('<p class="more">{}{}</p>', note, more) if unread or more else "",
    )


def _head(column: str, name: str, reverse: bool) -> HTML:
    """A click sorts by the column, the next one the other way round."""
    chosen = column == name
    turned = f"-{column}" if chosen and not reverse else column
    order = ("descending" if reverse else "ascending") if chosen else "none"
    mark = (" ▾" if reverse else " ▴") if chosen else ""
    return html(
        '<th scope="col" aria-sort="{}"><button type="button" {}>{}{}</button></th>',
        *(order, setting(sort=turned), column, mark),
    )


def _line(row: Row, view: dict) -> HTML:
    if row.state:
        button = _switch([row.key], row.key, row.number, view, row.state == "training")
    else:
        template = '<button type="button" class="see" {} title="not read; add it" aria-label="add {}">+</button>'
        button = html(template, setting(add=row.key), attribute(row.key, 60))
    cells = [write(row) for _, write in COLUMNS.values()]
    kind = "hidden" if row.key in view["hidden"] or not row.state else ""
    return html(
        '<tr class="{}"><th scope="row">{}{}</th>{}</tr>',
        *(kind, button, cells[0], join(html("<td>{}</td>", cell) for cell in cells[1:])),
    )
