"""Connections to the Hub that never stand still in silence: bytes are counted, and a side that moves none, or a trickle,
ends the call. huggingface_hub's own limits are those of a single read: a byte a second satisfies them for ever, and each
one that is exceeded is tried six times. Files that go by Xet have connections of their own, which this does not see.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

SLOWEST = 1000.0  # bytes a second; fewer, over the whole of the limit, are a trickle
KEPT = 10 << 20  # bytes of a download that huggingface_hub keeps when it asks for the rest
PIECE = 16 << 10  # bytes written at once, so that the pace is looked at in between
PARTS = ("connect", "read", "write", "pool")
LONGEST_PAUSE_OF_CLIENT = 60.0  # what the Hub asks for beyond it is waited for where it can be seen (retry.py)
REPEATED = (408, 429, 500, 502, 503, 504)  # by huggingface_hub

T = TypeVar("T")


class Stalled(Exception):
    """A connection to the Hub stands still, or trickles."""


@dataclass
class Moved:
    """Bytes of all connections of this process."""

    sent: int = 0


moved = Moved()


def limit_waiting(seconds: float) -> None:
    """No call of this process waits longer than `seconds` for a byte, nor goes on that long at less than SLOWEST. A
    default of the HTTP client is not enough, for some calls of huggingface_hub ask for no limit explicitly."""
    from huggingface_hub import set_client_factory
    from huggingface_hub.utils._http import default_client_factory

    def limit(request) -> None:
        asked = request.extensions.get("timeout", {})
        request.extensions["timeout"] = {part: min(asked.get(part) or seconds, seconds) for part in PARTS}

    def client():
        made = default_client_factory()
        hooks = made.event_hooks
        made.event_hooks = {
            "request": [*hooks["request"], limit],
            "response": [*hooks["response"], refuse_long_pause],
        }
        for transport in filter(None, [made._transport, *made._mounts.values()]):  # the mounts are those of proxies
            transport._pool._network_backend = Backend(transport._pool._network_backend, seconds)
        return made

    if limit_waiting.seconds != seconds:
        set_client_factory(client)
        limit_waiting.seconds = seconds


limit_waiting.seconds = None


def refuse_long_pause(response) -> None:
    """The client would sleep for as long as a header says."""
    from huggingface_hub.errors import HfHubHTTPError

    if response.status_code in REPEATED and (retry_after(response) or 0.0) > LONGEST_PAUSE_OF_CLIENT:
        raise HfHubHTTPError("the Hub asks for a long pause", response=response)


class Backend:
    """httpcore's network backend, whose connections keep a pace."""

    def __init__(self, backend, seconds: float):
        self.backend, self.seconds = backend, seconds

    def connect_tcp(self, host: str, port: int, timeout: float | None = None, **how) -> Line:
        return self._line(lambda: self.backend.connect_tcp(host, port, timeout=timeout, **how), timeout)

    def connect_unix_socket(self, path: str, timeout: float | None = None, **how) -> Line:
        return self._line(lambda: self.backend.connect_unix_socket(path, timeout=timeout, **how), timeout)

    def sleep(self, seconds: float) -> None:
        self.backend.sleep(seconds)

    def _line(self, connect: Callable[[], object], timeout: float | None) -> Line:
        return Line(stalled_after(connect, "no connection", timeout), self.seconds)


class Line:
    """A connection, of which one request after the other makes use. It keeps the seconds that were waited for it, and
    the bytes that came of them, since the request began or a whole limit was last passed well.

    A download that stands still after so much that huggingface_hub keeps it ends with an error upon which it goes on from
    there; every other stall ends the call."""

    def __init__(self, stream, seconds: float):
        self.stream, self.seconds = stream, seconds
        self.answers = False
        self.waited, self.moved, self.answer = 0.0, 0, 0

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        import httpcore

        self.answers = True
        try:
            found = self._timed(lambda: self.stream.read(max_bytes, timeout), timeout, len)
        except Stalled as error:
            if self.answer < KEPT:
                raise
            raise httpcore.ReadTimeout(str(error)) from error
        self.answer += len(found)
        return found

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        if self.answers:  # what is written after an answer is the next request
            self.answers, self.waited, self.moved, self.answer = False, 0.0, 0, 0
        for start in range(0, len(buffer), PIECE):
            piece = buffer[start : start + PIECE]
            self._timed(
                lambda piece=piece: self.stream.write(piece, timeout), timeout, lambda _, piece=piece: len(piece)
            )
            moved.sent += len(piece)

    def start_tls(self, ssl_context, server_hostname: str | None = None, timeout: float | None = None) -> Line:
        inner = stalled_after(lambda: self.stream.start_tls(ssl_context, server_hostname, timeout), "no TLS", timeout)
        return Line(inner, self.seconds)

    def close(self) -> None:
        self.stream.close()

    def get_extra_info(self, info: str):
        return self.stream.get_extra_info(info)

    def _timed(self, action: Callable[[], T], timeout: float | None, size: Callable[[T], int]) -> T:
        started = time.monotonic()
        done = stalled_after(action, "not a byte", timeout)
        self.waited += time.monotonic() - started
        self.moved += size(done)
        if self.waited >= self.seconds:
            if self.moved < SLOWEST * self.waited:
                raise Stalled(f"timed out: {self.moved} bytes in {self.waited:.3g} s")
            self.waited, self.moved = 0.0, 0
        return done


def stalled_after(action: Callable[[], T], what: str, timeout: float | None) -> T:
    """The result of `action`, whose time limit becomes an error that huggingface_hub does not take for a reason to repeat
    the call: repeating is for retry.py, which says so."""
    import httpcore

    try:
        return action()
    except httpcore.TimeoutException as error:
        raise Stalled(f"timed out: {what} in {timeout or 0:g} s") from error


def retry_after(response) -> float | None:
    """Seconds that the Hub asks to wait, None where it does not."""
    from huggingface_hub.utils import parse_ratelimit_headers

    limit = parse_ratelimit_headers(response.headers)
    if limit and limit.remaining == 0:
        return float(limit.reset_in_seconds)
    seconds = response.headers.get("Retry-After", "")
    return float(seconds) if seconds.isdigit() else None
