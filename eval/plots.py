"""Pictures of evaluations: curves in small multiples, and histograms of the questions' pass rates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from openrlhf_ebpo.files import replacing
from openrlhf_ebpo.run.score_text import percent, whole_percent

ACCENT, INK, QUIET, GRID = "#1f4e8c", "#2b2f36", "#8a9099", "#e6e8eb"
COLOURS = (ACCENT, "#d9822b", "#3f8f7a", "#9a5b9e", "#b8442f")  # of the models that are compared with the first
METRIC_COLOURS = (ACCENT, "#d9822b", "#8a9099")  # pass@1, maj@k, pass@k
COLUMNS = 3
WIDTH = 9.6  # inches: text of 9 points stays readable at a README's width


@dataclass(frozen=True)
class Line:
    """One curve, in fractions: x, value and the interval's two ends have one length; `interval` is (2, len(x))."""

    label: str
    colour: str
    x: Sequence[float]
    value: Sequence[float]
    interval: Sequence[Sequence[float]]


def model_colours(count: int) -> list[str]:
    """One model: the accent colour. Several: the first, the baseline of the comparison, is grey."""
    others = [COLOURS[i % len(COLOURS)] for i in range(max(count - 1, 1))]
    return others if count == 1 else [QUIET, *others]


def curves(path: str | Path, panels: Mapping[str, Sequence[Line]], title: str, x_label: str, powers: bool) -> None:
    """Write a PNG with one panel per title; lines of one label have one colour in all of them.

    powers: x is 1, 2, 4, … on a logarithmic axis and all panels share one y axis from 0; otherwise each has its own.
    """
    names = {line.label: line.colour for lines in panels.values() for line in lines}
    figure, grid = _grid(len(panels), title, sharey=powers, key=len(names) > 1)
    top = max(max(line.interval[1]) for lines in panels.values() for line in lines)
    for axes, (name, lines) in zip(grid.flat, panels.items(), strict=False):
        for line in lines:
            _draw(axes, line)
        _dress(axes, name)
        _x_axis(axes, lines, powers)
        axes.set_ylim((0, min(max(top * 1.04 + 0.01, 0.05), 1.04)) if powers else _range(lines))
        _label_ends(axes, lines)
    figure.supxlabel(x_label, fontsize=9, color=INK)
    if len(names) > 1:
        _key(figure, list(names.items()))
    _save(figure, path)


def difficulty(path: str | Path, panels: Mapping[str, Mapping[str, np.ndarray]], colours: Mapping[str, str]) -> None:
    """Write a PNG of shares of questions by pass rate: panels[task][model] as pass_rate_shares gives them."""
    figure, grid = _grid(
        len(panels), "How hard the questions were: share of questions by pass rate", sharey=True, key=len(colours) > 1
    )
    for axes, (task, models) in zip(grid.flat, panels.items(), strict=False):
        for place, (model, shares) in enumerate(models.items()):
            _bars(axes, shares, colours[model], place, len(models))
        _dress(axes, task)
        last = len(next(iter(models.values()))) - 1
        axes.set_xticks([0, last / 2, last], ["never", "half the time", "always"])
    figure.supxlabel("a question was solved", fontsize=9, color=INK)
    if len(colours) > 1:
        _key(figure, list(colours.items()))
    _save(figure, path)


def pass_rate_shares(rates: np.ndarray) -> np.ndarray:
    """(10,) shares of questions: never solved, eight equal bins in between, always solved.

    A rate on the border of two bins counts half in each: otherwise bins would hold different numbers of the
    possible rates, and the histogram of a smooth distribution would be a comb.
    """
    inner = rates[(rates > 0) & (rates < 1)] * 8
    low = np.bincount(np.floor(inner - 1e-9).astype(int), minlength=8)
    high = np.bincount(np.minimum(np.floor(inner + 1e-9), 7).astype(int), minlength=8)
    return np.array([(rates == 0).sum(), *(low + high) / 2, (rates == 1).sum()]) / len(rates)


