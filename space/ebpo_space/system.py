"""Where the time of a run goes: seconds a phase, tokens a second, memory. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np

from openrlhf_ebpo.run.catalogue import find

from .figures import HEIGHT, number, packed, plotly_text
from .lines import Line, line_panel
from .metrics import Metrics, outside
from .text import middle_cut, plain

PHASES = ("generation", "make_experience", "ppo_train", "broadcast")  # in the order of a step; others follow
NO_PHASES = ("step_total",)  # sums
STRETCHES = 160
MOST = 8  # phases with an area of their own
_MEMORY = re.compile(r"(?:^|[/_.])(?:gpu_|cuda_|peak_|host_)?(?:memory|mem|vram|rss)(?:$|[/_.])", re.I)


def phases(metrics: Metrics) -> dict[str, np.ndarray]:
    """Seconds of each phase at each step; NaN where it was not logged."""
    found = {
        name.removeprefix("timing/"): np.maximum(values, 0)
        for name, values in metrics.columns.items()
        if name.startswith("timing/") and np.isfinite(values).any()
    }
    order = [*(name for name in PHASES if name in found), *sorted(set(found) - {*PHASES, *NO_PHASES})]
    return {name: found[name] for name in order[:MOST]}


def clock(metrics: Metrics) -> np.ndarray:
    """Seconds from the step before to this one, by the clock; NaN where a step or its time is missing."""
    time = metrics.columns.get("time")
    if time is None:
        return np.full(len(metrics.steps), np.nan)
    between = np.diff(time, prepend=np.nan)
    following = np.diff(metrics.steps, prepend=-1) == 1
    return np.where(following & (between > 0), between, np.nan)


def generated(metrics: Metrics) -> np.ndarray:
    """Tokens of all responses of each step."""
    length = metrics.columns.get("rollout/response_length_mean", metrics.columns.get("response_length"))
    count = metrics.columns.get("rollout/num_samples")
    return np.full(len(metrics.steps), np.nan) if length is None or count is None else length * count


def rate(tokens: np.ndarray, seconds: np.ndarray | None) -> np.ndarray:
    if seconds is None:
        return np.full(len(tokens), np.nan)
    return np.where(seconds > 0, tokens / np.where(seconds > 0, seconds, 1), np.nan)


def series(metrics: Metrics) -> dict[str, np.ndarray]:
    """What is drawn over all runs, by the panels' names."""
    tokens = generated(metrics)
    return {
        "tokens": rate(tokens, clock(metrics)),
        "generation": rate(tokens, metrics.columns.get("timing/generation")),
        "clock": clock(metrics),
    }


OVER = (
    ("clock", "Seconds a step", "from one step to the next by the clock, with saving and evaluating"),
    ("tokens", "Tokens a second", "of responses, by the clock: what counts for a budget"),
    ("generation", "Tokens a second in generation", "of responses, by vLLM’s share of the step"),
)


def sections(
    runs: Sequence[tuple[str, int, Metrics]], axis: Callable, unit: str, share: float, log: bool
) -> list[dict]:
    """Rates of all runs, then the phases of each, then whatever they say of memory. runs: (key, number, metrics);
    axis: (metrics, steps) -> places on the x axis."""
    found = [(key, shade, metrics, series(metrics)) for key, shade, metrics in runs]
    rates = []
    for name, title, note in OVER:
        lines = [_line(key, shade, metrics, known[name], axis) for key, shade, metrics, known in found]
        if lines := [line for line in lines if len(line.x)]:
            rates.append(line_panel(f"system-{name}", title, lines, unit=unit, share=share, log=log, note=note))
    stacks = [panel for key, shade, metrics in runs if (panel := stack_panel(key, metrics, axis, unit))]
    memory = memory_panels(runs, axis, unit, share, log)
    said = "" if memory else "These runs log no memory: a metric with “memory” in its name would stand here."
    return [
        {"title": "Speed", "note": said, "panels": rates},
        {"title": "Seconds a phase", "note": "Stacked: the upper edge is the step’s sum.", "panels": stacks},
        {"title": "Memory", "note": "", "panels": memory},
    ]


def _line(key: str, shade: int, metrics: Metrics, values: np.ndarray, axis: Callable) -> Line:
    known = np.isfinite(values)
    return Line(key, shade, axis(metrics, metrics.steps[known]), values[known])


def memory_panels(
    runs: Sequence[tuple[str, int, Metrics]], axis: Callable, unit: str, share: float, log: bool
) -> list[dict]:
    names = sorted({name for _, _, metrics in runs for name in metrics.columns if _MEMORY.search(name)})[:12]
    panels = []
    for name in names:
        lines = [_line(key, shade, m, m.columns[name], axis) for key, shade, m in runs if name in m.columns]
        if lines := [line for line in lines if len(line.x)]:
            title = plain(middle_cut(name, 120))
            panels.append(line_panel(name, title, lines, unit=unit, share=share, log=log))
    return panels


def stack_panel(key: str, metrics: Metrics, axis: Callable, unit: str) -> dict | None:
    """The phases of one run on top of each other."""
    found = phases(metrics)
    if not found:
        return None
    stacked = np.nan_to_num(np.stack(list(found.values())))
    kept = ~outside(stacked.sum(0))  # one step that waited for an hour would flatten all others
    edges = np.unique(np.linspace(0, int(kept.sum()), min(STRETCHES, int(kept.sum())) + 1).astype(int))[:-1]
    sizes = np.diff(np.append(edges, int(kept.sum())))
    heights = np.add.reduceat(stacked[:, kept], edges, axis=1) / sizes
    middles = np.add.reduceat(metrics.steps[kept].astype(float), edges) / sizes
    x, whole = axis(metrics, middles), max(float(heights.mean(1).sum()), 1e-12)
    values = [
        {
            "name": phase_title(name),
            "color": f"phase-{place}",
            "text": f"{number(height)} s, {100 * height / whole:.0f} %",
        }
        for place, (name, height) in enumerate(zip(found, heights.mean(1).tolist(), strict=True))
    ]
    left_out = f" {int((~kept).sum())} far longer steps are left out." if not kept.all() else ""
    return {
        **{
            "id": f"phases-{key}",
            "title": plain(middle_cut(key, 80)),
            "note": f"mean of the run{left_out}",
            "worry": "",
        },
        **{"values": values, "linked": True, "readout": True},
        "summary": f"Seconds a phase of {key}: " + "; ".join(f"{v['name']} {v['text']}" for v in values),
        "figure": {
            "data": [
                _area(name, place, x, height) for place, (name, height) in enumerate(zip(found, heights, strict=True))
            ],
            "layout": {
                "height": HEIGHT,
                "uirevision": unit,
                "xaxis": {"title": {"text": unit}, "exponentformat": "none" if unit == "hours" else "SI"},
                "yaxis": {"rangemode": "tozero", "ticksuffix": " s"},
            },
        },
    }


def _area(name: str, place: int, x: np.ndarray, heights: np.ndarray) -> dict:
    return {
        **{"type": "scatter", "mode": "lines", "x": packed(x), "y": packed(heights), "stackgroup": "phases"},
        **{"line": {"width": 0}, "fillcolor": f"@phase-{place}", "name": plotly_text(phase_title(name))},
        **{"hovertemplate": "%{y:.3~g} s", "meta": place},
    }


def phase_title(name: str) -> str:
    known = find(f"timing/{name}")
    return known.title if known and known.name == f"timing/{name}" else plain(middle_cut(name, 40))
