"""The supervisor's loop: watch the driver and its run, kill leftover processes, record how it ended, and restart it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from multiprocessing import Pipe, reduction
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO

import psutil

from openrlhf_ebpo.command import INTERRUPTED, PAUSED, message
from openrlhf_ebpo.errors import ReportedError
from openrlhf_ebpo.files import write_json
from openrlhf_ebpo.redact import redacted_text
from openrlhf_ebpo.run import heartbeat, run_lock
from openrlhf_ebpo.run.heartbeat import LOADING, STARTING, read_beat
from openrlhf_ebpo.run.run_log import LOCK, RunDirectoryError, read_run, timestamp
from openrlhf_ebpo.run.run_settings import RunSettings
from openrlhf_ebpo.train.supervisor.driver import FORWARDED, SAVE_FIRST, record_end
from openrlhf_ebpo.train.supervisor.driver_exit import (
    count_killed_for_memory,
    describe_death,
    end_session,
    is_alive,
    join_names,
)
from openrlhf_ebpo.train.supervisor.restarts import Restarts, Start, SupervisionSettings, find_start, how_to_continue
from openrlhf_ebpo.train.supervisor.stalls import Stalls, describe_missing_step, describe_phase, duration

TICK_SECONDS = 1.0
END_SECONDS = 30.0  # for a driver that was told to end, and Ray's shutdown
RAY_SECONDS = 5.0  # Ray ends with the driver that started it, whose status may come later
ONE_SIGNAL_SECONDS = 1.0  # `timeout` sends its signal to the process and to the group
RAY = ("gcs_server", "raylet")


def main(channel: int, driver: int, restart_command: Sequence[str]) -> None:
    sys.exit(Watch(Connection(channel), driver, restart_command).supervise())


def print_line(line: str) -> None:
    """Print a line, whatever a progress bar has left of the one before. The reader may be gone, and a closed
    stderr is None: then it goes to stdout."""
    with contextlib.suppress(OSError):
        begin = "\r\x1b[K" if sys.stderr and sys.stderr.isatty() else "\n"
        print(f"{begin}{line}", file=sys.stderr, flush=True)


class Watch:
    """One command: a driver, and those that are started again after it.

    Attributes:
        run_dir: the run that a driver has claimed, None before. attempts: what the checkpoints of its drivers are
            marked with.
        stalls: None until this driver has claimed its run.
        end: how the driver said that it ended. stop: why it was killed. lost_ray: which process of Ray died before it,
            and when that was seen.
        requested: the signal that asked for the command's end at once. graceful_signal, graceful_at: the one before,
            which let the training save first, and when it came.
    """

    def __init__(self, channel: Connection, driver: int, restart_command: Sequence[str]):
        self.restart_command = restart_command
        self.run_dir: Path | None = None
        self.locks: list[IO] = []
        self.attempts: set[str] = set()
        self.restarts: Restarts | None = None
        self.requested: int | None = None
        self.graceful_signal: int | None = None
        self.graceful_at = 0.0
        self.is_forwarded = False
        self._begin(channel, driver)
        for number in FORWARDED:  # one that was ignored when the command was started (nohup) stays so
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self.forward)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)  # blocked by driver.py

    def _begin(self, channel: Connection, driver: int) -> None:
        self.channel, self.driver = channel, psutil.Process(driver)
        self.killed_for_memory = count_killed_for_memory()
        self.end: dict | None = None
        self.stop: str | None = None
        self.lost_ray: tuple[str, float] | None = None
        self.stalls: Stalls | None = None
        self.ray: dict[psutil.Process, str] = {}
        self.kill_at = self.touch_at = 0.0

    def supervise(self) -> int:
        """Returns: the command's exit status, when it has ended."""
        while True:
            status = self.wait_for_driver()
            if self.lost_ray and status >= 0 and (not self.end or self.end["status"] == "failed"):
                self.stop = self.lost_ray[0]
            left = end_session(self.driver.pid)
            if not self.run_dir:
                if status < 0 and not (self.requested or self.end):  # else the cause is on screen
                    print_line(f"error: {self.describe_death(status)}")
                return status if status >= 0 else self.exit_status("failed", status)
            if left:
                print_line(f"ended what the training had left running: {join_names(left)}")
            ending, error = self.find_cause(status)
            if ending != "complete" and (not self.end or self.stop or status < 0):  # or the driver has said it
                self.print_stop(error)
            if self.may_restart(ending, status):
                ending, error = self.restart(error)
            if ending:
                self.close(ending, error)
                return self.exit_status(ending, status)

    # One driver

    def wait_for_driver(self) -> int:
        """Returns: its exit status, negative for a signal."""
        while True:
            ended, status = os.waitpid(self.driver.pid, os.WNOHANG)
            self.receive(0 if ended else TICK_SECONDS)
            if self.graceful_signal and not self.is_forwarded:
                self.request_end()
            if ended:
                return os.waitstatus_to_exitcode(status)
            self.check(time.monotonic())

    def receive(self, seconds: float) -> None:
        while self.channel.poll(seconds):
            try:
                received = self.channel.recv()
                if "claim" in received:
                    self.take_claim(**received["claim"])
                else:
                    self.take_end(received["end"])
            except (EOFError, OSError):  # the driver is about to end; until then poll returns at once
                time.sleep(0.05)
                return
            seconds = 0

    def take_claim(self, run: RunSettings, supervision: SupervisionSettings, attempt: str, locks: int) -> None:
        self.locks += [os.fdopen(reduction.recv_handle(self.channel), "r+") for _ in range(locks)]
        for lock in self.locks:
            run_lock.write_holder(lock, session=self.driver.pid)
        self.run, self.run_dir, self.supervision = run, run.run_dir, supervision
        self.attempts.add(attempt)
        self.stalls = Stalls(60 * supervision.stall_minutes, 60 * supervision.stall_limit, time.monotonic())
        with contextlib.suppress(psutil.Error):  # a Ray that it has started
            self.ray = {process: name for process in self.driver.children() if (name := process.name()) in RAY}
        self.restarts = self.restarts or Restarts(supervision.max_restarts, self.find_start())

    def take_end(self, end: dict) -> None:
        self.end = end
        if end["status"] != "complete":  # it may push to the Hub for long
            self.kill_at = self.kill_at or time.monotonic() + END_SECONDS

    # Checks

    def check(self, now: float) -> None:
        if self.kill_at and now >= self.kill_at:
            self.kill()
        self.touch_lock(now)
        if self.stalls and not self.end and not self.stop:
            self.check_steps(now)
            self.check_ray(now)

    def check_ray(self, now: float) -> None:
        dead = next((process for process in self.ray if not is_alive(process)), None)
        if dead and not self.lost_ray:
            self.lost_ray = f"Ray's {self.ray[dead]} (process {dead.pid}) has died", now
        elif dead and now - self.lost_ray[1] >= RAY_SECONDS:
            self.stop_driver(self.lost_ray[0])

    def touch_lock(self, now: float) -> None:
        if self.run_dir and now >= self.touch_at:
            self.touch_at = now + run_lock.BEAT_SECONDS
            with contextlib.suppress(OSError):
                os.utime(self.run_dir / LOCK)

    def check_steps(self, now: float) -> None:
        beat, stalls = read_beat(self.run_dir), self.stalls
        waited = now - stalls.stepped
        if stalls.update(beat, now):
            print_line(f"no longer stalled: step {beat.step} came after {duration(waited)}")
            self.note(stalled=None)
        if stalls.limit_passed(now):
            unchanged = duration(now - stalls.changed)
            self.stop_driver(f"nothing has changed for {unchanged} (--train.stall_limit); {describe_phase(beat)}")
        elif stalls.is_due(now):
            what = describe_missing_step(beat, now - stalls.stepped)
            print_line(what)
            self.note(stalled={"time": timestamp(), "step": beat and beat.step, "what": what})

    def stop_driver(self, reason: str) -> None:
        """Kill a driver that would wait for what does not come."""
        if not self.stop:
            print_line(f"stopping the training: {reason}")
            self.stop = reason
            self.kill()

    def kill(self, number: int = signal.SIGKILL) -> None:
        with contextlib.suppress(psutil.Error):
            self.driver.send_signal(number)

    def note(self, **fields) -> None:
        """Set fields of run.json, None to remove one; best effort."""
        with contextlib.suppress(OSError, RunDirectoryError):
            if run := read_run(self.run_dir):
                run |= fields
                write_json(
                    self.run_dir / "run.json", {k: v for k, v in run.items() if v is not None or k not in fields}
                )

    # Signals

    def forward(self, number: int, _frame) -> None:
        """Handle a signal. A scheduler's first one lets the training save (`request_end`); Ctrl-C, or a second one
        that is not SIGUSR1, ends it at once."""
        repeated = number == signal.SIGUSR1 or time.monotonic() - self.graceful_at < ONE_SIGNAL_SECONDS
        if number not in SAVE_FIRST or (self.graceful_signal and not repeated):
            self.interrupt(number)
        elif not self.graceful_signal:
            self.graceful_signal, self.graceful_at = number, time.monotonic()

    def request_end(self) -> None:
        """Ask the training to save after its current step and to end; end it at once where that would save nothing."""
        self.is_forwarded, name = True, signal.Signals(self.graceful_signal).name
        beat = read_beat(self.run_dir) if self.stalls and not self.end and not self.stop else None
        if beat and beat.phase not in (STARTING, LOADING) and self.supervision.saves:
            with contextlib.suppress(OSError):  # a full disk
                (self.run_dir / heartbeat.END_FILE).write_text(name)
                phase = describe_phase(beat)
                print_line(
                    f"{name}: saving after the current step, then ending; {phase}. Ctrl-C or another SIGTERM "
                    f"ends it at once"
                )
                return
        self.interrupt(self.graceful_signal)

    def interrupt(self, number: int) -> None:
        self.requested = number
        self.kill_at = self.kill_at or time.monotonic() + END_SECONDS
        self.kill(FORWARDED[number])

    # Its end

    def describe_death(self, status: int) -> str:
        return describe_death(status, count_killed_for_memory() - self.killed_for_memory)

    def was_refused(self, status: int) -> bool:
        """True if the driver of a restart has found a mistake before it started anything; the driver has printed it."""
        return not self.stalls and not self.end and status > 0

    def find_cause(self, status: int) -> tuple[str, str | None]:
        """Returns: status and error for run.json."""
        if self.stop:
            return "failed", self.stop
        if self.requested and (not self.end or self.end["status"] == "interrupted"):
            return "interrupted", f"ended by {signal.Signals(self.requested).name}"
        if self.end:
            return self.end["status"], self.end["error"]
        if self.was_refused(status):
            return "failed", "it could not be started again, for the reason above"
        return "failed", self.describe_death(status)

    def print_stop(self, error: str) -> None:
        _, how = how_to_continue(self.run, self.supervision.save_steps)
        print_line(message(ReportedError(f"training stopped: {error}\n{how}")))

    def close(self, status: str, error: str | None) -> None:
        """Record the end, where the driver has not, and release the locks."""
        self.note(stalled=None)
        record_end(self.run_dir, status, error)
        heartbeat.forget_end_request(self.run_dir)
        for lock in self.locks:
            run_lock.release(lock)

    def exit_status(self, ending: str, status: int) -> int:
        if ending == "complete":
            return max(status, 0)
        if ending == "paused":  # its driver may have failed to print that, to a terminal that is closed
            return PAUSED
        if self.requested:
            return INTERRUPTED
        return status if status > 0 and not self.stop else 1

    # Another driver

    def find_start(self) -> Start:
        return find_start(self.run, self.attempts)

    def may_restart(self, ending: str, status: int) -> bool:
        final = (self.end or {}).get("final") or self.requested or self.graceful_signal or self.was_refused(status)
        if ending != "failed" or final or not self.restarts:  # None: where checkpoints lie could not be read
            return False
        return self.restarts.is_allowed(self.find_start())

    def restart(self, cause: str | None) -> tuple[str | None, str | None]:
        """Start the driver again after a pause.

        Returns:
            Status and error for run.json where it was not started, (None, None) where it was.
        """
        start, pause = self.restarts.last.tag, self.restarts.pause()
        row = {"time": timestamp(), "cause": redacted_text(cause or ""), "from": start}
        with contextlib.suppress(RunDirectoryError):
            rows = (read_run(self.run_dir) or {}).get("restarts", [])
            self.note(status="running", error=None, ended=None, stalled=None, restarts=[*rows, row])
        number = f"restart {self.restarts.in_a_row} of {self.restarts.allowed} (--train.max_restarts)"
        print_line(f"{number} in {duration(pause)}, from {start or 'step 0'}")
        until = time.monotonic() + pause
        while not (self.requested or self.graceful_signal) and (left := until - time.monotonic()) > 0:
            self.touch_lock(time.monotonic())
            time.sleep(min(left, TICK_SECONDS))
        if self.requested or self.graceful_signal:
            self.requested = self.requested or self.graceful_signal
            return "interrupted", f"ended by {signal.Signals(self.requested).name} before a restart"
        ours, theirs = Pipe()
        try:
            self.popen = subprocess.Popen(  # kept: a Popen that goes reaps its process, which wait_for_driver does
                [sys.executable, *self.restart_command],
                env=self.restarts.environment(theirs.fileno()),
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        except OSError as problem:  # no memory, or no Python
            error = f"it could not be started again: {problem}"
            self.print_stop(error)
            return "failed", error
        theirs.close()
        self.channel.close()
        self._begin(ours, self.popen.pid)
        return None, None
