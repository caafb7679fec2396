"""The supervisor: the process that the user started. It forks the driver, watches it and its run, kills leftover
processes, records how the run ended, and forks another driver after a failure."""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import signal
import socket
import sys
import time
from pathlib import Path
from typing import IO

import psutil

from openrlhf_ebpo.command import INTERRUPTED, PAUSED, message
from openrlhf_ebpo.errors import ReportedError
from openrlhf_ebpo.files import write_json
from openrlhf_ebpo.redact import redacted_text
from openrlhf_ebpo.run import heartbeat, run_lock
from openrlhf_ebpo.run.heartbeat import LOADING, STARTING, read_beat
from openrlhf_ebpo.run.run_lock import is_alive
from openrlhf_ebpo.run.run_log import LOCK, RunDirectoryError, read_run, timestamp
from openrlhf_ebpo.run.run_settings import RunSettings
from openrlhf_ebpo.train.supervisor.driver_exit import count_killed_for_memory, describe_death, end_session, join_names
from openrlhf_ebpo.train.supervisor.link import SupervisorLink, become_driver, record_end
from openrlhf_ebpo.train.supervisor.restarts import Restarts, SupervisionSettings, find_start, how_to_continue
from openrlhf_ebpo.train.supervisor.stalls import Stalls, describe_missing_step, describe_phase, duration

TICK_SECONDS = 0.5
END_SECONDS = 30.0  # for a driver that was told to end, and Ray's shutdown
ONE_SIGNAL_SECONDS = 1.0  # `timeout` sends its signal to the process and to the group
MAX_MESSAGE_BYTES = 1 << 20
RAY = ("gcs_server", "raylet")
SAVE_FIRST = (signal.SIGUSR1, signal.SIGTERM, signal.SIGHUP)  # a scheduler's: save after the current step, then end
SIGNALS = (signal.SIGINT, *SAVE_FIRST)


def under_supervision() -> SupervisorLink:
    """Fork the driver and return in it. The process that the user started never returns: it becomes the supervisor.

    Called before torch or any threads are there, so that the supervisor stays light and can fork again.
    """
    supervisor = Supervisor()
    while True:
        if link := supervisor.fork():
            return link
        if (status := supervisor.supervise()) is not None:
            sys.exit(status)


def print_line(line: str) -> None:
    """Print a line, whatever a progress bar has left of the one before. The reader may be gone, and a closed
    stderr is None: then it goes to stdout."""
    with contextlib.suppress(OSError):
        begin = "\r\x1b[K" if sys.stderr and sys.stderr.isatty() else "\n"
        print(f"{begin}{line}", file=sys.stderr, flush=True)


