"""A line of a few pixels' height, as SVG: how a number went, without an axis. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .figures import colour
from .metrics import decimate, smooth
from .text import HTML, attribute, html

WIDTH, HEIGHT, MARGIN = 160, 36, 3
SMOOTHED = 0.08  # share of the run
_POINTS = 80


def sparkline(
    steps: np.ndarray, values: np.ndarray, said: str, number: int, band: tuple[np.ndarray, np.ndarray] | None = None
) -> HTML:
    """Smoothed, from its lowest to its highest. said: what it is, for who does not see it. band: low and high, drawn softly."""
    if len(values) < 2:
        return HTML()
    line = smooth(values, SMOOTHED) if band is None else values
    around = np.concatenate([line, *(band or ())])
    low, high = float(around.min()), float(around.max())
    marks = HTML() if band is None else _area(steps, *band, low, high, number)
    x, y = decimate(steps, line, _POINTS)
    return html(
        '<svg class="spark" viewBox="0 0 {} {}" preserveAspectRatio="none" role="img" aria-label="{}">{}'
        '<path d="{}" fill="none" style="stroke:var(--{})" vector-effect="non-scaling-stroke"/></svg>',
        *(WIDTH, HEIGHT, attribute(said, 300), marks, _path(x, y, steps, low, high), colour(number)),
    )


def _area(steps, lower, upper, low: float, high: float, number: int) -> HTML:
    there, back = decimate(steps, upper, _POINTS), decimate(steps, lower, _POINTS)
    outline = _path(*there, steps, low, high) + _path(back[0][::-1], back[1][::-1], steps, low, high).replace("M", "L")
    return html('<path d="{}Z" style="fill:var(--{}-soft)"/>', outline, colour(number))


def _path(x: Sequence, y: Sequence, steps: np.ndarray, low: float, high: float) -> str:
    across = (WIDTH - 2 * MARGIN) / max(float(steps[-1] - steps[0]), 1e-12)
    up = (HEIGHT - 2 * MARGIN) / (high - low) if high > low else 0.0
    middle = 0 if high > low else HEIGHT / 2 - MARGIN
    points = (
        f"{MARGIN + (float(a) - float(steps[0])) * across:.1f} {HEIGHT - MARGIN - middle - (float(b) - low) * up:.1f}"
        for a, b in zip(x, y, strict=True)
    )
    return "M" + "L".join(points)
