"""Shares of the server: how often one visitor may ask, and how many answers are worked on at a time. Both are kept per
visitor, so that one who asks for much waits, and the others do not."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import math
import os
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable

RATE = 20.0  # calls a second of one visitor, by default
BURST = 4.0  # seconds of them at once
VISITORS = 10_000  # remembered; the one that was silent for longest is forgotten, and starts anew
AT_ONCE, EACH = 8, 2  # answers worked on, in all and for one visitor
WAITING, SECONDS = 32, 20.0  # calls of one visitor that wait for that, and how long
STREAMS = 60  # open heartbeats of one visitor; every page has one


class Busy(Exception):
    """Not now. seconds: when to ask again."""

    def __init__(self, seconds: float):
        self.seconds = max(1, math.ceil(seconds))
        super().__init__(f"Too many requests. Wait {self.seconds} s and try again.")


class Allowance:
    """Every visitor may spend `rate` a second, and up to BURST seconds' worth of it at once."""

    def __init__(self, rate: float = RATE, clock: Callable[[], float] = time.monotonic):
        self.rate, self.most, self._clock = rate, rate * BURST, clock
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()  # what is left, and when that was

    def spend(self, visitor: str, cost: float) -> None:
        """
        Raises:
            Busy: nothing is left.
        """
        now = self._clock()
        left, then = self._left.pop(visitor, (self.most, now))
        left = min(self.most, left + (now - then) * self.rate)
        self._left[visitor] = (left - cost if left >= cost else left, now)
        if len(self._left) > VISITORS:
            self._left.popitem(last=False)
        if left < cost:
            raise Busy((cost - left) / self.rate)


class Places:
    """At most `at_once` calls are worked on, at most `each` of one visitor; the others wait, in order."""

    def __init__(self, at_once: int = AT_ONCE, each: int = EACH, seconds: float = SECONDS):
        self.at_once, self.each, self.seconds = at_once, each, seconds
        self._busy: Counter[str] = Counter()
        self._waiting: deque[tuple[str, asyncio.Future]] = deque()

    @contextlib.asynccontextmanager
    async def one(self, visitor: str):
        """Hold a place while the block runs.

        Raises:
            Busy: none has become free in time, or too many calls of this visitor wait for one.
        """
        if not self._enter(visitor):
            await self._wait(visitor)
        try:
            yield
        finally:
            self._leave(visitor)

    def _enter(self, visitor: str) -> bool:
        free = self._busy.total() < self.at_once and self._busy[visitor] < self.each
        self._busy[visitor] += free
        return free

    async def _wait(self, visitor: str) -> None:
        if sum(each == visitor for each, _ in self._waiting) >= WAITING:
            raise Busy(1)
        called = asyncio.get_running_loop().create_future()
        self._waiting.append((visitor, called))
        try:
            await asyncio.wait_for(called, self.seconds)
        except asyncio.TimeoutError:
            raise Busy(self.seconds) from None
        except asyncio.CancelledError:
            if called.done() and not called.cancelled():
                self._leave(visitor)  # called, and gone at the same moment
            raise
        finally:
            with contextlib.suppress(ValueError):
                self._waiting.remove((visitor, called))

    def _leave(self, visitor: str) -> None:
        self._busy[visitor] -= 1
        if not self._busy[visitor]:
            del self._busy[visitor]
        for waiting in list(self._waiting):
            if not waiting[1].done() and self._enter(waiting[0]):
                self._waiting.remove(waiting)
                waiting[1].set_result(None)


def visitor_of(scope: dict) -> str:
    """The address that a request comes from: on the Hub, behind its proxy, the last public one that was forwarded. Of IPv6
    the network: one household has 2⁶⁴ addresses."""
    said = (scope.get("client") or ("unknown",))[0]
    forwarded = dict(scope["headers"]).get(b"x-forwarded-for", b"").decode("latin-1")
    for each in reversed(forwarded.split(",")[-8:]) if os.environ.get("SPACE_ID") else ():
        with contextlib.suppress(ValueError):
            if ipaddress.ip_address(each.strip()).is_global:
                said = each.strip()
                break
    try:
        address = ipaddress.ip_address(said)
    except ValueError:
        return said[:64]
    return str(ipaddress.ip_network((address, 64), strict=False)) if address.version == 6 else said
