"""The groups that a view of Samples selects by its filters."""

from __future__ import annotations

import math

from .groups import Index
from .search import Filter, Found, choose


def wanted(view: dict) -> Filter:
    """The view's filters."""
    low, high = view["rewards_from"], view["rewards_to"]
    reward = None
    if low is not None or high is not None:
        reward = (-math.inf if low is None else low, math.inf if high is None else high)
    return Filter(view["steps"], view["kind"], view["cluster"], (view["from"], view["to"]), reward, view["text"])


def selected(view: dict, index: Index, rewards: tuple[float, float]) -> Found:
    """
    Raises:
        RunError: a filter cannot be read, or a file that is searched for a text.
    """
    return choose(index, wanted(view), *rewards)
