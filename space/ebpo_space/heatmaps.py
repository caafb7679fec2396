"""Distributions over training as heat maps: a column a stretch of steps, a row a level, a section a run."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from openrlhf_ebpo.estimator.registry import title as estimator_title

from .binning import levels, means, places, shares, stretches
from .figures import HEIGHT, colour, number, packed
from .groups import Groups, Responses
from .text import middle_cut, plain

COLUMNS, ROWS = 120, 32
NOTHING = 1e-6  # an advantage below it is none: the rounding of means can leave some
GRPO = estimator_title("group_norm")
HOW = "A column is a stretch of steps; darker = more of its responses. The line is their mean."


@dataclass(frozen=True)
class Quantity:
    """values: of groups and responses; `of` names which of them are counted; same_levels: drawn on the y axis of this other one."""

    name: str
    title: str
    tells: str
    of: str
    values: Callable
    same_levels: str = ""


QUANTITIES = (
    Quantity("reward", "Reward", "of each response", "responses", lambda groups, each: each.reward),
    Quantity("success", "Group success", "share of a group’s responses", "groups", lambda groups, each: groups.success),
    Quantity("length", "Response length", "tokens", "responses", lambda groups, each: each.length),
    Quantity("advantage", "Advantage", "as trained", "responses", lambda groups, each: each.advantage, "grpo"),
    Quantity(
        *("grpo", "Advantage under GRPO", "for the same rewards; 0 where all of a group are equal", "responses"),
        *(lambda groups, each: each.grpo_advantage, "advantage"),
    ),
)


def panels(
    groups: Groups,
    responses: Responses,
    run: tuple[str, int],
    ran: str,
    axis: Callable,
    unit: str,
    cluster: str = "",
) -> list[dict]:
    """The heat maps of one run.

    Args:
        groups, responses: as `Index.read_all` gives them.
        run: its name and number.
        ran: name of the estimator that trained.
        axis: steps -> where they stand on the x axis, which has this unit.
        cluster: only its groups are counted; "" for all.
    """
    found = binned(groups, responses, cluster)
    if estimator_title(ran) == GRPO and "advantage" in found:
        found = {name: each for name, each in found.items() if name != "grpo"}  # what ran
    return [
        _panel(quantity, found[quantity.name], *run, ran, axis, unit)
        for quantity in QUANTITIES
        if quantity.name in found
    ]


@dataclass(frozen=True)
class Binned:
    at: np.ndarray  # edges of the stretches, in steps
    edges: np.ndarray  # of the levels
    shares: np.ndarray  # (levels, stretches)
    mean: np.ndarray
    discrete: bool
    zero: float  # share of all values that are next to nothing


MAX_CLUSTERS = 8  # of a run whose maps are kept
_MADE: weakref.WeakKeyDictionary[Responses, dict[str, dict[str, Binned]]] = (
    weakref.WeakKeyDictionary()
)  # an index gives the same until there is more


def binned(groups: Groups, responses: Responses, cluster: str = "") -> dict[str, Binned]:
    """Bin every quantity that was recorded."""
    made = _MADE.setdefault(responses, {})
    found = made.get(cluster)
    if found is None:
        if len(made) >= MAX_CLUSTERS:
            made.clear()
        found = made[cluster] = _binned(groups, responses, cluster)
    return found


def _binned(groups: Groups, responses: Responses, cluster: str) -> dict[str, Binned]:
    chosen = groups.cluster == cluster if cluster else np.ones(len(groups), bool)
    kept = np.zeros(len(groups), bool)  # those with responses here: of a long run the latest
    kept[responses.group] = True
    shown = {"groups": chosen & kept, "responses": chosen[responses.group]}
    steps = {"groups": groups.step[shown["groups"]], "responses": groups.step[responses.group[shown["responses"]]]}
    values = {each.name: each.values(groups, responses)[shown[each.of]] for each in QUANTITIES}
    at = stretches(steps["responses"], COLUMNS)
    found = {}
    for quantity in QUANTITIES:
        these = values[quantity.name]
        both = [these, *([values[quantity.same_levels]] if quantity.same_levels else [])]
        if not len(at) or not np.isfinite(these).any():
            continue
        edges = levels(both, ROWS)
        place, count = places(steps[quantity.of], at), len(at) - 1
        shared, mean = shares(place, these, count, edges), means(place, these, count)
        zero = float((np.abs(these[np.isfinite(these)]) < NOTHING).mean())
        found[quantity.name] = Binned(at, edges, shared, mean, len(edges) != ROWS + 1, zero)
    return found


def _panel(quantity: Quantity, found: Binned, key: str, shade: int, ran: str, axis: Callable, unit: str) -> dict:
    title = quantity.title
    if quantity.name == "advantage":
        title = plain(middle_cut(f"{title} under {estimator_title(ran)}", 60))
    name, text = _said(quantity, found)
    return {
        **{"id": f"heat-{quantity.name}-{key}", "title": title, "note": quantity.tells, "worry": "", "linked": True},
        "values": [{"name": name, "color": colour(shade), "text": text}],
        "summary": f"{title} of the {quantity.of} over {unit}; {name}: {text.replace('→', 'to')}",
        "figure": {
            "data": [
                _map(found, f"@{colour(shade)}", axis, unit),
                *([] if quantity.same_levels else [_mean(found, axis)]),
            ],
            "layout": {
                **{"height": HEIGHT, "uirevision": unit, "hovermode": "closest", "plot_bgcolor": "@sunk"},
                "xaxis": {
                    **{"title": {"text": unit}, "showgrid": False},
                    "exponentformat": "none" if unit == "hours" else "SI",
                },
                "yaxis": {"tickformat": ",.4~g", "showgrid": False, **_ticks(found)},
            },
        },
    }


def _said(quantity: Quantity, found: Binned) -> tuple[str, str]:
    """Advantages are centred, so their mean tells nothing: how many are zero does."""
    if quantity.same_levels:
        return "no advantage", f"{100 * found.zero:.0f} % of responses"
    known = found.mean[np.isfinite(found.mean)]
    return "mean, first to last", f"{number(float(known[0]))} → {number(float(known[-1]))}"


def _map(found: Binned, shade: str, axis: Callable, unit: str) -> dict:
    return {
        **{"type": "heatmap", "x": packed(axis(found.at)), "y": packed(found.edges)},
        # the root shows what is rare
        **{"z": packed(np.sqrt(found.shares)), "zmin": 0, "zmax": 1, "showscale": False},
        "customdata": packed(100 * found.shares),
        "hovertemplate": f"{unit} %{{x:.4~g}}, around %{{y:.3~g}}: %{{customdata:.2~g}} %<extra></extra>",
        "colorscale": [[0, "@card"], [1, shade]],
    }


def _mean(found: Binned, axis: Callable) -> dict:
    middles = (found.at[1:] + found.at[:-1]) / 2
    return {
        **{"type": "scatter", "mode": "lines", "x": packed(axis(middles)), "y": packed(found.mean), "name": "mean"},
        **{"line": {"color": "@ink", "width": 1.5}, "hoverinfo": "skip", "showlegend": False},
    }


def _ticks(found: Binned) -> dict:
    middles = (found.edges[1:] + found.edges[:-1]) / 2
    return {"tickvals": [round(float(v), 6) for v in middles]} if found.discrete and len(middles) <= 6 else {}


def partly(groups: Groups, responses: Responses) -> str:
    """Say what is left out."""
    if not len(responses) or len(responses) == groups.valid.sum():
        return ""
    first = int(groups.step[responses.group[0]])
    return f"From step {first:,} on: of earlier ones the run has too many responses."
