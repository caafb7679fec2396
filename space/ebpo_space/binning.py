"""Binning numbers over the steps of a run: stretches of steps, levels of values, and what lies in both. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

FEW = 17  # different values that are a level each: the success rates of 16 answers


def stretches(steps: np.ndarray, most: int) -> np.ndarray:
    """Edges of at most so many equal stretches of the run, one a logged step where there are few enough."""
    present = np.unique(steps).astype(float)
    if not len(present):
        return np.zeros(0)
    apart = float(np.diff(present).min()) if len(present) > 1 else 1.0
    count = min(round((present[-1] - present[0]) / apart) + 1, most)
    return np.linspace(present[0] - apart / 2, present[-1] + apart / 2, count + 1)


def places(steps: np.ndarray, at: np.ndarray) -> np.ndarray:
    """The stretch of each of these steps, which ascend."""
    return np.repeat(np.arange(len(at) - 1), np.diff(np.searchsorted(steps, at)))


def levels(values: Sequence[np.ndarray], most: int) -> np.ndarray:
    """Edges between the values: around each where there are few different ones, else equal steps over all but the
    outermost thousandth at each end, which count with the last level."""
    known = np.concatenate([each[np.isfinite(each)] for each in values] or [np.zeros(0)])
    if not len(known):
        return np.zeros(0)
    different = _different(known)
    if different is not None:
        between = (different[1:] + different[:-1]) / 2
        margins = (between[0] - different[0], different[-1] - between[-1]) if len(different) > 1 else (0.5, 0.5)
        return np.concatenate([[different[0] - margins[0]], between, [different[-1] + margins[1]]])
    low, high = (float(v) for v in np.percentile(known, (0.1, 99.9)))
    if high <= low:
        low, high = float(known.min()), float(known.max())
    return np.linspace(low, high, most + 1)


def _different(values: np.ndarray) -> np.ndarray | None:
    """The values, where they are few and not much closer to each other in one place than in another."""
    if len(np.unique(values[:4096])) > FEW:  # sorting a million takes its time
        return None
    found = np.unique(values).astype(float)
    apart = np.diff(found)
    return found if len(found) <= FEW and (len(found) < 3 or apart.max() <= 4 * apart.min()) else None


def shares(place: np.ndarray, values: np.ndarray, count: int, edges: np.ndarray) -> np.ndarray:
    """(levels, stretches): the fraction of a stretch's values in each level; NaN in a stretch without any.

    Args:
        place: the stretch of each value, of `count`.
        edges: of the levels.
    """
    known = np.isfinite(values)
    row = np.clip(np.searchsorted(edges, values[known], "right") - 1, 0, len(edges) - 2)
    shape = (len(edges) - 1, count)
    counts = np.bincount(row * count + place[known], minlength=shape[0] * count).reshape(shape).astype(float)
    total = counts.sum(0)
    return np.where(total > 0, counts / np.maximum(total, 1), np.nan)


def means(place: np.ndarray, values: np.ndarray, count: int) -> np.ndarray:
    """The mean of each stretch, NaN without any value."""
    known = np.isfinite(values)
    total = np.bincount(place[known], minlength=count)
    summed = np.bincount(place[known], values[known], minlength=count)
    return np.where(total > 0, summed / np.where(total > 0, total, 1), np.nan)
