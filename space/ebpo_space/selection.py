"""The groups that a view of Samples selects: its filters, and its tag."""

from __future__ import annotations

import math
from urllib.parse import quote, urlencode

from .groups import Index
from .notes import Note, tagged
from .search import Filter, Found, choose
from .workspace import Opened

FILTERS = ("steps", "kind", "cluster", "from", "to", "rewards_from", "rewards_to", "text", "tag")  # of a view


def wanted(view: dict) -> Filter:
    """The view's filters, without its tag."""
    low, high = view["rewards_from"], view["rewards_to"]
    reward = None
    if low is not None or high is not None:
        reward = (-math.inf if low is None else low, math.inf if high is None else high)
    return Filter(view["steps"], view["kind"], view["cluster"], (view["from"], view["to"]), reward, view["text"])


def selected(view: dict, opened: Opened, index: Index, notes: dict[tuple[int, int], Note]) -> Found:
    """
    Raises:
        RunError: a filter is none, or a file that is searched for a text cannot be read.
    """
    found = choose(index, wanted(view), *opened.rewards)
    return Found(tagged(notes, index.read()[0], found.positions, view["tag"]), found.note)


def query(view: dict, key: str) -> str:
    """What selects the same groups of this run, in an address."""
    values = {name: view[name] for name in FILTERS if view.get(name) not in (None, "")}
    return urlencode({"runs": quote(key, safe="/"), **values})
