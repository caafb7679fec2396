"""A view and its address: what is on the page is in the URL, and a URL opens the same page.

Whatever comes from a visitor is validated by `clean`, so pages get values of the right type and within their limits.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import parse_qsl, quote

from .pages import PAGES
from .parameters import Parameter, names, one_of

PARAMETERS: dict[str, Parameter] = {  # by name in the address
    "tab": (next(iter(PAGES)), one_of(PAGES)),
    "runs": ([], names),
    "hidden": ([], names),
    **{name: parameter for page in PAGES.values() for name, parameter in page.parameters.items()},
}


def clean(values: Mapping) -> dict:
    """A whole view: defaults for what is absent or invalid, unknown names dropped."""
    view = {}
    for name, (default, parse) in PARAMETERS.items():
        try:
            view[name] = parse(values[name]) if values.get(name) is not None else default
        except (ValueError, TypeError, KeyError, OverflowError):
            view[name] = default
    for page in PAGES.values():
        page.settle(view)
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
