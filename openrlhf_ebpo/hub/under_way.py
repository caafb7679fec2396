"""The push that is under way in this process: how far it is, for people, and until when it may go on.

    <run>/hub/progress.json     {"step", "attempt", "sent", "total", "started", "time"}; there while a push is under way

sent: bytes on connections of this process. What goes by Xet is not counted, nor held to a pace (models/hub_transport.py): for that
there is the limit of the whole attempt.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from openrlhf_ebpo.files import write_json
from openrlhf_ebpo.models.hub_transport import moved
from openrlhf_ebpo.record.run_log import timestamp

EVERY_SECONDS = 1.0
LONGEST_SECONDS = 3600.0  # of an attempt, beside what its bytes may take
SLOWEST = 50_000.0  # bytes a second, of a whole attempt


@dataclass
class UnderWay:
    """total: bytes of the files that are sent, 0 before it is known; before: what had been sent when they began."""

    step: int
    attempt: int
    total: int = 0
    before: int = 0
    started: str = field(default_factory=timestamp)
    began: float = field(default_factory=time.monotonic)

    def told(self) -> dict:
        sent = min(max(moved.sent - self.before, 0), self.total)
        known = {"step": self.step, "attempt": self.attempt, "sent": sent, "total": self.total}
        return {**known, "started": self.started, "time": timestamp()}

    def limit(self) -> float:
        return LONGEST_SECONDS + self.total / SLOWEST


_current: UnderWay | None = None  # one process pushes one thing at a time


def sending(size: int) -> None:
    """Files of so many bytes are sent from now on."""
    if _current:
        _current.total, _current.before = _current.total + size, _current.before or moved.sent


def path(run_dir: str | Path) -> Path:
    return Path(run_dir) / "hub" / "progress.json"


@contextmanager
def under_way(run_dir: Path, step: int, attempt: int, too_long: Callable[[str], None]) -> Iterator[None]:
    """Tell of a push in progress.json while it goes on, and call `too_long` (in a thread) where it does not end."""
    global _current
    mine = _current = UnderWay(step, attempt)
    ended = threading.Event()
    teller = threading.Thread(target=_tell, args=(run_dir, mine, ended, too_long), daemon=True)
    teller.start()
    try:
        yield
    finally:
        _current = None
        ended.set()
        teller.join()
        with contextlib.suppress(OSError):
            path(run_dir).unlink(missing_ok=True)


def _tell(run_dir: Path, mine: UnderWay, ended: threading.Event, too_long: Callable[[str], None]) -> None:
    last: dict = {}
    while not ended.wait(EVERY_SECONDS):
        told = mine.told()
        if {**told, "time": ""} != {**last, "time": ""}:  # the time is that of the last progress
            last = told
            with contextlib.suppress(OSError):  # a full disk; it only tells
                write_json(path(run_dir), told)
        if time.monotonic() - mine.began > mine.limit():
            too_long(f"it did not end within {mine.limit():.0f} s")
            return


def give_up(words: str) -> None:
    """End this process, whose thread hangs where no time limit reaches it; whoever watches starts another one."""
    print(f"hub: {words}; the process ends, and the step stays in the outbox", flush=True)
    os._exit(1)
