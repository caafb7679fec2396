"""Compare: the group that Samples shows, another group of the same prompt, and an answer of each side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from openrlhf_ebpo.estimator.registry import title

from ..cards import prompt_section
from ..errors import RunError, attempt
from ..figures import finite
from ..groups import Groups
from ..page import Page, Parts
from ..parameters import number, place, text
from ..search import answers, history, position_of
from ..strip import MAX_TILES, answer, strip
from ..tables import choice, dot, no_runs, notices, setting
from ..text import HTML, html, joined, run_name
from ..workspace import ALL_HIDDEN, Opened, Workspace

# of the second group; the first one is that of Samples: run, at, answer
PARAMETERS = {"run_b": ("", text), "at_b": ("", place), "pick_b": (0, number(0, MAX_TILES, whole=True))}
MAX_VISITS = 40  # buttons of steps


@dataclass(frozen=True)
class Side:
    """One group and the row of its chosen answer."""

    opened: Opened
    groups: Groups
    position: int
    rows: Sequence[dict]
    picked: int

    @property
    def place(self) -> str:
        return f"{self.groups.step[self.position]}.{self.groups.group[self.position]}"

    @property
    def source(self) -> dict:
        """The group, as `reading.answer` takes it."""
        step, group = int(self.groups.step[self.position]), int(self.groups.group[self.position])
        return {"run": self.opened.run.key, "step": step, "group": group}


def lay_out(parts: Parts, workspace: Workspace) -> None:
    parts.html("notices")
    parts.html("sides")


def render(view: dict, workspace: Workspace) -> dict:
    """notices, sides: HTML; view: the first group."""
    keys = workspace.shown(view)
    if not keys:
        said = notices([ALL_HIDDEN]) if workspace.chosen(view) else no_runs(workspace.runs.awaited())
        return {"notices": said, "sides": ""}
    problems: list[str] = []
    first = attempt(lambda: first_side(view, workspace, keys), None, problems)
    if first is None:
        return {"notices": notices(problems), "sides": ""}
    second = attempt(lambda: second_side(view, workspace, keys, first), None, problems)
    prompt = prompt_section(first.rows[0], first.source)
    sides = [_side(first, "answer"), _other(second, view, keys, first)]
    shown = [_answer(side) for side in (first, second) if side]
    return {
        "notices": notices(problems),
        "sides": html('{}<div class="sides">{}{}</div>', prompt, joined(sides), joined(shown)),
        "view": {"run": first.opened.run.key, "at": first.place},
    }


def first_side(view: dict, workspace: Workspace, keys: Sequence[str]) -> Side:
    """Open the group that Samples shows, or the latest one.

    Raises:
        RunError: the run has no rollouts, no such group, or they cannot be read.
    """
    opened = workspace.open(view["run"] if view["run"] in keys else keys[0])
    groups, _ = workspace.index(opened).read()
    if not len(groups):
        raise RunError(f"{opened.run.key} has no rollouts.")
    position = position_of(groups, *map(int, view["at"].split("."))) if view["at"] else len(groups) - 1
    if position is None:
        raise RunError(f"There is no group {view['at']} in {opened.run.key}.")
    rows = answers(opened.run, groups, position)[:MAX_TILES]
    return Side(opened, groups, position, rows, min(max(view["answer"], 1), len(rows)) - 1)


def second_side(view: dict, workspace: Workspace, keys: Sequence[str], first: Side) -> Side:
    """Open another group of the first one's prompt: the asked one, else the earliest other one of the same run, or the one
    at the nearest step of another run. A prompt that came once is compared with itself.

    Raises:
        RunError: the run has no group of this prompt, or it cannot be read.
    """
    opened = workspace.open(_run_b(view, keys, first))
    groups, _ = workspace.index(opened).read()
    visits = history(groups, first.groups.prompt_id[first.position])
    asked = position_of(groups, *map(int, view["at_b"].split("."))) if view["at_b"] else None
    same_run = opened.run.key == first.opened.run.key
    others = visits[visits != first.position] if same_run else visits
    if asked in visits.tolist():
        position = asked
    elif same_run:
        position = int(others[0]) if len(others) else first.position
    elif len(others):
        position = int(others[np.abs(groups.step[others] - first.groups.step[first.position]).argmin()])
    else:
        raise RunError(f"{opened.run.key} has no group of this prompt.")
    rows = answers(opened.run, groups, position)[:MAX_TILES]
    picked = view["pick_b"] - 1 if view["pick_b"] else _of_another_reward(rows, first)
    return Side(opened, groups, position, rows, min(picked, len(rows) - 1))


def _run_b(view: dict, keys: Sequence[str], first: Side) -> str:
    return view["run_b"] if view["run_b"] in keys else first.opened.run.key


def _of_another_reward(rows: Sequence[dict], first: Side) -> int:
    """Find the first answer with another reward than the first side's, else the second one."""
    known = (None, finite(first.rows[first.picked].get("reward")))
    return next((i for i, row in enumerate(rows) if finite(row.get("reward")) not in known), min(1, len(rows) - 1))


def _other(side: Side | None, view: dict, keys: Sequence[str], first: Side) -> HTML:
    """The second group, with the runs and steps to choose from."""
    at = _run_b(view, keys, first)
    reset = {"at_b": "", "pick_b": 0}
    runs = (
        joined(choice({"run_b": key, **reset}, run_name(key, 28), key == at) for key in keys) if len(keys) > 1 else ""
    )
    if side is None:
        return html(
            '<section class="side" aria-label="Second group">{}<p class="none">Choose another run.</p></section>',
            _choices("Run", runs),
        )
    visits = history(side.groups, side.groups.prompt_id[side.position])[-MAX_VISITS:]
    steps = joined(_visit(side, int(p)) for p in visits) if len(visits) > 1 else ""
    return _side(side, "pick_b", _choices("Run", runs) + _choices("Steps with this prompt", steps))


def _visit(side: Side, p: int) -> HTML:
    step = side.groups.step[p]
    return choice({"at_b": f"{step}.{side.groups.group[p]}", "pick_b": 0}, html("{}", step), p == side.position)


def _choices(said: str, buttons: HTML | str) -> HTML:
    return html('<div class="choices" role="group" aria-label="{}">{}</div>', said, buttons) if buttons else HTML()


def _side(side: Side, name: str, choices: HTML = HTML()) -> HTML:  # noqa: B008 (it cannot change)
    """name: of the parameter that chooses its answer."""
    run = side.opened.run
    change: Callable[[int], dict] = lambda i: {name: i + 1}  # noqa: E731
    return html(
        '<section class="side" aria-label="{} group"><header><h2>{}Step {}<small>group {} · {}</small></h2>'
        '<span class="tools"><button type="button" {}>Open in Samples</button></span></header>{}{}</section>',
        *("First" if name == "answer" else "Second", dot(run.number), side.groups.step[side.position]),
        *(side.groups.group[side.position], run_name(run.key, 32)),
        *(setting(tab="samples", run=run.key, at=side.place, answer=side.picked + 1), choices),
        strip(side.rows, side.picked, change),
    )


def _answer(side: Side) -> HTML:
    source = {**side.source, "sample": side.picked}
    return answer(side.rows, side.picked, estimator=title(side.opened.estimator), source=source)


PAGE = Page("compare", PARAMETERS, lay_out, render)
