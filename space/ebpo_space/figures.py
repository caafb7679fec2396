"""Data -> Plotly figures as plain dicts, and the boards that they stand on. Pure.

A colour written "@name" is the style sheet's variable of that name, which the page fills in: one figure serves light
and dark. Arrays go as base64 of float32, which Plotly reads.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence

import numpy as np
import orjson

from .text import middle_cut

COLOURS = 8  # --run-0 … --run-7 in the style sheet; more runs start over, dashed
FLOAT32 = float(np.finfo(np.float32).max)
HEIGHT = 184  # pixels of a plot: two rows of panels fit on a first screen


def colour(number: int) -> str:
    return f"run-{number % COLOURS}"


def pack(values: np.ndarray) -> dict:
    """Pack as float32 as Plotly reads it from JSON; whole numbers as int32, since step 16,777,217 is not a float32, and
    what a float32 does not reach as float64."""
    values = np.asarray(values)
    kind = "i4" if values.dtype.kind in "iu" else "f4"
    if kind == "f4" and values.size and np.nanmax(np.abs(values), initial=0) > FLOAT32:
        kind = "f8"
    return {"dtype": kind, "bdata": base64.b64encode(values.astype(f"<{kind}").tobytes()).decode()}


def number(value: float | None) -> str:
    """Write a number with three significant digits, short."""
    if value is None or not math.isfinite(value):
        return "–"
    if value and (abs(value) >= 1e5 or abs(value) < 1e-3):
        return f"{value:.2e}".replace("e-0", "e-").replace("e+0", "e+")
    return f"{value:,.0f}" if abs(value) >= 999.5 else f"{value:.3g}"


def signed(value: float | None) -> str:
    """Write a number with its sign; a true minus, which has the width of a plus."""
    if value is None:
        return "–"
    if value and not 0.005 <= abs(value) < 1e5:
        return f"{value:+.0e}".replace("-", "−").replace("e−0", "e−")
    return "0" if value == 0 else f"{value:+.2f}".replace("-", "−")


def finite(value) -> float | None:
    """Return a number of a run as a float; None for anything else."""
    try:
        return float(value) if isinstance(value, (int, float)) and math.isfinite(value) else None
    except OverflowError:  # JSON's whole numbers have no limit
        return None


def plotly_text(text: str, limit: int = 40) -> str:
    """Escaped for Plotly, which renders a few HTML tags in names and labels."""
    return middle_cut(text, limit).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def board(sections: Sequence[dict], unit: str = "", zoom: tuple[float, float] | None = None) -> str:
    """Write what a board component takes: sections of panels, as JSON; sections without panels are left out."""
    filled = [section for section in sections if section["panels"]]
    return orjson.dumps({"unit": unit, "zoom": zoom, "sections": filled}).decode()
