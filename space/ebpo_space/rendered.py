"""A cache of rendered pages for the next visitor of the same view, valid while the files are the same."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from dataclasses import dataclass, field

LASTS = 60.0  # seconds; a page may say how long ago something was
LARGEST = 32 * 2**20  # characters of all that is kept, addresses included
WAIT = 60.0  # seconds for another visitor's rendering of the same


@dataclass
class Rendered:
    clock: Callable[[], float] = time.monotonic
    _kept: OrderedDict[Hashable, tuple[float, Future]] = field(default_factory=OrderedDict)
    _sizes: dict[Hashable, int] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def get(self, key: Hashable, render: Callable[[], dict]) -> dict:
        """Return what is kept under the key, or what `render` makes. Of visitors who ask at once one renders, the others wait.
        All of them get what it raises, and nothing is kept."""
        with self._lock:
            at, shown = self._kept.get(key, (-LASTS, None))
            if shown is None or (shown.done() and self.clock() - at > LASTS):
                at, mine = self.clock(), Future()
                self._kept[key] = (at, mine)
            else:
                mine = None
            self._kept.move_to_end(key)
        return shown.result(WAIT) if mine is None else self._made(key, mine, render)

    def _made(self, key: Hashable, mine: Future, render: Callable[[], dict]) -> dict:
        try:
            found = render()
        except BaseException as error:
            with self._lock:
                self._drop(key)
            mine.set_exception(error)
            raise
        with self._lock:
            self._sizes[key] = len(str(key)) + sum(len(value) for value in found.values() if isinstance(value, str))
            while sum(self._sizes.values()) > LARGEST:
                self._drop(next(each for each in self._kept if each in self._sizes))
        mine.set_result(found)
        return found

    def _drop(self, key: Hashable) -> None:
        self._kept.pop(key, None)
        self._sizes.pop(key, None)
