"""A cache of rendered pages for the next visitor of the same view, valid while the files are the same."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Hashable

SECONDS = 60.0  # that a page is kept; it may say how long ago something was
PAGES = 24  # of at most some megabytes


class _Place:
    def __init__(self):
        self.lock, self.until, self.found = threading.Lock(), 0.0, {}


class Rendered:
    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self.clock = clock
        self._place = functools.lru_cache(PAGES)(lambda key: _Place())

    def get(self, key: Hashable, render: Callable[[], dict]) -> dict:
        """Return what is kept under the key, or what `render` makes. Of visitors who ask at once one renders, the
        others wait; nothing is kept of what raises."""
        place = self._place(key)
        with place.lock:
            if self.clock() >= place.until:
                place.found = render()
                place.until = self.clock() + SECONDS
            return place.found
