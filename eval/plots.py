"""The validation curve of a report: a panel for each task and metric, a line for each model."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping

from .report_tables import Column, by_task, curve_names

History = Mapping[int, Column]  # by step
COLOURS = ("#1f4e8c", "#d9822b", "#3f8f7a", "#9a5b9e", "#b8442f")
BASELINE = "#8a9099"  # of the first of several models
PANEL = (3.2, 2.1)  # inches
PANELS_PER_ROW = 3


def validation(histories: Mapping[str, History]):
    """Draw pass@1, maj@k and pass@k over training steps, by model, as a matplotlib Figure; bands are 95 % over
    questions."""
    from matplotlib.figure import Figure

    points = [(label, step, column) for label, history in histories.items() for step, column in history.items()]
    panels = []
    for task, _, metrics in by_task([column for *_, column in points]):
        models = {label: {} for label in histories}
        for (label, step, _), each in zip(points, metrics, strict=True):
            models[label] |= {step: each} if each else {}
        panels += [(task, name, models) for name in curve_names([each for each in metrics if each])]
    width = min(len(panels), PANELS_PER_ROW)
    rows = math.ceil(len(panels) / width)
    figure = Figure(figsize=(PANEL[0] * width, PANEL[1] * rows + 0.5), layout="constrained")
    for number, (task, name, models) in enumerate(panels, 1):
        axes = figure.add_subplot(rows, width, number)
        _draw(axes, name, models)
        axes.set_title(f"{task}: {name}", loc="left", fontsize=9, parse_math=False)
    figure.supxlabel("training step", fontsize=9)
    if len(histories) > 1:
        handles, labels = figure.axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper left", ncols=len(labels), frameon=False, fontsize=9)
    return figure


def _draw(axes, name: str, models: Mapping[str, Mapping[int, dict]]) -> None:
    from matplotlib.ticker import MaxNLocator

    colours = COLOURS if len(models) == 1 else [BASELINE, *COLOURS]
    for (label, points), colour in zip(models.items(), itertools.cycle(colours)):
        steps, found = list(points), [metrics[name] for metrics in points.values()]
        low, high = ([100 * metric["interval"][end] for metric in found] for end in (0, 1))
        values = [100 * metric["value"] for metric in found]
        axes.fill_between(steps, low, high, color=colour, alpha=0.13, linewidth=0)
        axes.plot(steps, values, color=colour, linewidth=2, marker="o", markersize=3.2, label=label)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.grid(axis="y", alpha=0.3)
    axes.tick_params(labelsize=8, length=0)
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
