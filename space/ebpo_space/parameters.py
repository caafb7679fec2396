"""Read values of a view from whatever a browser sends: text of an address, or JSON. A parameter is its value when
absent, and a function that reads it; what that raises ValueError or TypeError for counts as absent."""

from __future__ import annotations

import math
from collections.abc import Callable
from urllib.parse import unquote

Parameter = tuple[object, Callable]
_LENGTH = 300  # characters of any one value
MAX_NAMES = 200


def one_of(choices) -> Callable:
    def parse(value):
        if value not in choices:
            raise ValueError
        return value

    return parse


def number(low: float, high: float, whole: bool = False) -> Callable:
    def parse(value):
        number = float(value)
        if not math.isfinite(number):
            raise ValueError
        number = min(max(number, low), high)
        return round(number) if whole else round(number, 6)

    return parse


def text(value) -> str:
    return str(value)[:_LENGTH]


def names(value) -> list[str]:
    """Read a list, or its names between commas, in which a comma is %2C."""
    listed = map(unquote, value.split(",")) if isinstance(value, str) else value
    return list(dict.fromkeys(str(name).strip()[:_LENGTH] for name in listed if str(name).strip()))[:MAX_NAMES]


def flag(value) -> bool:
    return value in (True, 1, "1", "true", "True")


def place(value) -> str:
    """Read a place: step.group"""
    step, _, group = str(value).partition(".")
    return f"{int(step)}.{int(group)}" if value else ""


def span(value) -> str:
    """Read a part of the x axis: low:high"""
    if not value:
        return ""
    low, high = sorted(number(-1e12, 1e12)(part) for part in str(value).split(":"))
    return f"{low:.10g}:{high:.10g}" if low < high else ""
