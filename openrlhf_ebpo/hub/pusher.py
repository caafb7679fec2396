"""The detached process that pushes while a training runs, and the driver's thread that restarts it.

    python -m openrlhf_ebpo.hub.pusher RUN_DIR DRIVER_PID SECONDS

The process is not a child of the training, so neither can end or delay the other. It runs until the training is over and
everything is pushed, or until SECONDS after the training's end; a running attempt then ends first (push.py limits it).
What is left stays queued for `openrlhf-ebpo hub push RUN_DIR`.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.hub import outbox
from openrlhf_ebpo.hub.push import POLL_SECONDS, drain
from openrlhf_ebpo.hub_client import hub_api, pause_after
from openrlhf_ebpo.run.run_lock import is_alive, write_holder
from openrlhf_ebpo.run.run_log import RunDirectoryError, read_run, timestamp

SLICE_SECONDS = 0.5
CHECK_SECONDS = 2.0


# In the driver


def start(run_dir: Path, seconds: float) -> None:
    """Start the process and return; its output goes to <run_dir>/hub/push.log, its environment is the caller's.

    Raises:
        UsageError: it could not start.
    """
    log = run_dir / "hub" / "push.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "openrlhf_ebpo.hub.pusher", str(run_dir), str(os.getpid()), str(seconds)]
    with open(log, "a") as output:
        started = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "HF_HUB_DISABLE_PROGRESS_BARS": "1"},
            start_new_session=True,  # what the supervisor ends, and a Ctrl-C, is the training's session
        )
    if started.returncode:
        why = "".join(log.read_text().splitlines(keepends=True)[-1:]).strip()
        raise UsageError(
            f"nothing is pushed during this training, for the process that pushes did not start: {why} ({log})"
        )


class Keeper:
    """Restarts the process that pushes when it has died before its work: at once, then after pauses that grow to ten
    minutes."""

    def __init__(
        self,
        run_dir: Path,
        seconds: float,
        start: Callable[[Path, float], None] = start,
        report: Callable[[str], None] = lambda line: print(line, flush=True),
    ):
        self.run_dir, self.seconds, self.start, self.report = run_dir, seconds, start, report
        self.starts, self.next_start = 0, 0.0
        self.stopped = threading.Event()
        self.thread = threading.Thread(target=self._watch, name="hub", daemon=True)

    def watch(self) -> None:
        """Check again and again, in a thread, until `stop`."""
        self.thread.start()

    def stop(self) -> None:
        self.stopped.set()
        if self.thread.is_alive():
            self.thread.join()

    def _watch(self) -> None:
        while not self.stopped.wait(CHECK_SECONDS):
            try:
                self.check()
            except Exception as error:  # must not stop the training
                self.report(f"warning: hub: the process that pushes is not restarted any more: {error}")
                return

    def check(self) -> None:
        """Start a process if steps wait, none is running, and the pause since the last start is over.

        Raises:
            UsageError: the disk has no locks.
        """
        now = time.monotonic()
        if now < self.next_start or outbox.is_locked(self.run_dir) or not outbox.pending(self.run_dir):
            return
        self.starts += 1
        self.next_start = now + pause_after(self.starts)
        if self.starts == 1:
            log, finish = self.run_dir / "hub" / "push.log", f"openrlhf-ebpo hub push {shlex.quote(str(self.run_dir))}"
            self.report(
                f"hub: the process that pushes has ended before its work ({log}) and is restarted. By hand: {finish}"
            )
        try:
            self.start(self.run_dir, self.seconds)
        except UsageError as error:
            self.report(f"warning: hub: {error}")


# In the process


def log(line: str) -> None:
    with contextlib.suppress(OSError):  # the disk with push.log is full
        print(timestamp(), line, flush=True)


class Expired(Exception):
    """The time limit after the training's end has passed."""


class Clock:
    """Tells when the training has ended, and when the time limit after that has passed."""

    def __init__(self, run_dir: Path, driver: psutil.Process | None, seconds: float):
        self.run_dir, self.driver, self.seconds = run_dir, driver, seconds
        self.ended: float | None = None

    def over(self) -> bool:
        """True once the training has ended: its driver is gone, or run.json says so."""
        if self.ended is None and not (self.driver and is_alive(self.driver) and _runs(self.run_dir)):
            self.ended = time.monotonic()
        return self.ended is not None

    def expired(self) -> bool:
        return self.over() and time.monotonic() - self.ended > self.seconds

    def sleep(self, seconds: float) -> None:
        """Wait, but not past the training's end, after which the next attempt comes at once.

        Raises:
            Expired: the time limit has passed.
        """
        was_over, until = self.over(), time.monotonic() + seconds
        while time.monotonic() < until and self.over() == was_over:
            if self.expired():
                raise Expired
            time.sleep(min(SLICE_SECONDS, seconds))


def _runs(run_dir: Path) -> bool:
    try:
        return (read_run(run_dir) or {}).get("status") == "running"
    except RunDirectoryError:
        return False


def main() -> None:
    run_dir, pid, seconds = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    try:
        driver = psutil.Process(pid)
    except psutil.NoSuchProcess:
        driver = None
    try:
        lock = outbox.take_lock(run_dir)  # before the fork, so that it is held when `start` returns
    except UsageError as error:
        sys.exit(str(error))
    if os.fork():
        os._exit(0)  # the child has no parent, since Ray's shutdown ends all children of the driver
    os.nice(10)
    try:
        work(run_dir, Clock(run_dir, driver, seconds), lock)
    except Expired:
        log(f"hub: time is up; steps that are left: {[item.step for item in outbox.items(run_dir)]}")


def work(run_dir: Path, clock: Clock, lock=None, report: Callable[[str], None] = log) -> None:
    """Push until the training has ended and nothing waits.

    Raises:
        Expired: the time limit has passed.
    """
    while not (lock := lock or outbox.take_lock(run_dir)):  # held by an earlier training's process or by `hub push`
        clock.sleep(POLL_SECONDS)
    with lock:
        write_holder(lock)
        drain(run_dir, hub_api(), report, attempts=float("inf"), over=clock.over, sleep=clock.sleep)


if __name__ == "__main__":
    main()
