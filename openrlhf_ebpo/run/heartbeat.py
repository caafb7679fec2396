"""The two files by which the trainer and its supervisor know of each other, both in the run directory.

heartbeat.json: what a training is doing, and since when. The driver writes it until the trainer exists, then the
process that trains. A heartbeat never stops a training: where it cannot be written, nothing is.

end_after_step: asks a training to save after its current step and to end. The supervisor writes it when a scheduler's
signal comes; anybody who can write to the run directory may (`touch`), as with `ray job submit`, where no signal
arrives. The process that trains looks for it after every step.
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

from openrlhf_ebpo.command import one_line

FILE, END_FILE = "heartbeat.json", "end_after_step"
MAX_TEXT_CHARS, MAX_ASKER_CHARS = 200, 100
LATEST = 1e11  # seconds since the epoch
REST_SECONDS = 0.5  # between two writes
STARTING, LOADING = "starting engines and models", "loading the checkpoint"
GENERATING, REWARDS = "generating", "rewards"


class Beat(NamedTuple):
    """step: the last one that is finished. detail: how far the phase is. since: when the phase began; time: of this
    beat.
    steps: how many there will be, 0 if that is not known."""

    step: int
    phase: str
    detail: str
    since: float
    time: float
    steps: int = 0


class Heartbeat:
    """The writer, shared by threads. A background thread writes, so that a slow disk does not delay the training."""

    def __init__(self, run_dir: str | Path):
        self._folder = Path(run_dir)
        self._lock, self._changed = threading.Lock(), threading.Event()
        self._beat = Beat(0, STARTING, "", time.time(), 0.0)
        self._seconds, self._counted = Counter(), self._beat.since  # of each phase, up to this moment
        threading.Thread(target=self._keep_writing, daemon=True, name=FILE).start()

    @property
    def phase(self) -> str:
        return self._beat.phase

    def report(
        self,
        phase: str | None = None,
        detail: str = "",
        step: int | None = None,
        only_in: tuple = (),
        steps: int | None = None,
    ) -> None:
        """Change phase, step, steps (None: the same) and detail.

        Args:
            only_in: phases; unless one of them has begun, nothing changes.
        """
        with self._lock:
            was, now = self._beat, time.time()
            if only_in and was.phase not in only_in:
                return
            self._count(now)
            phase = phase or was.phase
            since = was.since if phase == was.phase else now
            step, steps = was.step if step is None else step, was.steps if steps is None else steps
            self._beat = Beat(step, phase, detail, since, now, steps)
        self._changed.set()

    @contextlib.contextmanager
    def in_phase(self, phase: str) -> Iterator[None]:
        before = self.phase
        self.report(phase)
        try:
            yield
        finally:
            self.report(before)

    def spent(self) -> dict[str, float]:
        """Return the seconds of each phase since the call before, which add up to the time since then; those of a phase
        within another count for the inner one alone."""
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
        """Write without fsync: it may be lost with the machine. Not `files.replacing`, which makes a folder that is
        missing."""
        temporary = self._folder / f".{FILE}.{os.getpid()}.tmp"
        with contextlib.suppress(OSError):
            temporary.write_text(json.dumps(self._beat._asdict()))
            temporary.replace(self._folder / FILE)


def read_beat(run_dir: str | Path) -> Beat | None:
    """Read the last heartbeat; None if the file is missing or holds something else."""
    try:
        found = json.loads((Path(run_dir) / FILE).read_text())
        phase, detail = (one_line(str(found[name]), MAX_TEXT_CHARS) for name in ("phase", "detail"))
        times = float(found["since"]), float(found["time"])
        beat = Beat(int(found["step"]), phase, detail, *times, int(found.get("steps", 0)))
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None
    return beat if 0 <= beat.since < LATEST else None


def end_requested_by(run_dir: Path) -> str | None:
    """Return the source of a request to end (a signal's name, or the name of the file made by hand), or None."""
    try:
        with open(run_dir / END_FILE, errors="replace") as file:
            text = file.read(MAX_ASKER_CHARS)
    except OSError:
        return None
    return one_line(text, MAX_ASKER_CHARS) or f"the file {END_FILE}"


def forget_end_request(run_dir: Path) -> None:
    with contextlib.suppress(OSError):
        (run_dir / END_FILE).unlink()
