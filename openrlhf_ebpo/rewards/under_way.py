"""Reward calls that have not come back, so that whoever waits for a rollout can say what it waits for."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator


class UnderWay:
    """Of one rollout actor."""

    def __init__(self):
        self._asked = 0
        self._began: dict[object, float] = {}

    @contextlib.contextmanager
    def asked(self) -> Iterator[None]:
        """Around a call, from the moment it is wanted: it may have to wait for a place."""
        self._asked += 1
        try:
            yield
        finally:
            self._asked -= 1

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Around the time that it runs."""
        call = object()
        self._began[call] = time.monotonic()
        try:
            yield
        finally:
            del self._began[call]

    def state(self) -> tuple[int, float | None]:
        """How many were asked for and have not come back, and for how many seconds the oldest of those that run has run."""
        oldest = min(list(self._began.values()), default=None)
        return self._asked, None if oldest is None else time.monotonic() - oldest


under_way = UnderWay()
