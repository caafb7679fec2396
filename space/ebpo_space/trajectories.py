"""One metric against another, and what the prior did for each cluster: how quantities move together in training."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from openrlhf_ebpo.run.catalogue import Metric

from .binning import means, places, stretches
from .distributions import Grouped, Seen, largest, prior_means
from .figures import COLOURS, HEIGHT, colour, number, packed, plotly_text
from .lines import Line, line_panel
from .metrics import Metrics, outside, smooth
from .text import middle_cut, plain

POINTS = 120  # of a trajectory
LINES = COLOURS  # clusters with a line of their own
HOW = "Faint is early in training, full colour is late; the large point is the last stretch."


def together(metrics: Metrics, first: str, second: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Steps at which both were logged, and the values of both."""
    if first not in metrics.columns or second not in metrics.columns:
        return metrics.steps[:0], np.zeros(0), np.zeros(0)
    one, other = metrics.columns[first], metrics.columns[second]
    known = np.isfinite(one) & np.isfinite(other)
    return metrics.steps[known], one[known], other[known]


def thinned(steps: np.ndarray, *values: np.ndarray) -> list[np.ndarray]:
    """Means over at most POINTS stretches of as many values each; steps as the last of each stretch."""
    count = len(steps)
    ends = np.unique(np.linspace(0, count, min(POINTS, count) + 1).astype(int))[1:]
    starts = np.concatenate([[0], ends[:-1]]).astype(int) if count else ends
    return [steps[ends - 1], *(np.add.reduceat(each, starts) / (ends - starts) if count else each for each in values)]


def pair_panel(runs: Sequence[tuple[str, int, Metrics]], across: Metric, up: Metric, share: float = 0) -> dict | None:
    """Two metrics against each other, a trajectory a run. runs: (key, number, metrics). The trajectory is one of moving
    means over `share` of the run; what is said of the run is told by its steps."""
    traces, values = [], []
    for key, shade, metrics in runs:
        steps, x, y = together(metrics, across.name, up.name)
        if not len(steps):
            continue
        kept = ~(outside(x) | outside(y))
        drawn = thinned(steps[kept], smooth(x[kept], share), smooth(y[kept], share))
        traces += trajectory(key, shade, *drawn, len(values))
        values.append({"name": plain(key), "color": colour(shade), "text": _link(across.name, up.name, x, y)})
    if not traces:
        return None
    title = plain(middle_cut(f"{up.title} against {_within(across.title)}", 120))
    return {
        **{"id": "pair", "title": title, "note": HOW, "worry": "", "values": values},
        **{"wide": True, "points": [named(across), named(up)]},
        "summary": f"{title}. Rank correlation over the run: " + "; ".join(f"{v['name']} {v['text']}" for v in values),
        "figure": {"data": traces, "layout": _axes(named(across), named(up), 380)},
    }


def _within(title: str) -> str:
    """A title within a sentence: Mean reward is mean reward, and KL to the reference stays."""
    return title[:1].lower() + title[1:] if title[1:2].islower() else title


def named(metric: Metric) -> str:
    return plain(middle_cut(metric.with_unit(metric.title), 80))


def _link(first: str, second: str, x: np.ndarray, y: np.ndarray) -> str:
    return f"ρ = {rank_correlation(x, y):.2f}" if len(x) > 2 and first != second else "–"


def rank_correlation(x: np.ndarray, y: np.ndarray) -> float:
    """Spearman's ρ, ties averaged; NaN where one of the two never changes."""
    ranks = [_ranks(each) for each in (x, y)]
    spread = [each - each.mean() for each in ranks]
    scale = float(np.sqrt((spread[0] ** 2).sum() * (spread[1] ** 2).sum()))
    return float((spread[0] * spread[1]).sum() / scale) if scale else float("nan")


def _ranks(values: np.ndarray) -> np.ndarray:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[inverse]