def _grid(panels: int, title: str, sharey: bool, key: bool):
    """A figure with at most COLUMNS panels per row, its title, and room for a legend, at the top left; and its axes."""
    from matplotlib.figure import Figure

    columns = min(panels, COLUMNS)
    rows = -(-panels // columns)
    figure = Figure(figsize=(WIDTH * max(columns, 2) / COLUMNS, 1.0 + 2.15 * rows), layout="constrained")
    height = figure.get_figheight()
    header = 0.55 if key else 0.4
    figure.get_layout_engine().set(w_pad=0.08, h_pad=0.06, rect=(0, 0, 1, 1 - header / height))
    figure.text(0.012, 1 - 0.13 / height, title, fontsize=11.5, weight="bold", color=INK, va="top")
    grid = figure.subplots(rows, columns, squeeze=False, sharey=sharey)
    for axes in grid.flat[panels:]:
        axes.set_visible(False)
    return figure, grid


def _dress(axes, title: str) -> None:
    """Title at the left, no frame, a light grid."""
    from matplotlib.ticker import MaxNLocator

    axes.set_title(title, loc="left", fontsize=9.5, color=INK, pad=6)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color("#c4c8cd")
    axes.tick_params(labelsize=8, colors="#5d646e", length=0)
    axes.grid(axis="y", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
    axes.yaxis.set_major_formatter(lambda value, _: f"{round(100 * value, 6):g} %")  # 2.5 % is neither 2 nor 3


def _draw(axes, line: Line) -> None:
    low, high = line.interval
    axes.fill_between(line.x, low, high, color=line.colour, alpha=0.13, linewidth=0)
    single = len(line.x) == 1
    marker = {"marker": "o", "markersize": 5 if single else 3.2}
    axes.plot(line.x, line.value, color=line.colour, linewidth=2, solid_capstyle="round", **marker)


def _x_axis(axes, lines: Sequence[Line], powers: bool) -> None:
    ticks = sorted({x for line in lines for x in line.x})
    if powers:
        axes.set_xscale("log", base=2)
        axes.set_xticks(ticks, [str(k) for k in ticks])
        axes.minorticks_off()
        axes.set_xlim(ticks[0] / 1.15, ticks[-1] * 1.15)
    else:
        width = max(ticks[-1] - ticks[0], 1)
        axes.set_xlim(ticks[0] - 0.03 * width, ticks[-1] + 0.03 * width)


def _range(lines: Sequence[Line]) -> tuple[float, float]:
    low = min(min(line.interval[0]) for line in lines)
    high = max(max(line.interval[1]) for line in lines)
    margin = max(0.06 * (high - low), 0.01)
    return max(low - margin, 0), min(high + margin, 1 + margin)


def _label_ends(axes, lines: Sequence[Line]) -> None:
    """Each line's last value beside its end, moved apart where they would overlap."""
    low, high = axes.get_ylim()
    gap = 0.085 * (high - low)
    ends = sorted((line.value[-1], line.x[-1], line.colour) for line in lines)
    places: list[float] = []
    for value, _, _ in ends:
        places.append(max(value, places[-1] + gap) if places else value)
    excess = places[-1] - (high - gap / 3)
    places = [place - max(excess, 0) for place in places] if len(places) > 1 else places
    for (value, x, colour), place in zip(ends, places, strict=True):
        axes.annotate(
            percent(value),
            (x, place),
            (6, 0),
            textcoords="offset points",
            va="center",
            fontsize=8.5,
            weight="bold",
            color=colour,
            annotation_clip=False,
        )


def _bars(axes, shares: np.ndarray, colour: str, place: int, models: int) -> None:
    """The bars of one of several models; the ends in full colour, and labelled where there is room."""
    width = 0.84 / models
    x = np.arange(len(shares)) + (place - (models - 1) / 2) * width
    ends = np.array([True, *[False] * (len(shares) - 2), True])
    axes.bar(x[~ends], shares[~ends], width=width * 0.94, color=_lighter(colour))
    axes.bar(x[ends], shares[ends], width=width * 0.94, color=colour)
    if models == 1:
        for at, share in zip(x[ends], shares[ends], strict=True):
            style = {"ha": "center", "fontsize": 8.5, "weight": "bold", "color": colour}
            axes.annotate(whole_percent(share), (at, share), (0, 3), textcoords="offset points", **style)


def _lighter(colour: str) -> tuple[float, ...]:
    from matplotlib.colors import to_rgb

    return tuple(1 - 0.42 * (1 - part) for part in to_rgb(colour))


def _key(figure, names: Sequence[tuple[str, str]]) -> None:
    """The legend: the names in their colours, in one row under the title."""
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], color=colour, linewidth=4, solid_capstyle="round") for _, colour in names]
    legend = figure.legend(
        handles,
        [name for name, _ in names],
        loc="upper left",
        bbox_to_anchor=(0.004, 1 - 0.3 / figure.get_figheight()),
        ncols=len(names),
        frameon=False,
        fontsize=9,
        handlelength=0.9,
        handletextpad=0.5,
        columnspacing=1.6,
    )
    for text, (_, colour) in zip(legend.get_texts(), names, strict=True):
        text.set_color(colour)


def _save(figure, path: str | Path) -> None:
    with replacing(path) as temporary:
        figure.savefig(temporary, dpi=150, format="png")
