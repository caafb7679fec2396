"""The supervisor's loop: answer the driver, watch it and its run, and end what it leaves."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection

import psutil

from openrlhf_ebpo.command import INTERRUPTED, message
from openrlhf_ebpo.errors import ReportedError
from openrlhf_ebpo.record.processes import began, is_alive, outlives_training
from openrlhf_ebpo.record.run_log import RunDirectoryError, timestamp
from openrlhf_ebpo.supervisor.claims import Claim
from openrlhf_ebpo.supervisor.driver import FORWARDED, SAVE_FIRST
from openrlhf_ebpo.supervisor.ends import (
    adopt_orphans,
    count_killed_for_memory,
    describe_death,
    end_children,
    join_names,
    list_descendants,
    reap,
    send,
)
from openrlhf_ebpo.supervisor.restarts import Restarts
from openrlhf_ebpo.supervisor.stalls import Stalls, describe_missing_step, describe_phase, duration

TICK_SECONDS = 1.0
RECORD_SECONDS = 10.0
END_SECONDS = 30.0  # for a driver that was told to end: Ray's shutdown, and the processes that do not follow it
ONE_SIGNAL_SECONDS = 1.0  # `timeout` sends its signal to the process and to the group
RAY = ("gcs_server", "raylet")


def main(channel: int, driver: int, again: Sequence[str]) -> None:
    adopt_orphans()
    sys.exit(Watch(Connection(channel), psutil.Process(driver), again).supervise())


def say(line: str) -> None:
    """Print on a line of its own, whatever a progress bar has left of the one before. Nobody may be there to read it."""
    with contextlib.suppress(OSError):
        begin = "\r\x1b[K" if sys.stderr.isatty() else "\n"
        print(f"{begin}{line}", file=sys.stderr, flush=True)


def list_ray(driver: psutil.Process) -> list[tuple[str, psutil.Process]]:
    """Name and process of the servers of a Ray that the driver has started; none if the driver is gone."""
    found = []
    with contextlib.suppress(psutil.Error):
        for process in driver.children():
            if (name := process.name()) in RAY:
                found.append((name, process))
    return found


class Watch:
    """One command: a driver, and those that are started again after it.

    Attributes:
        claim: what the driver has asked for, None before.
        end: how the driver said that it ended. stop: why it was told to end.
        asked: the signal that asked for the command's end at once; polite: the one before, which let the training save
            first, and polite_at: when it came.
    """

    def __init__(self, channel: Connection, driver: psutil.Process, again: Sequence[str]):
        self.channel, self.driver, self.again = channel, driver, again
        self.since = began(driver.pid)  # a shell that became this command (`exec`) may have left it children of its own
        self.claim: Claim | None = None
        self.restarts: Restarts | None = None
        self.asked: int | None = None
        self.polite: int | None = None
        self.polite_at = 0.0
        self.is_passed_on = False
        self._begin()
        self._listen()

    def _begin(self) -> None:
        self.killed_for_memory = count_killed_for_memory()
        self.end: dict | None = None
        self.stop: str | None = None
        self.final = False
        self.kill_at = self.next_record = 0.0
        self.ray: list[tuple[str, psutil.Process]] = []
        self.stalls: Stalls | None = None
        self.is_blind = False

    def _listen(self) -> None:
        """A signal that was ignored when the command was started (nohup) stays so."""
        for number in FORWARDED:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self.forward)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)  # blocked by driver.py

    def supervise(self) -> int:
        """Returns: the command's exit status, when it has ended."""
        while True:
            status = self.wait_for_driver()
            left = end_children(self.since)
            if left and self.claim:
                say(f"ended what the training had left running: {join_names(left)}")
            if not self.claim:
                return status if status >= 0 else self.exit_early(status)
            if self.must_restart(status) and self.restart():
                continue
            self.claim.release()
            return self.exit_status(status)

    # One driver

    def wait_for_driver(self) -> int:
        while True:
            self.channel.poll(TICK_SECONDS)
            ended = reap()
            self.answer()
            self.request_end()
            if self.driver.pid in ended:
                return ended[self.driver.pid]
            self.look_safely()

    def answer(self) -> None:
        while self.channel.poll():
            try:
                question = self.channel.recv()
            except (EOFError, OSError):  # the driver is about to end; until then poll returns at once
                time.sleep(0.05)
                return
            reply = self.open_claim(question["claim"]) if "claim" in question else self.take_end(**question["end"])
            with contextlib.suppress(OSError):
                self.channel.send(reply)

    def open_claim(self, question: dict) -> dict:
        try:
            if self.claim:
                self.claim.renew(question)
            else:
                self.claim = Claim(say=say, **question)
                self.restarts = Restarts(int(question["args"]["train"]["max_restarts"]), self.claim.start())
        except (RunDirectoryError, OSError) as error:
            return {"error": str(error)}
        args = self.claim.args
        warn, limit = float(args["logger"]["stall_minutes"]), float(args["train"]["stall_limit"])
        self.stalls = Stalls(60 * warn, 60 * limit, time.monotonic())
        self.ray = list_ray(self.driver)
        return {}

    def take_end(self, status: str, error: str | None, final: bool) -> dict:
        self.end = {"status": status, "error": error}
        self.final = self.final or final
        if status == "complete" and not self.stop and (lost := self.find_lost_folder()):
            self.stop, self.final = lost, True
        if status == "complete" and not self.stop:
            self.write_end("complete", None)
        else:
            self.kill_at = self.kill_at or time.monotonic() + END_SECONDS
        return {"stopped": self.stop}

    def write_end(self, status: str, error: str | None) -> None:
        try:
            self.claim.close(status, error)
        except (OSError, RunDirectoryError) as problem:
            say(f"warning: run.json does not say that the run is {status}: {problem}")

    # Looking

    def look_safely(self) -> None:
        """A mistake of this process must not end the training."""
        try:
            self.look()
        except Exception:
            if not self.is_blind:
                say(f"{traceback.format_exc()}warning: this training may not be watched any more")
            self.is_blind = True

    def look(self) -> None:
        now = time.monotonic()
        if self.kill_at and now >= self.kill_at:
            send(self.driver, signal.SIGKILL)
        if not self.claim:
            return
        if not self.end and not self.stop:
            if reason := self.find_lost_folder():
                self.final = True
                self.stop_driver(reason)
            elif self.stalls:
                self.look_at_ray()
                self.look_at_steps(now)
        if now >= self.next_record:
            self.next_record = now + RECORD_SECONDS
            mine = [psutil.Process(), *list_descendants(self.since)]
            self.claim.record([each for each in mine if not outlives_training(each)])

    def find_lost_folder(self) -> str | None:
        with contextlib.suppress(OSError):  # a disk that does not answer for a while
            if self.claim.is_gone():
                return f"the run directory {self.claim.run_dir} was removed or replaced while the training was at work in it"
        return None

    def look_at_ray(self) -> None:
        for name, process in self.ray:
            if not is_alive(process):
                reason = f"Ray's {name} (process {process.pid}) has died"
                self.stop_driver(reason, signal.SIGKILL)  # it would wait for the dead
                return

    def look_at_steps(self, now: float) -> None:
        if self.stop:
            return
        beat, stalls = self.claim.beat(), self.stalls
        waited = now - stalls.stepped
        if stalls.tell(beat, now):
            say(f"it goes on: step {beat.step} came after {duration(waited)}")
            self.claim.note(stalled=None)
        if stalls.limit_passed(now):
            self.stop_driver(
                f"nothing has changed for {duration(now - stalls.changed)} (--train.stall_limit); {describe_phase(beat)}"
            )
        elif stalls.is_due(now):
            what = describe_missing_step(beat, now - stalls.stepped)
            say(what)
            self.claim.note(stalled={"time": timestamp(), "step": beat and beat.step, "what": what})

    def stop_driver(self, reason: str, how: int = signal.SIGTERM) -> None:
        say(f"stopping the training: {reason}")
        self.stop, self.kill_at = reason, time.monotonic() + END_SECONDS
        send(self.driver, how)

    # Signals

    def forward(self, number: int, _frame) -> None:
        """The handler. A scheduler's first signal lets the training save (`request_end`); Ctrl-C, or a second one, ends
        it at once."""
        repeated = number == signal.SIGUSR1 or time.monotonic() - self.polite_at < ONE_SIGNAL_SECONDS
        if number not in SAVE_FIRST or (self.polite and not repeated):
            self.interrupt(number)
        elif not self.polite:
            self.polite, self.polite_at = number, time.monotonic()

    def request_end(self) -> None:
        if not self.polite or self.is_passed_on:
            return
        self.is_passed_on, name = True, signal.Signals(self.polite).name
        if self.claim and not self.end and not self.stop and self.claim.request_end(name):
            phase = describe_phase(self.claim.beat())
            say(f"{name}: saving after the current step, then ending; {phase}. A second signal ends it at once")
        else:
            self.interrupt(self.polite)

    def interrupt(self, number: int) -> None:
        self.asked = number
        self.kill_at = self.kill_at or time.monotonic() + END_SECONDS
        send(self.driver, FORWARDED[number])

    # Its end

    def exit_early(self, status: int) -> int:
        """For a driver that was killed before it claimed anything."""
        if self.asked:
            return INTERRUPTED
        say(f"error: {self.describe_death(status)}")
        return 1

    def describe_death(self, status: int) -> str:
        return describe_death(status, count_killed_for_memory() - self.killed_for_memory)

    def was_refused(self, status: int) -> bool:
        """True if the driver of a restart has found a mistake before it asked for anything; it has told the user which."""
        return not self.stalls and not self.end and status > 0

    def find_cause(self, status: int) -> tuple[str, str]:
        """Status and error for run.json."""
        if self.stop:
            return "failed", self.stop
        if self.asked and (not self.end or self.end["status"] == "interrupted"):
            return "interrupted", f"ended by {signal.Signals(self.asked).name}"
        if self.end:
            return self.end["status"], self.end["error"]
        if self.was_refused(status):
            return "failed", "it could not be started again, for the reason above"
        return "failed", self.describe_death(status)

    def must_restart(self, status: int) -> bool:
        """Write how the driver ended; True after the pause before a restart."""
        ending, error = self.find_cause(status)
        if ending == "complete":
            return False
        if not self.end or status < 0:  # or the driver has said it
            self.print_stop(error)
        may = ending == "failed" and not (self.final or self.asked or self.polite or self.was_refused(status))
        if not (may and self.restarts.is_allowed(self.claim.start())):
            self.write_end(ending, error)
            return False
        self.claim.note_restart(error or "")
        pause = self.restarts.pause()
        number = f"restart {self.restarts.in_a_row} of {self.restarts.allowed} (--train.max_restarts)"
        say(f"{number} in {duration(pause)}, from {self.restarts.last.tag or 'step 0'}")
        return self.wait_to_restart(pause)

    def print_stop(self, error: str) -> None:
        say(message(ReportedError(f"training stopped: {error}\n{self.claim.how_to_continue()}")))

    def wait_to_restart(self, seconds: float) -> bool:
        until = time.monotonic() + seconds
        while not (self.asked or self.polite) and (left := until - time.monotonic()) > 0:
            time.sleep(min(left, TICK_SECONDS))
        self.asked = self.asked or self.polite
        if self.asked:
            self.write_end("interrupted", f"ended by {signal.Signals(self.asked).name} before a restart")
        return not self.asked

    def restart(self) -> bool:
        ours, theirs = Pipe()
        self._begin()
        try:
            process = subprocess.Popen(
                [sys.executable, *self.again],
                env=self.restarts.environment(theirs.fileno()),
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        except OSError as problem:  # no memory, or no Python
            error = f"it could not be started again: {problem}"
            self.print_stop(error)
            self.write_end("failed", error)
            return False
        theirs.close()
        self.channel.close()
        self.channel, self.driver = ours, psutil.Process(process.pid)
        return True

    def exit_status(self, status: int) -> int:
        if self.end and self.end["status"] == "complete" and not self.stop:
            return max(status, 0)
        if self.asked:
            return INTERRUPTED
        return status if status > 0 and not self.stop else 1
