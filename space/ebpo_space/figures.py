"""Data -> Plotly figures as plain dicts, and the boards that they stand on. Pure.

A colour written "@name" is the style sheet's variable of that name, which the page fills in: one figure serves light and
dark. Arrays go as base64 of float32, which Plotly reads.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence

import numpy as np
import orjson

from openrlhf_ebpo.run.score_text import percent

from .text import middle_cut

COLOURS = 8  # --run-0 … --run-7 in the style sheet; more runs start over, dashed
FLOAT32 = float(np.finfo(np.float32).max)
HEIGHT = 184  # pixels of a plot: two rows of panels fit on a first screen


def colour(number: int) -> str:
    return f"run-{number % COLOURS}"


def packed(values: np.ndarray) -> dict:
    """float32 as Plotly reads it from JSON; whole numbers as int32, since step 16,777,217 is no float32, and what a
    float32 does not reach as float64. Two dimensions keep their shape."""
    values = np.asarray(values)
    kind = "i4" if values.dtype.kind in "iu" else "f4"
    if kind == "f4" and values.size and np.nanmax(np.abs(values), initial=0) > FLOAT32:
        kind = "f8"
    shape = {"shape": ", ".join(map(str, values.shape))} if values.ndim > 1 else {}
    return {"dtype": kind, "bdata": base64.b64encode(values.astype(f"<{kind}").tobytes()).decode(), **shape}


def number(value: float | None) -> str:
    """Three significant digits, short."""
    if value is None or not math.isfinite(value):
        return "–"
    if value and (abs(value) >= 1e5 or abs(value) < 1e-3):
        return f"{value:.2e}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def signed(value: float | None) -> str:
    """With its sign; a true minus, which has the width of a plus."""
    if value is None:
        return "–"
    if value and not 0.005 <= abs(value) < 1e5:
        return f"{value:+.0e}".replace("-", "−").replace("e−0", "e−")
    return "0" if value == 0 else f"{value:+.2f}".replace("-", "−")


def plotly_text(text: str, limit: int = 40) -> str:
    """Escaped for Plotly, which renders a few HTML tags in names and labels."""
    return middle_cut(text, limit).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def board(sections: Sequence[dict], unit: str = "", zoom: tuple[float, float] | None = None) -> str:
    """What a board component takes: sections of panels, as JSON; sections without panels are left out."""
    shown = [section for section in sections if section["panels"]]
    return orjson.dumps({"unit": unit, "zoom": zoom, "sections": shown}).decode()


def pass_panel(task: str, curves: Sequence[tuple[str, int, bool, list[tuple[int, dict]]]]) -> dict:
    """pass@k over k, one line per checkpoint. curves: (label, colour number, dashed, [(k, metric)])."""
    traces, values = [], []
    for label, shade, dashed, points in curves:
        ks, metrics = [k for k, _ in points], [m for _, m in points]
        y = 100 * np.array([m["value"] for m in metrics])
        low, high = (100 * np.array([m["interval"][i] for m in metrics]) for i in (0, 1))
        traces += [*([] if dashed else [_band(ks, low, high, shade)]), _line(label, ks, y, shade, dashed)]
        values += (
            [] if dashed else [{"name": label, "color": colour(shade), "text": f"{percent(metrics[0]['value'])} %"}]
        )
    ticks = sorted({k for *_, points in curves for k, _ in points})
    return {
        **{"id": f"pass-{task}", "title": task, "values": values, "note": ""},
        "summary": f"pass@k of {task}: " + "; ".join(f"{v['name']}: {v['text']} at k = 1" for v in values),
        "figure": {
            "data": traces,
            "layout": {
                "xaxis": {
                    "type": "log",
                    "tickvals": ticks,
                    "ticktext": [str(k) for k in ticks],
                    "title": {"text": "k"},
                },
                "yaxis": {"rangemode": "tozero", "ticksuffix": " %"},
            },
        },
    }


def _line(label: str, x, y: np.ndarray, shade: int, dashed: bool) -> dict:
    return {
        **{"type": "scatter", "mode": "lines+markers", "x": list(x), "y": packed(y), "name": plotly_text(label)},
        **{"line": {"color": f"@{colour(shade)}", "width": 2, "dash": "dot" if dashed else "solid"}},
        **{"marker": {"size": 6}, "hovertemplate": "%{y:.1f} %"},
    }


def _band(x, low: np.ndarray, high: np.ndarray, shade: int) -> dict:
    x = list(x)
    return {
        **{"type": "scatter", "mode": "lines", "x": x + x[::-1], "y": packed(np.concatenate([high, low[::-1]]))},
        **{"fill": "toself", "fillcolor": f"@{colour(shade)}-soft", "line": {"width": 0}},
        **{"hoverinfo": "skip", "showlegend": False},
    }
