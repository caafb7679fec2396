"""Panels of series with a value for each seed, as a picture: readable at 700 pixels and without telling colours apart
by hue."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lab.statistics import Interval, interval
from openrlhf_ebpo.files import replace_file

COLOURS = {  # after Okabe and Ito, which the colour-blind tell apart; they differ in lightness too
    "GRPO": "#6b7178",
    "EBPO": "#0b5fa5",
    "second": "#2f9fd0",
    "third": "#c8571b",
    "fourth": "#1b7f5c",
    "quiet": "#b9bec5",
    "reported": "#c98a00",
}
INK, GRID = "#2b2f36", "#e6e8eb"
WIDTH, HEIGHT, COLUMNS, DPI = 3.5, 2.75, 2, 100  # inches of a panel


@dataclass(frozen=True)
class Series:
    """A line, or the bars of one kind.

    values: (seeds, len(x)); of numbers that the authors report (1, len(x)), without an interval.
    colour: a name of COLOURS, the same for an estimator in every figure.
    """

    label: str
    colour: str
    x: Sequence[float | str]
    values: np.ndarray
    reported: bool = False
    dashed: bool = False

    def intervals(self) -> list[Interval]:
        if len(self.values) < 2:
            return [Interval(float(value), 0.0, 0.0) for value in self.values[0]]
        return [interval(column) for column in self.values.T]


@dataclass(frozen=True)
class Panel:
    """bars: x holds names. level: a quiet horizontal line, such as no difference. powers: x is 2, 4, 8, …"""

    title: str
    x_label: str
    y_label: str
    series: Sequence[Series]
    bars: bool = False
    powers: bool = False
    level: float | None = None


def draw(path: str | Path, title: str, panels: Sequence[Panel], caption: str) -> None:
    """Write a PNG."""
    from matplotlib.figure import Figure

    columns = min(COLUMNS, len(panels))
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(WIDTH * columns, HEIGHT * rows + 0.7), layout="constrained")
    figure.get_layout_engine().set(w_pad=0.08, h_pad=0.08)
    figure.suptitle(title, x=0.01, ha="left", fontsize=11.5, weight="bold", color=INK)
    figure.supxlabel(caption, x=0.01, ha="left", fontsize=7.5, color="#5d646e")
    grid = figure.subplots(rows, columns, squeeze=False).flat
    keys: list[list[str]] = []
    for axes, panel in zip(grid, panels, strict=False):
        (bars if panel.bars else lines)(axes, panel)
        dress(axes, panel)
        key = [series.label for series in panel.series]
        if len(key) > 1 and key not in keys:  # a key that was seen is not repeated
            axes.legend(fontsize=7.5, frameon=False, handlelength=1.6)
            keys.append(key)
    for axes in list(figure.axes)[len(panels) :]:
        axes.set_visible(False)
    with replace_file(path) as temporary:
        figure.savefig(temporary, dpi=DPI, format="png", metadata={"Software": None})


def lines(axes, panel: Panel) -> None:
    for series in panel.series:
        mean, half = means_and_halves(series)
        colour = COLOURS[series.colour]
        style = {"color": colour, "linewidth": 1.8, "linestyle": "--" if series.dashed else "-"}
        style |= {"marker": "o", "markersize": 4} if panel.powers else {}
        style |= {"linestyle": ":", "markerfacecolor": "white", "markersize": 6} if series.reported else {}
        axes.plot(series.x, mean, label=series.label, **style)
        axes.fill_between(series.x, mean - half, mean + half, color=colour, alpha=0.18, linewidth=0)
    if panel.powers:
        axes.set_xscale("log", base=2)
        axes.set_xticks(panel.series[0].x, [str(x) for x in panel.series[0].x])
        axes.minorticks_off()


def bars(axes, panel: Panel) -> None:
    """Reported numbers are hatched, as in lines they are dotted."""
    width = 0.8 / len(panel.series)
    for number, series in enumerate(panel.series):
        mean, half = means_and_halves(series)
        at = np.arange(len(series.x)) + (number - (len(panel.series) - 1) / 2) * width
        colour = COLOURS[series.colour]
        look = {"color": "white", "edgecolor": colour, "hatch": "///"} if series.reported else {"color": colour}
        axes.bar(at, mean, width * 0.92, label=series.label, linewidth=1, **look)
        if half.any():
            axes.errorbar(at, mean, half, fmt="none", ecolor=INK, elinewidth=1, capsize=2)
    names = panel.series[0].x
    axes.set_xticks(range(len(names)), [wrap(name) for name in names])
    if len(panel.series) > 1:  # room for the key above the bars
        axes.set_ylim(top=1.35 * axes.get_ylim()[1])


def means_and_halves(series: Series) -> tuple[np.ndarray, np.ndarray]:
    found = series.intervals()
    return np.array([each.mean for each in found]), np.array([each.half for each in found])


def wrap(text: str) -> str:
    """In lines of about ten characters; a hard space is not broken, a hyphen is."""
    words, out = text.replace("-", "- ").split(" "), [""]
    for word in words:
        out = [*out[:-1], f"{out[-1]} {word}".strip()] if len(out[-1]) + len(word) < 11 else [*out, word]
    return "\n".join(out).strip()


def dress(axes, panel: Panel) -> None:
    axes.set_title(panel.title, loc="left", fontsize=9, color=INK)
    axes.set_xlabel(panel.x_label, fontsize=8, color=INK)
    axes.set_ylabel(panel.y_label, fontsize=8, color=INK)
    axes.tick_params(labelsize=7.5, colors="#5d646e", length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color("#c4c8cd")
    axes.grid(axis="y", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    if panel.level is not None:
        axes.axhline(panel.level, color="#8a9099", linewidth=1)
