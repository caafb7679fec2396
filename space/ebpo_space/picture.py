"""The small picture of a group: what the prior expected, what the group's mean says, where the baseline ended. SVG, pure."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np

from .figures import number
from .text import HTML

WIDTH, HEIGHT, MARGIN, GROUND = 420, 124, 12, 100
_ROWS = (12, 27, 42)  # heights of the marks' names
_LETTER = 6.2  # width of one at the style sheet's size


@dataclass(frozen=True)
class Drawn:
    """Numbers of one group; variances of the prior at its step, where they are known. low, high: fail and pass reward."""

    mean: float
    baseline: float
    shrinkage: float
    prior_mean: float | None
    within: float | None = None
    between: float | None = None
    size: int = 4
    low: float = 0.0
    high: float = 1.0


def implied_prior_mean(mean: float, baseline: float, shrinkage: float) -> float | None:
    """μ_glob from V = (1 − S)·μ + S·μ_glob."""
    return (baseline - (1 - shrinkage) * mean) / shrinkage if shrinkage > 1e-9 else None


def picture(group: Drawn) -> HTML:
    """Bell curves of prior (τ²) and group mean (σ²/G) over the reward axis, and the way from the mean to the baseline."""
    span = [v for v in (group.low, group.high, group.mean, group.baseline, group.prior_mean) if v is not None]
    low, high = min(span), max(span)
    pad = 0.04 * (high - low or 1.0)
    low, high = low - pad, high + pad

    def x(value: float) -> float:
        return MARGIN + (value - low) / (high - low) * (WIDTH - 2 * MARGIN)

    parts = [_ticks(group, x)]
    if group.prior_mean is not None and group.between:
        parts.append(_bell(group.prior_mean, group.between, low, high, x, "prior"))
    if group.within:
        parts.append(_bell(group.mean, group.within / max(group.size, 1), low, high, x, "data"))
    parts.append(_way(x(group.mean), x(group.baseline)))
    parts += _labels(group, x)
    prior = f" prior mean {number(group.prior_mean)}," if group.prior_mean is not None else ""
    said = f"group mean {number(group.mean)},{prior} baseline {number(group.baseline)}, shrinkage {number(group.shrinkage)}"
    return HTML(  # noqa: S704 (numbers, and words of this file)
        f'<svg class="picture" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="On the reward axis: {said}">'
        f"{''.join(parts)}</svg>"
    )


def _ticks(group: Drawn, x) -> str:
    marks = "".join(
        f'<text class="tick" x="{x(v):.1f}" y="{GROUND + 16}" text-anchor="middle">{number(v)}</text>'
        f'<line class="axis" x1="{x(v):.1f}" x2="{x(v):.1f}" y1="{GROUND}" y2="{GROUND + 4}"/>'
        for v in np.linspace(group.low, group.high, 5)
    )
    return f'<line class="axis" x1="{MARGIN}" x2="{WIDTH - MARGIN}" y1="{GROUND}" y2="{GROUND}"/>{marks}'


def _bell(mean: float, variance: float, low: float, high: float, x, kind: str) -> str:
    """A normal density over the shown range; the height says nothing but which is narrower."""
    points = np.linspace(low, high, 90)
    height = 58 * min(1.0, 0.45 + 0.05 / math.sqrt(variance))
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


def _labels(group: Drawn, x) -> list[str]:
    """The three marks with their names, each on a line of its own, placed so that names stand inside the picture and cross
    as few marks as may be."""
    marks = [("mean", "group mean", group.mean), ("base", "baseline", group.baseline)]
    if group.prior_mean is not None:
        marks.append(("glob", "prior mean", group.prior_mean))
    named = [(kind, f"{name} {number(value)}", x(value)) for kind, name, value in marks]
    rows = itertools.permutations(_ROWS[: len(named)])
    sides = list(itertools.product((1, -1), repeat=len(named)))
    _, ys, chosen = min((_crossings(named, ys, side), ys, side) for ys in rows for side in sides)
    return [_mark(*mark, y, side) for mark, y, side in zip(named, ys, chosen, strict=True)]


def _crossings(named: list[tuple[str, str, float]], ys: tuple[int, ...], sides: tuple[int, ...]) -> int:
    """Cost of a placement: a name outside the picture costs more than all marks that names cross."""
    bad = 0
    for (_, text, at), y, side in zip(named, ys, sides, strict=True):
        near, far = sorted((at + 4 * side, at + side * (6 + _LETTER * len(text))))
        bad += 10 * (near < 0 or far > WIDTH)
        bad += sum(near < other < far and below <= y for (_, _, other), below in zip(named, ys, strict=True))
    return bad


def _mark(kind: str, text: str, at: float, y: int, side: int) -> str:
    anchor = "start" if side > 0 else "end"
    return (
        f'<line class="{kind}" x1="{at:.1f}" x2="{at:.1f}" y1="{y - 6}" y2="{GROUND}"/>'
        f'<text class="{kind}" x="{at + 6 * side:.1f}" y="{y + 3}" text-anchor="{anchor}">{text}</text>'
    )
