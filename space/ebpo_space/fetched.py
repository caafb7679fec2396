"""Copies of the Hub's repos. What the app was not started with is there for whoever names it, in no list and for a while."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Container
from dataclasses import dataclass, field
from pathlib import Path

from . import hub
from .errors import RunError

ADDED = 16  # copies of repos that visitors named; the one that was not looked at for longest goes first
FAILED = 256  # repos that could not be fetched, remembered
_AGAIN, _AGAIN_FAILED = 600.0, 60.0  # seconds until the Hub is asked once more
_WAIT = 10.0  # seconds for another's download


@dataclass
class Copy:
    path: Path
    problems: tuple[str, ...]
    at: float


@dataclass
class Fetched:
    """keep: repos that the app was started with; their copies stay."""

    cache: Path | None
    keep: Container[str]
    fetch: Callable = hub.fetch
    drop: Callable = hub.drop
    copies: OrderedDict[str, Copy] = field(default_factory=OrderedDict)
    _failed: OrderedDict[str, tuple[float, str]] = field(default_factory=OrderedDict)
    _one: threading.Lock = field(default_factory=threading.Lock)  # a visitor's downloads do not take every thread
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def get(self, repo: str) -> Copy:
        """The copy of a repo, which is fetched the first time, and at intervals as it may grow; the copy here stays if the
        Hub does not answer.

        Raises:
            RunError: it cannot be fetched.
        """
        now = time.monotonic()
        with self._lock:
            copy = self.copies.get(repo)
            at, said = self._failed.get(repo, (0.0, ""))
            if copy:
                self.copies.move_to_end(repo)
        if copy and now - copy.at < _AGAIN:
            return copy
        if said and not copy and now - at < _AGAIN_FAILED:
            raise RunError(said)
        return self._anew(repo, copy)

    def _anew(self, repo: str, copy: Copy | None) -> Copy:
        if not self._one.acquire(timeout=0 if copy else _WAIT):
            if copy:
                return copy
            raise RunError(f"{repo}: other runs are being fetched from the Hub. Try again in a minute.")
        try:
            path, problems = self.fetch(repo, self.cache)
        except RunError as error:
            if copy is None:
                self._note(self._failed, repo, (time.monotonic(), str(error)), FAILED)
                raise
            path, problems = copy.path, copy.problems
        finally:
            self._one.release()
        made = Copy(path, tuple(problems), time.monotonic())
        for gone in self._note(self.copies, repo, made, ADDED):
            self.drop(gone, self.cache)
        return made

    def _note(self, store: OrderedDict, repo: str, value, most: int) -> list[str]:
        """Keep a value; the names of those that went for it, the oldest."""
        with self._lock:
            store[repo] = value
            others = [name for name in store if name not in self.keep]
            gone = others[: max(len(others) - most, 0)]
            for name in gone:
                del store[name]
            return gone
