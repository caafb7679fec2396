"""Print a line about steps of one kind, but not about each: a run may have a thousand of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable


class StepNotices:
    """Count the steps of each kind; the first, second, fourth, eighth … of a kind get a line."""

    def __init__(self):
        self._steps = Counter()

    def print_if_due(self, kind: str, text: Callable[[], str]) -> None:
        """Count a step of this kind, and print its line if one is due; text: makes the line."""
        self._steps[kind] += 1
        count = self._steps[kind]
        if not count & (count - 1):
            print(text() + (f" ({count} such steps so far)" if count > 1 else ""), flush=True)
