"""Restart the process that pushes when it has died: in the driver, which lives as long as the training."""

from __future__ import annotations

import shlex
import threading
import time
from collections.abc import Callable
from pathlib import Path

from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.hub import outbox, pusher
from openrlhf_ebpo.hub_client import pause_after

LOOK_SECONDS = 2.0
MAX_STARTS = 5  # in a row, without a step that was pushed or queued in between


class Keeper:
    """Starts a process that pushes where something waits and nobody pushes it: at once, then after pauses that grow, then
    not any more. It says so once for each row of deaths."""

    def __init__(
        self,
        run_dir: Path,
        seconds: float,
        start: Callable[[Path, float], None] = pusher.start,
        report: Callable[[str], None] = lambda line: print(line, flush=True),
    ):
        self.run_dir, self.seconds, self.start, self.report = run_dir, seconds, start, report
        self.starts, self.next_start, self.progress = 0, 0.0, self._progress()
        self.stopped = threading.Event()
        self.thread: threading.Thread | None = None

    def watch(self) -> None:
        """Look again and again, in a thread, until `stop`."""
        self.thread = threading.Thread(target=self._watch, name="hub", daemon=True)
        self.thread.start()

    def stop(self) -> None:
        self.stopped.set()
        if self.thread:
            self.thread.join()

    def _watch(self) -> None:
        while not self.stopped.wait(LOOK_SECONDS):
            try:
                self.look()
            except Exception as error:  # whatever it is, the training goes on
                self.report(f"warning: hub: nobody watches over the process that pushes any more: {error}")
                return

    def look(self) -> bool:
        """Start a process if one is missing, and may be started now. Whether there is hope: somebody pushes, or will.

        Raises:
            UsageError: the disk knows no locks.
        """
        if outbox.is_locked(self.run_dir) or not outbox.pending(self.run_dir):
            return True
        if (progress := self._progress()) != self.progress:
            self.starts, self.next_start, self.progress = 0, 0.0, progress
        if time.monotonic() < self.next_start:
            return True
        if self.starts >= MAX_STARTS:
            self._say_at(MAX_STARTS, "is not started any more")
            self.starts = MAX_STARTS + 1
            return False
        self._start()
        return True

    def _start(self) -> None:
        self.starts += 1
        self.next_start = time.monotonic() + pause_after(self.starts)
        self._say_at(1, "is started again, and repeats what was under way")
        try:
            self.start(self.run_dir, self.seconds)
        except UsageError as error:
            self.report(f"warning: hub: {error}")

    def _say_at(self, starts: int, what: str) -> None:
        if self.starts == starts:
            log = self.run_dir / "hub" / "push.log"
            finish = f"openrlhf-ebpo hub push {shlex.quote(str(self.run_dir))}"
            self.report(f"hub: the process that pushes has ended before its work ({log}); it {what}. By hand: {finish}")

    def _progress(self) -> tuple:
        """Steps that are pushed, and the newest one that is queued: a run of days begins a new count with each."""
        steps = outbox.read_state(self.run_dir)["steps"]
        pushed = sum(entry["state"] == "pushed" for entry in steps.values())
        return pushed, max((item.step for item in outbox.items(self.run_dir)), default=None)
