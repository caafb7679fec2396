"""Two groups to lay side by side, and an answer of each: what a view asks for, and what it gets where it asks for nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .errors import RunError
from .figures import finite
from .groups import Groups, Index
from .search import answers, history, position_of
from .workspace import Opened

ANSWERS = 64  # of a group to choose from


@dataclass(frozen=True)
class Side:
    """One group. visits: positions of the groups of the same prompt in this run, in order of step. picked: the row of the
    chosen answer."""

    opened: Opened
    groups: Groups
    position: int
    visits: np.ndarray
    rows: Sequence[dict]
    picked: int

    @property
    def place(self) -> str:
        return f"{self.groups.step[self.position]}.{self.groups.group[self.position]}"

    @property
    def prompt(self) -> str:
        return str(self.rows[0].get("prompt") or "")

    @property
    def answer(self) -> str:
        return str(self.rows[self.picked].get("response") or "")


def asked_with(run: str, step: int, group: int) -> dict:
    """Change a view so that it compares this group."""
    group_a = {"run_a": run, "at_a": f"{step}.{group}", "pick_a": None}
    return {"tab": "compare", **group_a, "run_b": "", "at_b": "", "pick_b": None}


def first_side(opened: Opened, index: Index, place: str, picked: int | None) -> Side:
    """
    Raises:
        RunError: the run has no rollouts, no such group, or they cannot be read.
    """
    groups, _ = index.read()
    if not len(groups):
        raise RunError(f"{opened.run.key} has no rollouts.")
    position = _at(groups, place) if place else worth_comparing(groups)
    if position is None:
        raise RunError(f"There is no group {place} in {opened.run.key}.")
    return _side(opened, index, groups, position, picked)


def second_side(opened: Opened, index: Index, first: Side, place: str, picked: int | None) -> Side:
    """Open a group of the same prompt as the first, unless a place is named.

    Raises:
        RunError: the run has no such group, or none of this prompt, or they cannot be read.
    """
    groups, _ = index.read()
    same_run = opened.run.key == first.opened.run.key
    if place:
        position = _at(groups, place)
        if position is None:
            raise RunError(f"There is no group {place} in {opened.run.key}.")
    else:
        visits = first.visits if same_run else history(groups, first.groups.prompt_id[first.position])
        if not len(visits):
            raise RunError(f"{opened.run.key} has no group of this prompt.")
        position = int(counterpart(groups, visits, first, same_run))
    if same_run and position == first.position and picked is None:
        picked = other_answer(first)
    return _side(opened, index, groups, position, picked)


def _at(groups: Groups, place: str) -> int | None:
    step, _, group = place.partition(".")
    return position_of(groups, int(step), int(group))


def _side(opened: Opened, index: Index, groups: Groups, position: int, picked: int | None) -> Side:
    rows = answers(index.run, groups, position)[:ANSWERS]
    visits = history(groups, groups.prompt_id[position])
    visits = visits if len(visits) else np.array([position])
    return Side(opened, groups, position, visits, rows, best(rows) if picked is None else min(picked, len(rows) - 1))


def worth_comparing(groups: Groups) -> int:
    """The latest group whose prompt came before, with right and wrong answers if there is one; else the latest."""
    seen: set = set()
    came_before = np.array([p is not None and (p in seen or seen.add(p)) for p in groups.prompt_id], bool)
    mixed = (groups.success > 0) & (groups.success < 1)
    for wanted in (came_before & mixed, came_before, mixed):
        if wanted.any():
            return int(np.flatnonzero(wanted)[-1])
    return len(groups) - 1


def counterpart(groups: Groups, visits: np.ndarray, first: Side, same_run: bool) -> int:
    """In the same run the prompt's earliest other group, else the first side itself; in another run the nearest step."""
    if not same_run:
        return int(visits[np.argmin(np.abs(groups.step[visits] - first.groups.step[first.position]))])
    others = visits[visits != first.position]
    return int(others[0]) if len(others) else first.position


def best(rows: Sequence[dict]) -> int:
    rewards = [finite(row.get("reward")) for row in rows]
    return int(np.argmax([-np.inf if reward is None else reward for reward in rewards]))


def other_answer(side: Side) -> int:
    """Find the answer of the same group whose reward differs most."""
    rewards = [finite(row.get("reward")) for row in side.rows]
    mine = rewards[side.picked]
    apart = [-1.0 if reward is None or mine is None else abs(reward - mine) for reward in rewards]
    apart[side.picked] = -2.0
    return int(np.argmax(apart))
