"""Estimators compared over seeds: paired differences with intervals, a verdict on the order, learning curves."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from lab.plots import Panel, Series, draw
from lab.statistics import Interval, interval
from lab.tables import table

PAIRS = (("EBPO", "GRPO"), ("EBPO robust", "GRPO"), ("EBPO robust", "EBPO"))  # on the CPU the first is ahead
COLOURS = {"GRPO": "GRPO", "EBPO": "EBPO", "EBPO robust": "third"}
LAST = 5  # steps whose rewards are averaged at the end
WINDOW = 2  # steps a point of a curve
MEASURES = {"held-out success": "heldout", "reward, last steps": "reward"}


class Pair(NamedTuple):
    """Of one comparison: the difference of each seed (and group size); None where a seed is not there twice."""

    title: str
    values: np.ndarray

    @property
    def interval(self) -> Interval | None:
        return interval(self.values) if len(self.values) > 1 else None


def end(result: dict, measure: str) -> float:
    return result["heldout"][-1][1] if measure == "heldout" else float(np.mean(result["rewards"][-LAST:]))


def pairs(results: Sequence[dict], measure: str, groups: Iterable[int]) -> list[Pair]:
    """Each of PAIRS over the seeds that both have; of several group sizes, each seed counts once for each."""
    ends = {(r["seed"], r["group"], r["estimator"]): end(r, measure) for r in results}
    places = sorted({(seed, group) for seed, group, _ in ends if group in set(groups)})
    return [
        Pair(
            f"{one} − {other}",
            np.array(
                [
                    ends[(*place, one)] - ends[(*place, other)]
                    for place in places
                    if {(*place, one), (*place, other)} <= ends.keys()
                ]
            ),
        )
        for one, other in PAIRS
    ]


def holds(pair: Pair) -> str:
    """Whether the first is ahead, as on the CPU."""
    found = pair.interval
    return "cannot be seen" if found is None else {1: "yes", 0: "cannot be seen", -1: "no"}[found.sign]


def tables(results: Sequence[dict]) -> str:
    """In Markdown: what every estimator comes to, and what they differ by."""
    groups = sorted({result["group"] for result in results})
    return "\n\n".join(
        [ends_table(results, groups), *(differences(results, groups, *each) for each in MEASURES.items())]
    )


def ends_table(results: Sequence[dict], groups: Sequence[int]) -> str:
    rows = []
    for group in groups:
        for name in COLOURS:
            own = [r for r in results if (r["group"], r["estimator"]) == (group, name)]
            if own:
                means = [np.mean([end(r, measure) for r in own]) for measure in MEASURES.values()]
                first, length = (np.mean([r[key] for r in own]) for key in ("first_reward", "length"))
                rows.append([str(group), name, str(len(own)), *(f"{x:.3f}" for x in (first, *means)), f"{length:.0f}"])
    return table(["G", "estimator", "seeds", "reward of the first step", *MEASURES, "tokens a response"], rows)


def differences(results: Sequence[dict], groups: Sequence[int], title: str, measure: str) -> str:
    rows = []
    for shown, chosen in [*((str(group), [group]) for group in groups), ("all", groups)]:
        for pair in pairs(results, measure, chosen):
            rows.append([shown, pair.title, str(len(pair.values)), *cells(pair), holds(pair)])
    head = ["G", title, "pairs", "difference", "smallest visible", "the CPU's order holds"]
    return table(head, rows)


def cells(pair: Pair) -> list[str]:
    if found := pair.interval:
        return [found.text(), f"{found.visible:.3f}"]
    return [f"{pair.values[0]:+.3f}" if len(pair.values) else "", ""]


def other_prompts(results: Sequence[dict]) -> list[str]:
    """A line for each seed and group size whose trainings were not given the same prompts."""
    seen: dict[tuple[int, int], set[str]] = {}
    for result in results:
        seen.setdefault((result["seed"], result["group"]), set()).add(result["prompts"])
    return [
        f"Seed {seed}, G = {group}: NOT the same prompts." for (seed, group), found in seen.items() if len(found) > 1
    ]


# The picture


def picture(path: Path, results: Sequence[dict], title: str) -> None:
    groups = sorted({result["group"] for result in results})
    seeds = len({result["seed"] for result in results})
    panels = [panel(results, group, curve) for curve in (reward_curve, heldout_curve) for group in groups]
    draw(
        path, title, panels, f"Seeds: {seeds}, of which the means; shaded: 95 % t-interval, where there are two or more"
    )


def panel(results: Sequence[dict], group: int, curve) -> Panel:
    series = []
    for name, colour in COLOURS.items():
        curves = [curve(r) for r in results if (r["group"], r["estimator"]) == (group, name)]
        if curves:
            series.append(Series(name, colour, curves[0][0], np.array([values for _, values in curves])))
    what = "mean reward in training" if curve is reward_curve else "held-out success"
    return Panel(f"G = {group}: {what}", "training step", what, series)


def reward_curve(result: dict) -> tuple[list[float], np.ndarray]:
    rewards = np.array(result["rewards"])
    points = max(len(rewards) // WINDOW, 1)
    parts = np.array_split(rewards, points)
    steps = np.array_split(np.arange(1, len(rewards) + 1), points)
    return [float(each.mean()) for each in steps], np.array([each.mean() for each in parts])


def heldout_curve(result: dict) -> tuple[list[float], np.ndarray]:
    steps, values = zip(*result["heldout"], strict=True)
    return list(steps), np.array(values)
