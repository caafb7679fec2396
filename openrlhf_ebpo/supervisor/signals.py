"""What reaches the supervisor from outside, and what it says."""

from __future__ import annotations

import contextlib
import signal
import socket
import sys
from collections.abc import Callable

FORWARDED = {signal.SIGINT: signal.SIGINT, signal.SIGTERM: signal.SIGTERM, signal.SIGHUP: signal.SIGTERM}


def say(line: str) -> None:
    """On a line of its own, whatever a progress bar has left of the one before. Nobody may be there to read it."""
    with contextlib.suppress(OSError):
        begin = "\r\x1b[K" if sys.stderr.isatty() else "\n"
        print(f"{begin}{line}", file=sys.stderr, flush=True)


def listen(forward: Callable[[int], None]) -> socket.socket:
    """Have signals forwarded; returns what becomes readable when one has come, a child's end too. One that was ignored
    when the command was started (nohup) stays so."""
    reading, writing = socket.socketpair()
    reading.setblocking(False)
    writing.setblocking(False)
    signal.set_wakeup_fd(writing.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    for number in FORWARDED:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda received, _: forward(received))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)  # blocked by driver.py, until somebody listens
    listen.keep = writing
    return reading
