"""A picture of a run: the metrics that the catalogue shows there."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from openrlhf_ebpo.files import replacing
from openrlhf_ebpo.record.catalogue import REWARD, Metric, Shown, shown_in
from openrlhf_ebpo.record.run_log import read_metrics

PANELS = tuple(shown_in(Shown.PICTURE))


def plot_run(
    run_dir: str | Path,
    path: str | Path,
    title: str = "",
    panels: Sequence[Metric] = PANELS,
    last_step: float = float("inf"),
) -> None:
    """Write a PNG: each metric that the run has, raw and smoothed over training steps, up to `last_step`."""
    from matplotlib.figure import Figure

    rows = [row for row in read_metrics(run_dir) if REWARD in row and row["step"] <= last_step]
    panels = [panel for panel in panels if any(row.get(panel.name) is not None for row in rows)] or panels
    figure = Figure(figsize=(3 * len(panels), 3.2), layout="constrained")
    for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        points = [(row["step"], row[panel.name]) for row in rows if row.get(panel.name) is not None]
        if points:
            steps, values = map(np.asarray, zip(*points, strict=True))
            axes.plot(steps, values, color="#9bb7d4", linewidth=0.8)
            axes.plot(steps, smooth(values), color="#1f4e8c", linewidth=2)
        axes.set_title(panel.with_unit(panel.title), fontsize=10)
        axes.set_xlabel("step", fontsize=9)
        axes.tick_params(labelsize=8)
        axes.grid(alpha=0.25)
    if title:
        figure.suptitle(title, fontsize=11)
    with replacing(path) as temporary:
        figure.savefig(temporary, dpi=110, format="png")


def smooth(values: np.ndarray) -> np.ndarray:
    """Centred moving mean over a tenth of the run; shorter windows at the ends."""
    half = max(len(values) // 20, 1)
    sums = np.concatenate([[0.0], np.cumsum(values)])
    low = np.maximum(np.arange(len(values)) - half, 0)
    high = np.minimum(np.arange(len(values)) + half + 1, len(values))
    return (sums[high] - sums[low]) / (high - low)
