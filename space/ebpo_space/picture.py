"""SVG, pure: the picture of a group (prior, group mean, and the baseline between them), and lines of a few pixels'
height."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from openrlhf_ebpo.run.plot import smooth

from .figures import colour, number
from .metrics import decimate
from .text import HTML, attribute, html

WIDTH, HEIGHT, MARGIN, GROUND = 300, 142, 10, 118
_ROWS = (12, 29, 46)  # heights of the marks' names
TOP = 56  # of the marks, below their names
CHAR = 6.7  # width of a character of a name, on average
SPARK_WIDTH, SPARK_HEIGHT, SPARK_MARGIN = 160, 36, 3
SMOOTHED = 0.08  # share of the run
_POINTS = 80


def implied_prior_mean(mean: float, baseline: float, shrinkage: float) -> float | None:
    """Return μ_glob from V = (1 − S)·μ + S·μ_glob."""
    return (baseline - (1 - shrinkage) * mean) / shrinkage if shrinkage > 1e-9 else None


def picture(
    mean: float,
    baseline: float,
    shrinkage: float,
    prior_mean: float | None,
    within: float | None = None,
    between: float | None = None,
    size: int = 4,
    rewards: tuple[float, float] = (0.0, 1.0),
) -> HTML:
    """Bell curves of prior (τ²) and group mean (σ²/G) over the reward axis, and the way from the mean to the baseline
    of one group. within, between: variances of the prior at its step, where they are known; rewards: of fail and
    pass."""
    span = [v for v in (*rewards, mean, baseline, prior_mean) if v is not None]
    low, high = min(span), max(span)
    pad = 0.04 * (high - low or 1.0)
    low, high = low - pad, high + pad

    def x(value: float) -> float:
        return MARGIN + (value - low) / (high - low) * (WIDTH - 2 * MARGIN)

    parts = [f'<line class="axis" x1="{MARGIN}" x2="{WIDTH - MARGIN}" y1="{GROUND}" y2="{GROUND}"/>']
    for value in np.linspace(*rewards, 5):
        at, said = f"{x(value):.1f}", number(value)
        parts.append(f'<text class="tick" x="{at}" y="{GROUND + 17}" text-anchor="middle">{said}</text>')
        parts.append(f'<line class="axis" x1="{at}" x2="{at}" y1="{GROUND}" y2="{GROUND + 4}"/>')
    if prior_mean is not None and (between or 0) > 0:
        parts.append(_bell(prior_mean, between, low, high, x, "prior"))
    if (within or 0) > 0:
        parts.append(_bell(mean, within / max(size, 1), low, high, x, "data"))
    parts.append(_way(x(mean), x(baseline)))
    marks = [("mean", "group mean", mean), ("base", "baseline", baseline)]
    marks += [("glob", "prior mean", prior_mean)] if prior_mean is not None else []
    for (kind, name, value), y in zip(sorted(marks, key=lambda mark: mark[2]), _ROWS, strict=False):
        parts.append(_mark(kind, f"{name} {number(value)}", x(value), y))
    prior = f" prior mean {number(prior_mean)}," if prior_mean is not None else ""
    numbers = f"group mean {number(mean)},{prior} baseline {number(baseline)}"
    label = f"On the reward axis: {numbers}, shrinkage {number(shrinkage)}"
    return HTML(  # noqa: S704 (numbers, and words of this file)
        f'<svg class="picture" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">{"".join(parts)}</svg>'
    )


def _bell(mean: float, variance: float, low: float, high: float, x, kind: str) -> str:
    """Draw a normal density over the shown range; the height says nothing but which is narrower."""
    points = np.linspace(low, high, 90)
    height = 56 * min(1.0, 0.45 + 0.05 / math.sqrt(variance))
    tops = GROUND - height * np.exp(-((points - mean) ** 2) / (2 * variance))
    line = " ".join(f"{x(p):.1f},{t:.1f}" for p, t in zip(points, tops, strict=True))
    return f'<polygon class="{kind}" points="{x(low):.1f},{GROUND} {line} {x(high):.1f},{GROUND}"/>'


def _way(start: float, end: float) -> str:
    if abs(end - start) < 3:
        return ""
    tip = 5 if end > start else -5
    y = GROUND - 8
    return (
        f'<line class="way" x1="{start:.1f}" x2="{end - tip:.1f}" y1="{y}" y2="{y}"/>'
        f'<polygon class="tip" points="{end:.1f},{y} {end - tip:.1f},{y - 3.5} {end - tip:.1f},{y + 3.5}"/>'
    )


def _mark(kind: str, text: str, at: float, y: int) -> str:
    """Draw a mark and above it its name, on a line of its own so that no mark crosses a name, as far as there is room
    at the sides."""
    half = CHAR * len(text) / 2
    middle = min(max(at, half), WIDTH - half)
    return (
        f'<line class="{kind}" x1="{at:.1f}" x2="{at:.1f}" y1="{TOP}" y2="{GROUND}"/>'
        f'<text class="{kind}" x="{middle:.1f}" y="{y}" text-anchor="middle">{text}</text>'
    )


def scale_of(curves: Sequence[np.ndarray]) -> tuple[float, float]:
    """Find the lowest and the highest value of smoothed curves."""
    found = np.concatenate([np.zeros(0), *(smooth(values, SMOOTHED) for values in curves)])
    return (float(found.min()), float(found.max())) if len(found) else (0.0, 0.0)


def sparkline(steps: np.ndarray, values: np.ndarray, said: str, number: int, scale: tuple[float, float]) -> HTML:
    """Smoothed. said: what it is, for who does not see it; scale: lowest and highest value of all that are compared."""
    if len(values) < 2:
        return HTML()
    line = smooth(values, SMOOTHED)
    x, y = decimate(steps, line, _POINTS)
    return html(
        '<svg class="spark" viewBox="0 0 {} {}" preserveAspectRatio="none" role="img" aria-label="{}">'
        '<path d="{}" fill="none" style="stroke:var(--{})" vector-effect="non-scaling-stroke"/></svg>',
        *(SPARK_WIDTH, SPARK_HEIGHT, attribute(said, 300), _path(x, y, steps, *scale), colour(number)),
    )


def _path(x: Sequence, y: Sequence, steps: np.ndarray, low: float, high: float) -> str:
    across = (SPARK_WIDTH - 2 * SPARK_MARGIN) / max(float(steps[-1] - steps[0]), 1e-12)
    up = (SPARK_HEIGHT - 2 * SPARK_MARGIN) / (high - low) if high > low else 0.0
    middle = 0 if high > low else SPARK_HEIGHT / 2 - SPARK_MARGIN
    points = (
        (
            f"{SPARK_MARGIN + (float(a) - float(steps[0])) * across:.1f} "
            f"{SPARK_HEIGHT - SPARK_MARGIN - middle - (float(b) - low) * up:.1f}"
        )
        for a, b in zip(x, y, strict=True)
    )
    return "M" + "L".join(points)
