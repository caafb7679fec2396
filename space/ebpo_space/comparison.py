"""HTML of a group under every estimator: a table, one line an estimator, all bars on one scale."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .cards import signed
from .figures import number
from .tables import table
from .text import HTML, harmless, html, joined

_SAME = 0.005  # advantages that are shown as one number


@dataclass(frozen=True)
class Line:
    """baseline, and each of advantages: the values of several answers, empty where there are none. strong: what the page is
    about; alone: it would know earlier batches in a run, and does not here."""

    name: str
    about: str
    baseline: np.ndarray
    advantages: Sequence[np.ndarray]
    strong: bool = False
    trained: bool = False
    alone: bool = False


def comparison(lines: Sequence[Line], kinds: Sequence[str], caption: str) -> HTML:
    """kinds: of answers, a column each."""
    present = [np.abs(values).max() for line in lines for values in line.advantages if values.size]
    widest = max(0.5, *present, 0.0)
    rows = [
        [_name(line), _span(line.baseline, number), *[_bar(values, widest, line.strong) for values in line.advantages]]
        for line in lines
    ]
    return table(["estimator", "baseline", *kinds], rows, caption, "estimators")


def _name(line: Line) -> HTML:
    mark = HTML(' <em class="good">used in training</em>') if line.trained else ""
    alone = HTML(" <em>from this batch alone</em>") if line.alone else ""
    return html("<b>{}</b>{}{}<small>{}</small>", harmless(line.name, 40), mark, alone, harmless(line.about, 200))


def _span(values: np.ndarray, written) -> HTML:
    """One number, or the lowest and the highest."""
    values = values[np.isfinite(values)]
    if not values.size:
        return HTML('<span class="none">–</span>')
    low, high = float(values.min()), float(values.max())
    parts = [low] if high - low < _SAME else [low, high]
    return joined([html("{}", written(parts[0])), *(html(" … {}", written(part)) for part in parts[1:])])


def _bar(values: np.ndarray, widest: float, strong: bool) -> HTML:
    if not values.size:
        return HTML('<span class="none">–</span>')
    low, high = (50 + 50 * edge / widest for edge in (min(values.min(), 0.0), max(values.max(), 0.0)))
    return html(
        '<span class="gain{}"><span class="track"><i style="left:{:.1f}%;width:{:.1f}%"></i></span><b>{}</b></span>',
        *(" strong" if strong else "", low, high - low, _span(values, signed)),
    )