class Supervisor:
    """One command: a driver, and those that are started again after it.

    Attributes:
        run_dir: the run that a driver has claimed, None before. locks: the driver's, held until the command ends.
        attempts: what the checkpoints of its drivers are marked with.
        stalls: None until this driver has claimed its run. ray: processes of a Ray that it has started.
        end: how the driver said that it ended, or why it was stopped.
        requested: the signal that asked for the command's end at once. graceful_signal, graceful_at: the one before,
            which let the training save first, and when it came.
    """

    def __init__(self):
        self.run_dir: Path | None = None
        self.locks: list[IO] = []
        self.attempts: set[str] = set()
        self.restarts: Restarts | None = None
        self.requested: int | None = None
        self.graceful_signal: int | None = None
        self.graceful_at = self.touch_at = 0.0
        self.is_save_requested = self.is_interrupted = False
        for number in SIGNALS:  # one that was ignored when the command was started (nohup) stays so
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self.take_signal)

    def fork(self) -> SupervisorLink | None:
        """Start a driver. Returns in it its link to this process, and None here."""
        self.channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.killed_for_memory, pid = count_killed_for_memory(), os.getpid()
        self.end: dict | None = None
        self.stalls: Stalls | None = None
        self.ray: dict[psutil.Process, str] = {}
        self.kill_at = 0.0
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # those of a driver wait until it has handlers of its own
        try:
            self.driver = os.fork()
        except OSError as problem:  # no memory
            self.close("failed", f"it could not be started again: {problem}")
            raise
        if not self.driver:
            become_driver(pid)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        if self.driver:
            theirs.close()
            return None
        self.channel.close()
        return SupervisorLink(theirs, self.restarts and self.restarts.last.saved_by is not None, self.locks)

    def supervise(self) -> int | None:
        """Watch the driver until it has ended. Returns the command's exit status; None to start another."""
        status = self.wait_for_driver()
        left = end_session(self.driver)
        if not self.run_dir:
            if status < 0 and not (self.requested or self.end):  # else the cause is on screen
                print_line(f"error: {self.describe_death(status)}")
            return status if status >= 0 else self.exit_status("failed", status)
        if left:
            print_line(f"ended what the training had left running: {join_names(left)}")
        ending, error = self.find_cause(status)
        is_refused = not self.stalls and self.end and status > 0
        if ending != "complete" and (not self.end or status < 0 or is_refused):  # else the driver has said it
            what = "it could not be started again, for the reason above" if is_refused else error
            _, how = how_to_continue(self.run, self.supervision.save_steps)
            print_line(message(ReportedError(f"training stopped: {what}\n{how}")))
        final = (self.end and self.end["final"]) or self.requested or self.graceful_signal
        may_restart = ending == "failed" and not final and self.restarts
        if may_restart and self.restarts.is_allowed(find_start(self.run, self.attempts)):
            self.announce_restart(error)
            if not (number := self.wait_for_restart()):
                return None
            self.requested = number
            ending, error = "interrupted", f"ended by {signal.Signals(number).name} before a restart"
        self.close(ending, error)
        return self.exit_status(ending, status)

    # One driver

    def wait_for_driver(self) -> int:
        """Returns: its exit status, negative for a signal."""
        while not self.has_ended():
            self.receive(TICK_SECONDS)
            self.act_on_signals()
            self.check(time.monotonic())
        self.receive(0)
        self.act_on_signals()
        return os.waitstatus_to_exitcode(os.waitpid(self.driver, 0)[1])

    def has_ended(self) -> bool:
        return os.waitid(os.P_PID, self.driver, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def receive(self, seconds: float) -> None:
        """Take what the driver has sent; wait so long for the first message."""
        while select.select([self.channel], [], [], seconds)[0]:
            sent, fds, *_ = socket.recv_fds(self.channel, MAX_MESSAGE_BYTES, 2, socket.MSG_CMSG_CLOEXEC)
            if not sent:  # the driver is about to end; until then select returns at once
                time.sleep(0.05)
                return
            kind, fields = pickle.loads(sent)
            if kind == "claim":
                self.locks += [os.fdopen(fd, "r+") for fd in fds]
                self.take_claim(**fields)
            elif not self.end:
                self.end = fields
                if fields["status"] != "complete":  # it may push to the Hub for long
                    self.kill_at = self.kill_at or time.monotonic() + END_SECONDS
            seconds = 0

    def take_claim(self, run: RunSettings, supervision: SupervisionSettings, attempt: str) -> None:
        for lock in self.locks:
            run_lock.write_holder(lock, session=self.driver)
        self.run, self.run_dir, self.supervision = run, run.run_dir, supervision
        self.attempts.add(attempt)
        self.stalls = Stalls(60 * supervision.stall_minutes, 60 * supervision.stall_limit, time.monotonic())
        with contextlib.suppress(psutil.Error):
            children = psutil.Process(self.driver).children()
            self.ray = {process: name for process in children if (name := process.name()) in RAY}
        with contextlib.suppress(OSError):  # without it, nothing is restarted
            self.restarts = self.restarts or Restarts(supervision.max_restarts, find_start(run, self.attempts))

    # Checks

    def check(self, now: float) -> None:
        if self.kill_at and now >= self.kill_at:
            os.kill(self.driver, signal.SIGKILL)
        self.touch_lock(now)
        if self.stalls and not self.end:
            dead = next((process for process in self.ray if not is_alive(process)), None)
            if dead and not self.has_ended():  # Ray ends with its driver
                self.receive(0)
                self.stop_driver(f"Ray's {self.ray[dead]} (process {dead.pid}) has died")
            self.check_steps(now)

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
        if not self.end:
            print_line(f"stopping the training: {reason}")
            self.end = {"status": "failed", "error": reason, "final": False}
            os.kill(self.driver, signal.SIGKILL)

    def note(self, **fields) -> None:
        """Set fields of run.json, None to remove one; best effort."""
        with contextlib.suppress(OSError, RunDirectoryError):
            if run := read_run(self.run_dir):
                removed = [name for name, value in fields.items() if value is None]
                run = {name: value for name, value in {**run, **fields}.items() if name not in removed}
                write_json(self.run_dir / "run.json", run)

    # Signals

    def take_signal(self, number: int, _frame) -> None:
        """Handle a signal. A scheduler's first one lets the training save; Ctrl-C, or a second one that is not SIGUSR1,
        ends it at once."""
        repeated = number == signal.SIGUSR1 or time.monotonic() - self.graceful_at < ONE_SIGNAL_SECONDS
        if number not in SAVE_FIRST or (self.graceful_signal and not repeated):
            self.requested = self.requested or number
        elif not self.graceful_signal:
            self.graceful_signal, self.graceful_at = number, time.monotonic()

    def act_on_signals(self) -> None:
        if self.graceful_signal and not self.is_save_requested:
            self.is_save_requested = True
            if not self.requests_save(signal.Signals(self.graceful_signal).name):
                self.requested = self.requested or self.graceful_signal
        if self.requested and not self.is_interrupted:
            self.is_interrupted = True
            self.kill_at = self.kill_at or time.monotonic() + END_SECONDS
            os.kill(self.driver, signal.SIGTERM)

    def requests_save(self, name: str) -> bool:
        """Ask the training to save after its current step and to end. Returns False where that would save nothing."""
        beat = read_beat(self.run_dir) if self.stalls and not self.end else None
        if not beat or beat.phase in (STARTING, LOADING) or not self.supervision.saves:
            return False
        try:
            (self.run_dir / heartbeat.END_FILE).write_text(name)
        except OSError:  # a full disk
            return False
        print_line(
            f"{name}: saving after the current step, then ending; {describe_phase(beat)}. Ctrl-C or another SIGTERM "
            f"ends it at once"
        )
        return True

    # Its end

    def describe_death(self, status: int) -> str:
        return describe_death(status, count_killed_for_memory() - self.killed_for_memory)

    def find_cause(self, status: int) -> tuple[str, str | None]:
        """Returns: status and error for run.json."""
        if self.requested and (not self.end or self.end["status"] == "interrupted"):
            return "interrupted", f"ended by {signal.Signals(self.requested).name}"
        if self.end:
            return self.end["status"], self.end["error"]
        return "failed", self.describe_death(status)

    def close(self, status: str, error: str | None) -> None:
        """Record the end, where the driver has not, and release the locks."""
        if self.run_dir:
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
        return status if status > 0 else 1

    # Another driver

    def announce_restart(self, cause: str | None) -> None:
        start = self.restarts.last.tag
        row = {"time": timestamp(), "cause": redacted_text(cause or ""), "from": start}
        with contextlib.suppress(RunDirectoryError):
            rows = (read_run(self.run_dir) or {}).get("restarts", [])
            self.note(status="running", error=None, ended=None, stalled=None, restarts=[*rows, row])
        number = f"restart {self.restarts.in_a_row} of {self.restarts.allowed} (--train.max_restarts)"
        print_line(f"{number} in {duration(self.restarts.pause())}, from {start or 'step 0'}")

    def wait_for_restart(self) -> int | None:
        """Wait for the pause before a restart. Returns the signal that ended it."""
        until = time.monotonic() + self.restarts.pause()
        while not (number := self.requested or self.graceful_signal) and (now := time.monotonic()) < until:
            self.touch_lock(now)
            time.sleep(min(until - now, TICK_SECONDS))
        return number