def trajectory(name: str, shade: int, steps: np.ndarray, x: np.ndarray, y: np.ndarray, place: int) -> list[dict]:
    """A thin line through points that go from light to dark; each point knows its step."""
    tint, late = f"@{colour(shade)}-soft", f"@{colour(shade)}"
    progress = (steps - steps[0]) / max(steps[-1] - steps[0], 1)
    sizes = [7] * (len(steps) - 1) + [13]
    return [
        {
            **{"type": "scatter", "mode": "lines", "x": packed(x), "y": packed(y), "hoverinfo": "skip"},
            **{"line": {"color": tint, "width": 1}, "showlegend": False, "name": plotly_text(name)},
        },
        {
            **{"type": "scatter", "mode": "markers", "x": packed(x), "y": packed(y), "hoverinfo": "none"},
            **{"name": plotly_text(name), "meta": place, "customdata": steps.tolist()},
            "marker": {
                **{"size": sizes, "color": packed(progress), "cmin": 0, "cmax": 1, "showscale": False},
                **{"colorscale": [[0, tint], [1, late]], "line": {"color": late, "width": 0.8}},
            },
        },
    ]


def _axes(across: str, up: str, height: int) -> dict:
    return {
        **{"hovermode": "closest", "height": height, "uirevision": f"{across}{up}"},
        "xaxis": {"title": {"text": plotly_text(across, 80)}, "tickformat": ",.4~g"},
        "yaxis": {"title": {"text": plotly_text(up, 80)}, "tickformat": ",.4~g"},
    }


# the prior of each cluster


def cluster_panels(seen: Seen, key: str, shade: int, axis: Callable, unit: str) -> list[dict]:
    """Prior mean, shrinkage and success of each cluster over training, and success against shrinkage."""
    if not np.isfinite(seen.groups.shrinkage).any():
        return []
    parts = [(name, seen.only(name).groups) for _, name in largest(seen, LINES)] or [("all prompts", seen.groups)]
    at = stretches(seen.groups.step, POINTS)
    lines = {name: [] for name, *_ in _OVER}
    for place, (name, groups) in enumerate(parts):
        for what, values in cluster_series(groups, at).items():
            known = np.isfinite(values)
            middles = (at[1:] + at[:-1])[known] / 2
            lines[what].append(Line(name, place if len(parts) > 1 else shade, axis(middles), values[known]))
    drawn = [
        line_panel(f"cluster-{what}-{key}", title, lines[what], unit=unit, share=0, log=False, note=note)
        for what, title, note in _OVER
    ]
    return [*drawn, against_panel(parts, at, key, shade)]


_OVER = (
    ("prior", "Prior mean by cluster", "told by the baselines: V = (1 − S)·group mean + S·prior mean"),
    ("shrinkage", "Shrinkage S by cluster", "mean of the groups"),
    ("success", "Group success by cluster", "mean of the groups"),
)


def cluster_series(groups: Grouped, at: np.ndarray) -> dict[str, np.ndarray]:
    place, count = places(groups.step, at), len(at) - 1
    return {
        "prior": prior_means(groups, place, count),
        "shrinkage": means(place, groups.shrinkage, count),
        "success": means(place, groups.success, count),
    }


def against_panel(parts: Sequence[tuple[str, Grouped]], at: np.ndarray, key: str, shade: int) -> dict:
    """Success across, shrinkage up."""
    traces, values = [], []
    lasts = np.ceil(at[1:]).astype(int) - 1
    for name, groups in parts:
        found = cluster_series(groups, at)
        known = np.isfinite(found["success"]) & np.isfinite(found["shrinkage"])
        if known.any():
            at_colour = len(values) if len(parts) > 1 else shade
            x, y = found["success"][known], found["shrinkage"][known]
            traces += trajectory(name, at_colour, lasts[known], x, y, len(values))
            values.append({"name": name, "color": colour(at_colour), "text": number(float(y[-1]))})
    return {
        **{"id": f"against-{key}", "title": "Shrinkage against group success", "note": HOW, "worry": ""},
        **{"values": values, "points": ["Group success", "Shrinkage S"]},
        "summary": "Shrinkage against group success, a trajectory a cluster",
        "figure": {"data": traces, "layout": _axes("Group success", "Shrinkage S", HEIGHT)},
    }
