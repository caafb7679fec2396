"""A view and its address: what is on the page is in the URL, and a URL opens the same page.

Whatever comes from a visitor is validated by `clean`, so pages get values of the right type and within their limits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from urllib.parse import parse_qsl, quote, unquote

from .runs import AT_ONCE
from .search import KINDS

PAGES = ("dynamics", "samples", "evaluation", "understand")
AXES = {"step": "step", "rollouts": "rollouts", "time": "hours"}
_LENGTH = 300  # characters of any one value


def _one_of(choices) -> Callable:
    def parse(value):
        if value not in choices:
            raise ValueError
        return value

    return parse


def _number(low: float, high: float, whole: bool = False) -> Callable:
    def parse(value):
        number = float(value)
        if not math.isfinite(number):
            raise ValueError
        number = min(max(number, low), high)
        return round(number) if whole else round(number, 6)

    return parse


def _text(value) -> str:
    return str(value)[:_LENGTH]


def _names(value) -> list[str]:
    """A list, or its names between commas, in which a comma is %2C."""
    names = map(unquote, value.split(",")) if isinstance(value, str) else value
    return list(dict.fromkeys(str(name).strip()[:_LENGTH] for name in names if str(name).strip()))[:AT_ONCE]


def _flag(value) -> bool:
    return value in (True, 1, "1", "true", "True")


def _optional(parse: Callable) -> Callable:
    return lambda value: None if value in (None, "") else parse(value)


def _place(value) -> str:
    """step.group"""
    step, _, group = str(value).partition(".")
    return f"{int(step)}.{int(group)}" if value else ""


def _range(value) -> str:
    """low:high, numbers on the x axis"""
    if not value:
        return ""
    low, high = sorted(_number(-1e12, 1e12)(part) for part in str(value).split(":"))
    return f"{low:.10g}:{high:.10g}" if low < high else ""


PARAMETERS: dict[str, tuple[object, Callable]] = {  # name in the address: value when absent, and how it is read
    "tab": ("dynamics", _one_of(PAGES)),
    "runs": ([], _names),
    "x": ("step", _one_of(AXES)),
    "log": (False, _flag),
    "smooth": (0.05, _number(0, 0.3)),
    "more": ([], _names),
    "zoom": ("", _range),
    "run": ("", _text),
    "steps": ("latest", _text),
    "kind": ("all", _one_of(KINDS)),
    "cluster": ("", _text),
    "from": (0.0, _number(0, 1)),
    "to": (1.0, _number(0, 1)),
    "rewards_from": (None, _optional(_number(-1e9, 1e9))),
    "rewards_to": (None, _optional(_number(-1e9, 1e9))),
    "text": ("", _text),
    "at": ("", _place),
    "prompt": ("", _text),
    "shown": (1, _number(1, 100_000, whole=True)),
    "raw": (False, _flag),
    "protocol": ("", _text),
    "columns": ([], _names),
    "task": ("", _text),
    "paper": ("", _text),
    "question": ("", _text),
    "g": (4, _number(2, 32, whole=True)),
    "right": (0, _number(0, 32, whole=True)),
    "mean": (0.35, _number(0.01, 0.99)),
    "within": (0.16, _number(0, 0.25)),
    "between": (0.06, _number(0, 0.25)),
}


def clean(values: Mapping) -> dict:
    """A whole view: defaults for what is absent or invalid, unknown names dropped."""
    view = {}
    for name, (default, parse) in PARAMETERS.items():
        try:
            view[name] = parse(values[name]) if values.get(name) is not None else default
        except (ValueError, TypeError, KeyError, OverflowError):
            view[name] = default
    view["right"] = min(view["right"], view["g"])
    view["from"], view["to"] = min(view["from"], view["to"]), max(view["from"], view["to"])
    return view


def address(view: Mapping) -> str:
    """The query part: ?page=…, only what differs from the defaults."""
    parts = []
    for name, (default, _) in PARAMETERS.items():
        value = view.get(name, default)
        if value == default:
            continue
        if isinstance(value, list):
            text = ",".join(name.replace("%", "%25").replace(",", "%2C") for name in value)
        else:
            text = f"{int(value)}" if isinstance(value, bool) else f"{value}"
        parts.append(f"{name}={quote(text, safe='/,.:+=@')}")
    return "?" + "&".join(parts) if parts else ""


def parsed(address: str) -> dict[str, str]:
    """The parameters of an address, whatever stands before its question mark."""
    return dict(parse_qsl(address.partition("?")[2]))
