"""Lines over training: a panel of one metric, runs overlaid. Pure."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from openrlhf_ebpo.run.catalogue import Metric
from openrlhf_ebpo.run.plot import smooth
from openrlhf_ebpo.run.score_text import percent

from .figures import COLOURS, HEIGHT, colour, number, pack, plotly_text
from .metrics import decimate, outside
from .text import distinct_names, middle_cut, plain

# of names above a panel: of many lines, two side by side (boards.js); of few, each in a row; above a wide panel
SHORT_CHARS, LONG_CHARS, WIDE_CHARS = 8, 24, 32
FEW_NAMES = 4
FEW_POINTS = 12  # of a line that is drawn with markers, and not smoothed
MAX_TITLE_CHARS = 120
RAW_POINTS, SMOOTH_POINTS = 400, 200  # of a line, on panels of some 300 pixels
_DASHES = ("solid", "dash", "dot", "dashdot")


@dataclass(frozen=True)
class Line:
    """One run in one panel, or seeds of one configuration. x and y of the same length, without gaps.

    low, high: intervals of single points; band: ends of what lies around a line that is a mean of smoothed ones
    already; dash: "" for one by its number."""

    name: str
    number: int
    x: np.ndarray
    y: np.ndarray
    low: np.ndarray | None = None
    high: np.ndarray | None = None
    band: tuple[np.ndarray, np.ndarray] | None = None
    dash: str = ""

    @property
    def is_final(self) -> bool:
        """Test if it is drawn as it is: each point has an interval of its own, or all are means already."""
        return self.low is not None or self.band is not None

    @functools.cached_property
    def inside(self) -> np.ndarray:
        """Return the values that the y axis covers."""
        return np.ones(len(self.y), bool) if self.is_final else ~outside(self.y)


SILENT = {"hoverinfo": "skip", "showlegend": False}


def _trace(x: np.ndarray, y: np.ndarray, **more) -> dict:
    return {"type": "scatter", "mode": "lines", "x": pack(x), "y": pack(y), **more}


def line_traces(lines: Sequence[Line], bolds: Sequence[tuple], zoom: tuple[float, float] | None = None) -> list[dict]:
    """Draw faint raw lines, and bold smoothed ones (`bold`) over all of them; few points as they are, with markers. The
    line that the pointer reads, the raw one if drawn, has its place among the panel's values as meta."""
    raw, traces = [], []
    faint = 0.28 if len(lines) <= 3 else 0.16
    for place, (line, (bold_x, bold_y)) in enumerate(zip(lines, bolds, strict=True)):
        shade, dash = f"@{colour(line.number)}", line.dash or _DASHES[line.number // COLOURS % len(_DASHES)]
        few = len(line.x) <= FEW_POINTS
        if line.band is not None:
            raw.append(band_trace(line, shade))
        is_smoothed = bold_y is not line.y and not few
        if is_smoothed:
            x, y = decimate(line.x, line.y, RAW_POINTS, zoom)
            raw.append(_trace(x, y, opacity=faint, line={"color": shade, "width": 1}, meta=place, **SILENT))
        # an error bar has its place in an array next to the points, so points with one are all kept
        x, y = decimate(bold_x, bold_y, SMOOTH_POINTS, zoom) if line.low is None else (bold_x, bold_y)
        style = {"line": {"color": shade, "width": 2, "dash": dash}, "marker": {"size": 6, "color": shade}}
        trace = _trace(x, y, name=plotly_text(line.name), hovertemplate="%{y:.4~g}", **style)
        if few:
            trace["mode"] = "lines+markers"
        if not is_smoothed:
            trace["meta"] = place
        if line.low is not None:
            ends = {"array": pack(line.high - line.y), "arrayminus": pack(line.y - line.low)}
            trace["error_y"] = {
                "type": "data",
                "symmetric": False,
                "color": shade,
                "thickness": 1.2,
                "width": 3,
                **ends,
            }
        traces.append(trace)
    return raw + traces


def band_trace(line: Line, shade: str) -> dict:
    """Draw the band around the mean of seeds, at some two hundred of its points."""
    chosen = np.unique(np.linspace(0, len(line.x) - 1, SMOOTH_POINTS).astype(int))
    x, (low, high) = line.x[chosen], (end[chosen] for end in line.band)
    around, ends = np.append(x, x[::-1]), np.append(high, low[::-1])
    return _trace(around, ends, fill="toself", fillcolor=f"{shade}-soft", line={"width": 0}, **SILENT)


def bold(line: Line, share: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the moving mean, over the steps that do not lie outside; of few points the points themselves."""
    inside = line.inside
    if len(line.x) <= FEW_POINTS or line.is_final:
        return line.x, line.y
    return (line.x, smooth(line.y, share)) if inside.all() else (line.x[inside], smooth(line.y[inside], share))


def usual_range(lines: Sequence[Line], unit: str) -> tuple[tuple[float, float] | None, str]:
    """Find ends of the y axis that leave out the few steps that would squeeze it, and describe what lies beyond them;
    None and "" without such steps."""
    points = [(float(line.x[i]), float(line.y[i])) for line in lines for i in np.flatnonzero(~line.inside)]
    if not points:
        return None, ""
    kept = np.concatenate([line.y[line.inside] for line in lines])
    low, high = float(kept.min()), float(kept.max())
    margin = 0.06 * (high - low)
    x, y = max(points, key=lambda point: abs(point[1]))
    more = f" and {len(points) - 1} more" if len(points) > 1 else ""
    said = f"axis cut: {number(y)} at {unit} {number(x)}{more}"
    return ((0.0 if low >= 0 and low - margin < 0 else low - margin), high + margin), said


@dataclass(frozen=True)
class Axes:
    """Settings of the axes of metric panels. unit: of the x axis; share: of the run, for the moving mean; log: unless a
    value is not positive; whole: no value is left out of the y axis."""

    unit: str
    share: float = 0.0
    log: bool = False
    zoom: tuple[float, float] | None = None
    whole: bool = False


def line_panel(metric: Metric, lines: Sequence[Line], axes: Axes) -> dict:
    """Draw one metric."""
    lines = [line for line in lines if len(line.x)]
    positive = bool(lines) and all((line.y > 0).all() for line in lines)
    log = axes.log and positive
    ends, cut = (None, "") if axes.whole or log else usual_range(lines, axes.unit)
    notes = [cut, metric.description, metric.unit]
    if axes.log and lines and not positive:
        notes.append(f"linear: has {'negatives' if min(line.y.min() for line in lines) < 0 else 'zeros'}")
    if log:
        # a band that reaches 0 ends at a tenth of the line's lowest value: Plotly drops such points, and cuts it up
        ends_at = lambda line: np.where(line.band[0] > 0, line.band[0], line.y.min() / 10)  # noqa: E731
        lines = [replace(line, band=(ends_at(line), line.band[1])) if line.band else line for line in lines]
    bolds = [bold(line, axes.share) for line in lines]
    limit = LONG_CHARS if len(lines) <= FEW_NAMES else SHORT_CHARS
    values = _legend(lines, [number(float(y[-1])) for _, y in bolds], limit)
    title = plain(middle_cut(metric.title, MAX_TITLE_CHARS))
    summary = "; ".join(f"{each['name']}: {each['text']} at the end" for each in values)
    unit = {"title": {"text": axes.unit}, "exponentformat": "none" if axes.unit == "hours" else "SI"}
    return {
        "id": metric.name,
        "title": title,
        "note": plain(" · ".join(filter(None, notes))),
        "warning": plain(metric.warning),
        "values": values,
        "linked": True,
        "readout": True,
        "summary": f"{title} over {axes.unit}. {summary}" if lines else f"{title}: no values yet",
        "figure": {
            "data": line_traces(lines, bolds, axes.zoom),
            "layout": {
                "height": HEIGHT,
                "uirevision": f"{axes.unit}{axes.log}",
                "xaxis": {**unit, **_whole_steps(lines, axes.unit)},
                "yaxis": {"tickformat": ",.6~g", **_scale(lines, log), **({"range": ends} if ends else {})},
            },
        },
    }


def _legend(lines: Sequence[Line], texts: Sequence[str], limit: int) -> list[dict]:
    """short: the name as far as it tells the lines apart."""
    names = [plain(line.name) for line in lines]
    return [
        {"name": name, "short": short, "color": colour(line.number), "text": text}
        for line, name, short, text in zip(lines, names, distinct_names(names, limit), texts, strict=True)
    ]


def _scale(lines: Sequence[Line], log: bool) -> dict:
    if log:
        low, high = min(line.y.min() for line in lines), max(line.y.max() for line in lines)
        return {"type": "log", **({"dtick": 1} if math.log10(high / low) > 1 else {})}
    from_zero = bool(lines) and all((line.y >= 0).all() for line in lines)
    return {"type": "linear", **({"rangemode": "nonnegative"} if from_zero else {})}


def _whole_steps(lines: Sequence[Line], unit: str) -> dict:
    """Put a tick at each step of a short run: step 0.5 does not exist."""
    ends = [float(v) for line in lines for v in (line.x.min(), line.x.max())]
    if unit not in ("step", "training step") or not ends or max(ends) - min(ends) > 6:
        return {}
    return {"dtick": 1, "range": [min(ends) - 0.5, max(ends) + 0.5]}


def checkpoint_panel(task: str, lines: Sequence[Line]) -> dict:
    """Draw a score over training steps with 95 % intervals, percent."""
    axis = {"title": {"text": "training step"}, **_whole_steps(lines, "training step")}
    return _scores(f"steps-{task}", task, lines, axis, -1, f"pass@1 of {task} by step")


def pass_panel(task: str, lines: Sequence[Line]) -> dict:
    """Draw pass@k over k, percent."""
    ticks = sorted({int(k) for line in lines for k in line.x})
    axis = {"type": "log", "tickvals": ticks, "ticktext": [str(k) for k in ticks], "title": {"text": "k"}}
    return _scores(f"pass-{task}", task, lines, axis, 0, f"pass@k of {task}, at k = 1")


def _scores(name: str, title: str, lines: Sequence[Line], axis: dict, at: int, summary: str) -> dict:
    """at: place of the value in the head, of lines that are not dotted."""
    traces = line_traces(lines, [bold(line, 0) for line in lines])
    for trace in traces:
        trace["hovertemplate"] = "%{y:.1f} %"
    named = [line for line in lines if not line.dash]
    values = _legend(named, [f"{percent(line.y[at] / 100)} %" for line in named], WIDE_CHARS)
    scores = "; ".join(f"{value['name']}: {value['text']}" for value in values)
    layout = {"xaxis": axis, "yaxis": {"ticksuffix": " %", "rangemode": "tozero"}}
    return {
        "id": name,
        "title": title,
        "values": values,
        "note": "",
        "summary": f"{summary}: {scores}",
        "figure": {"data": traces, "layout": layout},
    }
