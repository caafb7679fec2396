"""heartbeat.json: what a training is doing right now, and since when. Written by the driver until the trainer is there,
then by the process that trains; the supervisor reads it.

A heartbeat never stops a training: on a full disk, or where the run directory is gone, nothing is written.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

FILE = "heartbeat.json"
LONGEST_TEXT, LATEST = 200, 1e11  # characters; seconds since the epoch
REST_SECONDS = 0.5  # between two writes
STARTING, GENERATING, REWARDS = "starting engines and models", "generating", "rewards"


class Beat(NamedTuple):
    """step: the last one that is finished. detail: how far the phase is. since: when the phase began; time: of this beat."""

    step: int
    phase: str
    detail: str
    since: float
    time: float


class Heart:
    """The writer; of several threads. A thread of its own writes, so that neither a slow disk nor one that hangs holds up
    who beats."""

    def __init__(self, run_dir: str | Path):
        self._folder = _opened(run_dir)  # what takes its place later is not the run's
        self._lock, self._changed = threading.Lock(), threading.Event()
        self._beat = Beat(0, STARTING, "", time.time(), 0.0)
        self._seconds, self._counted = Counter(), self._beat.since  # of each phase, up to this moment
        threading.Thread(target=self._keep_writing, daemon=True, name=FILE).start()

    @property
    def phase(self) -> str:
        return self._beat.phase

    def beat(self, phase: str | None = None, detail: str = "", step: int | None = None, only_in: tuple = ()) -> None:
        """Say what is going on. Without `phase` it is as before; `only_in`: unless another phase has begun meanwhile."""
        with self._lock:
            was, now = self._beat, time.time()
            if only_in and was.phase not in only_in:
                return
            self._count(now)
            phase = phase or was.phase
            since = was.since if phase == was.phase else now
            self._beat = Beat(was.step if step is None else step, phase, detail, since, now)
        self._changed.set()

    @contextlib.contextmanager
    def during(self, phase: str) -> Iterator[None]:
        before = self.phase
        self.beat(phase)
        try:
            yield
        finally:
            self.beat(before)

    def spent(self) -> dict[str, float]:
        """Seconds of each phase since the call before; of a phase within another, in that one alone. Together they are all
        the time that has gone by."""
        with self._lock:
            self._count(time.time())
            seconds, self._seconds = self._seconds, Counter()
        return dict(seconds)

    def _count(self, now: float) -> None:
        self._seconds[self._beat.phase] += now - self._counted
        self._counted = now

    def _keep_writing(self) -> None:
        while self._changed.wait():
            self._changed.clear()
            self.write()
            time.sleep(REST_SECONDS)

    def write(self) -> None:
        """Without fsync: it may be lost with the machine. Not `files.replacing`, which makes a folder that is missing."""
        if self._folder is None:
            return
        temporary = f".{FILE}.{os.getpid()}.tmp"
        with contextlib.suppress(OSError):
            with open(temporary, "w", opener=lambda name, flags: os.open(name, flags, dir_fd=self._folder)) as file:
                file.write(json.dumps(self._beat._asdict()))
            os.replace(temporary, FILE, src_dir_fd=self._folder, dst_dir_fd=self._folder)


def _opened(folder: str | Path) -> int | None:
    try:
        return os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return None


def read_beat(run_dir: str | Path) -> Beat | None:
    """None where there is none, or what is there is no heartbeat."""
    try:
        found = json.loads((Path(run_dir) / FILE).read_text())
        phase, detail = (
            "".join(filter(str.isprintable, str(found[name])))[:LONGEST_TEXT] for name in ("phase", "detail")
        )
        beat = Beat(int(found["step"]), phase, detail, float(found["since"]), float(found["time"]))
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None
    return beat if 0 <= beat.since < LATEST else None


def forget_beat(run_dir: str | Path) -> None:
    with contextlib.suppress(OSError):
        (Path(run_dir) / FILE).unlink()
