"""Draw the metrics of runs that the catalogue shows in a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from openrlhf_ebpo.files import replace_file
from openrlhf_ebpo.run.catalogue import REWARD, Metric, Shown, metrics_for
from openrlhf_ebpo.run.run_log import read_metrics

WIDTH, HEIGHT = 3.0, 3.2  # inches, of a panel
PANELS = tuple(metrics_for(Shown.PICTURE))
COLOURS = ("#1f4e8c", "#c4561a", "#2e7d4f", "#7b3f98", "#8a6d00", "#b0305c")  # distinct for the colour-blind, too


def plot_runs(
    runs: Mapping[str, str | Path],
    path: str | Path,
    title: str = "",
    panels: Sequence[Metric] = PANELS,
    last_step: float = float("inf"),
) -> None:
    """Write a PNG: each metric that a run has, raw and smoothed over training steps, up to `last_step`.

    Args:
        runs: run directories by the names that the legend gives them; one run has no legend.
    """
    from matplotlib.figure import Figure

    rows = {
        name: [row for row in read_metrics(run_dir) if REWARD in row and row["step"] <= last_step]
        for name, run_dir in runs.items()
    }
    panels = [panel for panel in panels if any(points(steps, panel) for steps in rows.values())] or panels
    figure = Figure(figsize=(WIDTH * len(panels), HEIGHT), layout="constrained")
    for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        for number, (name, steps) in enumerate(rows.items()):
            if found := points(steps, panel):
                colour, (xs, values) = COLOURS[number % len(COLOURS)], map(np.asarray, zip(*found, strict=True))
                axes.plot(xs, values, color=colour, alpha=0.35, linewidth=0.8)
                axes.plot(xs, smooth(values, 0.1, least=1), color=colour, linewidth=2, label=name)
        axes.set_title(f"{panel.title} ({panel.unit})" if panel.unit else panel.title, fontsize=10)
        axes.set_xlabel("step", fontsize=9)
        axes.tick_params(labelsize=8)
        axes.grid(alpha=0.25)
    if len(runs) > 1:
        figure.axes[0].legend(fontsize=9, frameon=False)
    if title:
        figure.suptitle(title, fontsize=11)
    with replace_file(path) as temporary:
        figure.savefig(temporary, dpi=110, format="png")


def points(rows: Sequence[dict], metric: Metric) -> list[tuple[int, float]]:
    return [(row["step"], row[metric.name]) for row in rows if row.get(metric.name) is not None]


def smooth(values: np.ndarray, share: float, least: int = 0) -> np.ndarray:
    """Compute the centred moving mean over `share` of the run, not less than `least` steps on either side; shorter
    windows at the ends."""
    half = max(int(len(values) * share / 2), least)
    if half < 1:
        return values
    # in extended precision: one value of 1e15 (a gradient norm can) leaves the others as they are
    sums = np.concatenate([[0.0], np.cumsum(values, dtype=np.longdouble)])
    low = np.maximum(np.arange(len(values)) - half, 0)
    high = np.minimum(np.arange(len(values)) + half + 1, len(values))
    return ((sums[high] - sums[low]) / (high - low)).astype(float)
