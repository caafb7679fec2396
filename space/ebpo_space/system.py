"""Speed of a run: seconds a step and tokens a second. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from .lines import Line, line_panel
from .metrics import Metrics

PANELS = (
    ("clock", "Seconds a step", "from one step to the next by the clock, with saving and evaluating"),
    ("tokens", "Tokens a second", "of responses, by the clock: what counts for a budget"),
    ("generation", "Tokens a second in generation", "of responses, by vLLM’s share of the step"),
)


def clock(metrics: Metrics) -> np.ndarray:
    """Seconds from the step before to this one, by the clock; NaN where a step or its time is missing."""
    time = metrics.columns.get("time")
    if time is None:
        return np.full(len(metrics.steps), np.nan)
    between = np.diff(time, prepend=np.nan)
    following = np.diff(metrics.steps, prepend=-1) == 1
    return np.where(following & (between > 0), between, np.nan)


def series(metrics: Metrics) -> dict[str, np.ndarray]:
    """A value for each step, by the panels' names; NaN where unknown."""
    unknown = np.full(len(metrics.steps), np.nan)
    length = metrics.columns.get("rollout/response_length_mean", metrics.columns.get("response_length", unknown))
    tokens, seconds = length * metrics.columns.get("rollout/num_samples", unknown), clock(metrics)
    generation = metrics.columns.get("timing/generation", unknown)
    return {
        "clock": seconds,
        "tokens": tokens / np.where(seconds > 0, seconds, np.nan),
        "generation": tokens / np.where(generation > 0, generation, np.nan),
    }


def section(runs: Sequence[tuple[str, int, Metrics]], axis: Callable, unit: str, share: float, log: bool) -> dict:
    """Panels over all runs. runs: (key, number, metrics); axis: (metrics, steps) -> places on the x axis."""
    found = [(key, shade, metrics, series(metrics)) for key, shade, metrics in runs]
    panels = []
    for name, title, note in PANELS:
        lines = [_line(key, shade, metrics, known[name], axis) for key, shade, metrics, known in found]
        if lines := [line for line in lines if len(line.x)]:
            panels.append(line_panel(f"system-{name}", title, lines, unit=unit, share=share, log=log, note=note))
    return {"title": "Speed", "note": "", "panels": panels}


def _line(key: str, shade: int, metrics: Metrics, values: np.ndarray, axis: Callable) -> Line:
    known = np.isfinite(values)
    return Line(key, shade, axis(metrics, metrics.steps[known]), values[known])
