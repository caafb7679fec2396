"""The process that pushes while a training runs: not a child of it, so neither can end or delay the other.

    python -m openrlhf_ebpo.hub.pusher RUN_DIR DRIVER_PID SECONDS

It runs until the training is over and everything is pushed, or SECONDS have passed since the training's end; an attempt that
is running then ends first (push.py limits it). What is left stays in the outbox, for `openrlhf-ebpo hub push RUN_DIR`.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.hub import outbox
from openrlhf_ebpo.hub.push import POLL_SECONDS, drain
from openrlhf_ebpo.hub_client import hub_api, pause_after
from openrlhf_ebpo.redact import redacted_text
from openrlhf_ebpo.run.run_log import RunDirectoryError, read_run, timestamp

SLICE_SECONDS = 0.5


def log(line: str) -> None:
    with contextlib.suppress(OSError):  # the disk with push.log is full
        print(timestamp(), line, flush=True)


class Expired(Exception):
    """The time after the training's end is up."""


class Clock:
    """When the training ended, and how long to go on. One training, one Clock."""

    def __init__(self, run_dir: Path, driver: psutil.Process | None, seconds: float):
        self.run_dir, self.driver, self.seconds = run_dir, driver, seconds
        self.ended: float | None = None

    def over(self) -> bool:
        """Whether the training has ended: its driver is gone, or run.json says so."""
        if self.ended is None and not (_lives(self.driver) and _runs(self.run_dir)):
            self.ended = time.monotonic()
        return self.ended is not None

    def expired(self) -> bool:
        return self.over() and time.monotonic() - self.ended > self.seconds

    def sleep(self, seconds: float) -> None:
        """Wait, but not past the training's end (then the next attempt comes at once), nor past the last moment."""
        was_over, until = self.over(), time.monotonic() + seconds
        while time.monotonic() < until and self.over() == was_over:
            if self.expired():
                raise Expired
            time.sleep(min(SLICE_SECONDS, seconds))


def _lives(process: psutil.Process | None) -> bool:
    """A process that was killed stays as a zombie until its parent asks for it, in some containers for ever."""
    try:
        return bool(process) and process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _runs(run_dir: Path) -> bool:
    try:
        return (read_run(run_dir) or {}).get("status") == "running"
    except RunDirectoryError:
        return False


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
        os._exit(0)  # the process left belongs to nobody: Ray's shutdown ends all children of the driver
    os.nice(10)
    clock = Clock(run_dir, driver, seconds)
    try:
        work(run_dir, clock, lock)
    except Expired:
        log(f"hub: time is up; steps that are left: {[item.step for item in outbox.items(run_dir)]}")


def work(run_dir: Path, clock: Clock, lock=None, report: Callable[[str], None] = log) -> None:
    """Push until the clock says that it is over. No error ends it before: there is nobody to start it again."""
    while not (lock := lock or outbox.take_lock(run_dir)):  # of the run before this one, or of `hub push`
        clock.sleep(POLL_SECONDS)
    with lock:
        for failures in itertools.count(1):
            try:
                outbox.write_pid(lock)
                drain(run_dir, hub_api(), report, attempts=float("inf"), over=clock.over, sleep=clock.sleep)
                return
            except Expired:
                raise
            except Exception as error:  # a full disk, a damaged hub.json
                report(f"hub: {redacted_text(f'{type(error).__name__}: {error}')}; trying again")
                clock.sleep(pause_after(failures))


if __name__ == "__main__":
    main()
