"""Panels of Plotly: as a page sends them, and in a real browser."""

import base64
import json

import numpy as np


def board(found: dict) -> dict:
    """Panels that a page sends, by their id."""
    return {panel["id"]: panel for section in json.loads(found["board"])["sections"] for panel in section["panels"]}


def values(packed: dict) -> np.ndarray:
    """Numbers of a trace."""
    found = np.frombuffer(base64.b64decode(packed["bdata"]), packed["dtype"])
    return found.reshape([int(n) for n in packed["shape"].split(",")]) if "shape" in packed else found


def panel(page, name: str):
    return page.locator(f'.panel[data-panel="{name}"]')


def lines(page, name: str) -> list[dict]:
    """The traces of a drawn panel: name, width, points."""
    return (
        panel(page, name)
        .locator(".plot")
        .evaluate("e => e.data.map((t, i) => ({name: t.name, width: t.line.width, n: e.calcdata?.[i]?.length ?? 0}))")
    )
