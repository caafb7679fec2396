"""A view and its address: what is on the page is in the URL, and a URL opens the same page. The view of each visitor is
kept on the server, its only copy: every event changes it here, so none works on a stale one, and only the latest
event's result is sent.

Whatever comes from a visitor is validated by `clean`, so pages get values of the right type and within their limits.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import parse_qsl, quote

from .pages import PAGES
from .parameters import Parameter, flag, names, one_of
from .run_table import SORTS

PARAMETERS: dict[str, Parameter] = {  # by name in the address
    "tab": (next(iter(PAGES)), one_of(PAGES)),
    "runs": ([], names),
    "hidden": ([], names),
    "table": (False, flag),  # of all runs, open
    "sort": ("", one_of(SORTS)),
    "seeds": ("mean", one_of(("mean", "each"))),  # of one configuration
    **{name: parameter for page in PAGES.values() for name, parameter in page.parameters.items()},
}


def clean(values: Mapping) -> dict:
    """Complete a view: defaults for what is absent or invalid, unknown names dropped."""
    view = {}
    for name, (default, parse) in PARAMETERS.items():
        try:
            view[name] = parse(values[name]) if values.get(name) is not None else default
        except (ValueError, TypeError, KeyError, OverflowError):
            view[name] = default
    for page in PAGES.values():
        page.reconcile(view)
    return view


def address(view: Mapping) -> str:
    """Write the query part: ?page=…, only what differs from the defaults."""
    parts = []
    for name, (default, _) in PARAMETERS.items():
        value = view.get(name, default)
        if value == default:
            continue
        if isinstance(value, list):
            text = ",".join(name.replace("%", "%25").replace(",", "%2C") for name in value)
        else:
            text = f"{int(value)}" if isinstance(value, bool) else f"{value}"
        parts.append(f"{name}={quote(text, safe='/,.:=@')}")
    return "?" + "&".join(parts) if parts else ""


def parse_address(address: str) -> dict[str, str]:
    """Read the parameters of an address, whatever stands before its question mark."""
    return dict(parse_qsl(address.partition("?")[2]))


@dataclass
class Turn:
    """One event of a visitor: its number and the view that it asks for, which rendering may complete."""

    number: int
    view: dict


class Session:
    """view: None until the page has loaded. sent: number and address of the last answer, which the browser hands back
    with its events. stamp: what the answer showed of the runs' files."""

    def __init__(self):
        self.view: dict | None = None
        self.sent, self.stamp = "", ""
        self._turns = self._answers = self._under_way = 0
        self._owed: set[str] = set()
        self._orders: dict[str, int] = {}
        self._lock = threading.Lock()

    def __deepcopy__(self, memo) -> Session:
        return Session()  # Gradio gives each visitor a copy of the first

    @property
    def busy(self) -> bool:
        return self._under_way > 0

    def begin(self, changes: Mapping, located: str = "", typed: Mapping | None = None, order: int = 0) -> Turn:
        """Change the view. located: the answer that the browser shows; it has the view where the server has forgotten
        it (a restart). typed: values that the browser's controls have already. order: the browser's number of the
        event, where it has one: what a later one has changed stays."""
        with self._lock:
            changes = {
                name: value for name, value in changes.items() if order >= self._orders.get(name, 0) or not order
            }
            self._orders |= dict.fromkeys(changes, order) if order else {}
            if self.view is None:
                digits = located.partition("?")[0]
                self._answers = int(digits) if digits.isdecimal() and len(digits) < 10 else 0
                self.view = clean(parse_address(located))
            before = self.view
            self.view = clean(before | changes)
            there = before | (typed or {})
            self._owed |= {name for name, value in self.view.items() if value != there[name]}
            self._turns += 1
            self._under_way += 1
            return Turn(self._turns, dict(self.view))

    def end(self, turn: Turn, stamp: str) -> set[str] | None:
        """Return names of the values that the browser does not have yet; None where a later event answers for this
        one."""
        with self._lock:
            self._under_way -= 1
            if turn.number != self._turns:
                return None
            owed, self._owed = self._owed, set()
            self._answers += 1
            self.view, self.stamp = turn.view, stamp
            self.sent = f"{self._answers}{address(turn.view) or '?'}"
            return owed
