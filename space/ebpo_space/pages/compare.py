"""Compare: one prompt, two groups of answers to it, and an answer of each side by side."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

from openrlhf_ebpo.estimator.registry import title

from .. import reading
from ..errors import RunError
from ..figures import finite, signed
from ..figures import number as written
from ..page import Page, Parts
from ..parameters import number, optional, place, text
from ..sides import ANSWERS, Side, first_side, second_side
from ..strip import strip
from ..tables import choice, dot, no_runs, notices, setting
from ..text import HTML, harmless, html, joined, run_name
from ..workspace import ALL_HIDDEN, Workspace

PARAMETERS = {
    **dict.fromkeys(("run_a", "run_b"), ("", text)),
    **dict.fromkeys(("at_a", "at_b"), ("", place)),
    **{name: (None, optional(number(0, ANSWERS - 1, whole=True))) for name in ("pick_a", "pick_b")},
}
_VISITS = 40  # buttons of steps


def lay_out(parts: Parts, workspace: Workspace) -> None:
    parts.html("notices")
    parts.html("sides")
    parts.html("answers")


def render(view: dict, workspace: Workspace) -> dict:
    """notices, sides, answers: HTML; view: the groups and answers that are shown."""
    keys = workspace.shown(view)
    if not keys:
        said = notices([ALL_HIDDEN]) if workspace.chosen(view) else no_runs(workspace.runs.awaited())
        return {"notices": said, "sides": "", "answers": ""}
    a, b, problems = sides_of(view, workspace, keys)
    there = {name: side for name, side in (("a", a), ("b", b)) if side}
    both = a is not None and b is not None
    if both and a.prompt != b.prompt:
        problems.append("These are two different prompts.")
    shown = joined(_side(name, side, keys, view) for name, side in (("a", a), ("b", b)))
    return {
        "notices": notices(problems),
        "sides": html("{}<div class='sides'>{}</div>", _prompts(list(there.values())), shown),
        "answers": _answers(a, b) if both else "",
        "view": {key: value for name, side in there.items() for key, value in _asked(name, side).items()},
    }


def sides_of(view: dict, workspace: Workspace, keys: list[str]) -> tuple[Side | None, Side | None, list[str]]:
    """Both sides, where there are such, and what went wrong. Which group a side shows that names none depends on the other."""
    problems: list[str] = []
    open_side = functools.partial(_opened, view, workspace, problems)
    if view["at_b"] and not view["at_a"] and view["run_a"] in keys:
        b = open_side("b", _run_of(view, "b", keys, view["run"]), None)
        return b and open_side("a", view["run_a"], b), b, problems
    at_home = _run_of(view, "a", keys, view["run"])
    a = open_side("a", at_home, None)
    return a, a and open_side("b", _run_of(view, "b", keys, at_home), a), problems


def _run_of(view: dict, name: str, keys: list[str], otherwise: str) -> str:
    return next((key for key in (view[f"run_{name}"], otherwise) if key in keys), keys[0])


def _opened(
    view: dict, workspace: Workspace, problems: list[str], name: str, key: str, other: Side | None
) -> Side | None:
    try:
        opened = workspace.open(key)
        index = workspace.index(opened)
        asked = view[f"at_{name}"], view[f"pick_{name}"]
        return first_side(opened, index, *asked) if other is None else second_side(opened, index, other, *asked)
    except RunError as error:
        problems.append(str(error))
        return None


def _asked(name: str, side: Side) -> dict:
    return {f"run_{name}": side.opened.run.key, f"at_{name}": side.place, f"pick_{name}": side.picked}


def _prompts(sides: list[Side]) -> HTML:
    """Once, where it is the same."""
    first = {side.prompt: side for side in reversed(sides)}
    boxes = joined(_prompt(side) for side in reversed(first.values()))
    return html('<div class="prompts">{}</div>', boxes)


def _prompt(side: Side) -> HTML:
    label = side.rows[0].get("label")
    expected = (
        html('<p class="label"><small>expected</small> <code>{}</code></p>', harmless(label, 400)) if label else ""
    )
    text = reading.answer(side.prompt, source={**_source(side), "field": "prompt"}, given=False, name="Prompt")
    return html('<section class="prompt" aria-label="Prompt">{}{}</section>', text, expected)


def _source(side: Side) -> dict:
    """Where the rest of a long text is to be had."""
    step, group = int(side.groups.step[side.position]), int(side.groups.group[side.position])
    return {"run": side.opened.run.key, "step": step, "group": group}


def _side(name: str, side: Side | None, keys: list[str], view: dict) -> HTML:
    said = "First group" if name == "a" else "Second group"
    at = side.opened.run.key if side else view[f"run_{name}"]
    runs = _runs(name, keys, at) if len(keys) > 1 else ""
    inside = _group(name, side) if side else HTML('<p class="none">Nothing to show here; choose another run.</p>')
    return html('<section class="side {}" aria-label="{}">{}{}</section>', name, said, runs, inside)


def _runs(name: str, keys: list[str], at: str) -> HTML:
    """Another run keeps the prompt: the other side has it."""
    asked = {f"at_{name}": "", f"pick_{name}": None}
    buttons = joined(choice({f"run_{name}": key, **asked}, run_name(key, 28), key == at) for key in keys)
    return html('<div class="choices" role="group" aria-label="Run">{}</div>', buttons)


def _group(name: str, side: Side) -> HTML:
    groups, p, run = side.groups, side.position, side.opened.run
    target = setting(tab="samples", run=run.key, at=side.place, prompt="")
    head = html(
        '<header><h2>{}Step {}<small>group {} · {}</small></h2><span class="tools"><button type="button" {}>Open in Samples'
        "</button></span></header>",
        *(dot(run.number), groups.step[p], groups.group[p], run_name(run.key, 32), target),
    )
    facts = [("group mean μ", groups.mean[p]), ("baseline V", groups.baseline[p]), ("shrinkage S", groups.shrinkage[p])]
    numbers = joined(
        html("<div><dt>{}</dt><dd>{}</dd></div>", of, written(float(value)))
        for of, value in facts
        if math.isfinite(value)
    )
    picks = strip(side.rows, side.picked, lambda i: {f"pick_{name}": i})
    return html("{}{}<dl>{}</dl>{}", head, _visits(name, side), numbers, picks)


def _visits(name: str, side: Side) -> HTML:
    """The steps at which this run had the prompt."""
    if len(side.visits) < 2:
        return HTML()
    shown = side.visits[-_VISITS:]
    buttons = joined(_visit(name, side, int(p)) for p in shown)
    return html('<div class="choices steps" role="group" aria-label="Steps with this prompt">{}</div>', buttons)


def _visit(name: str, side: Side, p: int) -> HTML:
    step, group = side.groups.step[p], side.groups.group[p]
    return choice({f"at_{name}": f"{step}.{group}", f"pick_{name}": None}, html("{}", step), p == side.position)


def _number(value: float | None, write: Callable) -> str:
    return "–" if value is None else write(value)


def _answers(a: Side, b: Side) -> HTML:
    return html(
        '<article class="difference"><div class="panes">{}</div></article>', joined([_pane("a", a), _pane("b", b)])
    )


def _pane(name: str, side: Side) -> HTML:
    row = side.rows[side.picked]
    estimator = title(side.opened.estimator)
    values = [("reward", "reward", written), (estimator, "advantage", signed), ("GRPO", "grpo_advantage", signed)]
    shown = [
        (said, _number(finite(row.get(of)), write)) for said, of, write in values[: 2 if estimator == "GRPO" else 3]
    ]
    facts = joined(html("<span><small>{}</small> <b>{}</b></span>", run_name(said, 24), value) for said, value in shown)
    cut = HTML(' <em class="bad">truncated</em>') if row.get("truncated") else ""
    where = html("{}step {}, answer {}", dot(side.opened.run.number), side.groups.step[side.position], side.picked + 1)
    return html(
        '<section class="pane {}" aria-label="{}"><header><h3>{}{}</h3><p class="gains">{}</p></header>{}</section>',
        *(
            name,
            "First answer" if name == "a" else "Second answer",
            where,
            cut,
            facts,
            _read(side),
        ),
    )


def _read(side: Side) -> HTML:
    row, length = side.rows[side.picked], side.rows[side.picked].get("response_length")
    return reading.answer(
        side.answer,
        source={**_source(side), "sample": side.picked},
        tokens=length if isinstance(length, int) else None,
        truncated=bool(row.get("truncated")),
        gold=row.get("label"),
        name=f"Answer {side.picked + 1}",
    )


PAGE = Page("compare", PARAMETERS, lay_out, render)
