"""The supervisor's loop: answer the driver, watch it and its run, and end what it leaves."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Sequence

from openrlhf_ebpo.command import INTERRUPTED, message
from openrlhf_ebpo.errors import ReportedError
from openrlhf_ebpo.record.processes import Process, below, find, outlives_training
from openrlhf_ebpo.record.run_log import RunDirectoryError, timestamp
from openrlhf_ebpo.supervisor.channel import Channel
from openrlhf_ebpo.supervisor.claims import Claim
from openrlhf_ebpo.supervisor.ends import adopt_orphans, end_children, end_orphans, names, reap, send
from openrlhf_ebpo.supervisor.restarts import Restarts
from openrlhf_ebpo.supervisor.signals import FORWARDED, listen, say
from openrlhf_ebpo.supervisor.stalls import Stalls, doing, duration, no_step
from openrlhf_ebpo.supervisor.words import death, full_disk, times_killed_for_memory

TICK_SECONDS = 1.0
RECORD_SECONDS = 10.0
END_SECONDS = 30.0  # for a driver that was told to end: Ray's shutdown, and the processes that do not follow it
RAY = ("gcs_server", "raylet")


def main(channel: int, driver: int, again: Sequence[str]) -> None:
    adopt_orphans()
    sys.exit(Watch(Channel(socket.socket(fileno=channel)), find(driver), again).supervise())


class Watch:
    """One command: a driver, and those that are started again after it.

    Attributes:
        claim: what the driver has asked for, None before.
        end: what it said of its end. stop: why it was told to end. asked: the signal that asked for the command's end.
    """

    def __init__(self, channel: Channel, driver: Process, again: Sequence[str]):
        self.channel, self.driver, self.again = channel, driver, again
        self.since = driver.began  # a shell that became this command (`exec`) may have left it children of its own
        self.claim: Claim | None = None
        self.restarts: Restarts | None = None
        self.asked: int | None = None
        self._begin()
        self.wakeup = listen(self.forward)

    def _begin(self) -> None:
        self.killed_for_memory = times_killed_for_memory()
        self.end: dict | None = None
        self.stop: str | None = None
        self.final = False
        self.kill_at = self.next_record = 0.0
        self.ray: list[Process] = []
        self.stalls: Stalls | None = None
        self.disk_is_full = self.is_blind = False

    def supervise(self) -> int:
        """Until the command has ended; its exit status."""
        while True:
            status = self.wait_for_driver()
            left = end_children(self.since)
            if left and self.claim:
                say(f"ended what the training had left running: {names(left)}")
            if not self.claim:
                return status if status >= 0 else self.died_before_the_claim(status)
            if self.goes_on(status) and self.is_started_again():
                continue
            self.claim.release()
            return self.exit_status(status)

    # One driver

    def wait_for_driver(self) -> int:
        while True:
            self.wait(TICK_SECONDS)
            ended = reap()
            self.answer()
            if self.driver.pid in ended:
                return ended[self.driver.pid]
            self.look_safely()

    def wait(self, seconds: float) -> None:
        ready, _, _ = select.select([self.channel, self.wakeup], [], [], seconds)
        if self.wakeup in ready:
            with contextlib.suppress(BlockingIOError):
                self.wakeup.recv(4096)

    def answer(self) -> None:
        while select.select([self.channel], [], [], 0)[0]:
            try:
                question = self.channel.receive()
                self.channel.send(self.replied(question))
            except (EOFError, TimeoutError, ValueError):
                self.wait_for_its_end()
                return

    def wait_for_its_end(self) -> None:
        """A driver that has closed its end of the channel is about to end; select would return at once until then."""
        time.sleep(0.05)

    def replied(self, question: dict) -> dict:
        if "claim" in question:
            return self.claimed(question["claim"])
        self.ended(**question["end"])
        return {"stopped": self.stop}

    def claimed(self, question: dict) -> dict:
        try:
            if self.claim:
                self.claim.again(question)
            else:
                self.claim = Claim(say=say, **question)
                self.restarts = Restarts(int(question["args"]["train"]["max_restarts"]), self.claim.start())
        except (RunDirectoryError, OSError) as error:
            return {"error": str(error)}
        args = self.claim.args
        warn, limit = float(args["logger"]["stall_minutes"]), float(args["train"]["stall_limit"])
        self.stalls = Stalls(60 * warn, 60 * limit, time.monotonic())
        self.ray = [each for each in below(self.driver.pid) if each.parent == self.driver.pid and each.name in RAY]
        return {}

    def ended(self, status: str, error: str | None, final: bool) -> None:
        self.end = {"status": status, "error": error}
        self.final = self.final or final
        if status == "complete" and not self.stop and (lost := self.lost_folder()):
            self.stop, self.final = lost, True
        if status == "complete" and not self.stop:
            self.last_word("complete", None)
        else:
            self.kill_at = self.kill_at or time.monotonic() + END_SECONDS

    def last_word(self, status: str, error: str | None) -> None:
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
        end_orphans(self.driver.pid)
        if self.claim and not self.end and not self.stop:
            if reason := self.lost_folder():
                self.final = True
                self.stop_driver(reason)
            if self.stalls and not self.stop:
                self.look_at_ray()
                self.look_at_steps(now)
        if self.claim and now >= self.next_record:
            self.next_record = now + RECORD_SECONDS
            self.look_at_disk()
            mine = [find(os.getpid()), *below(os.getpid(), self.since)]
            self.claim.record([each for each in mine if not outlives_training(each)])

    def lost_folder(self) -> str | None:
        with contextlib.suppress(OSError):  # a disk that does not answer for a while
            if self.claim.is_gone():
                return f"the run directory {self.claim.run_dir} was removed or replaced while the training was at work in it"
        return None

    def look_at_ray(self) -> None:
        for process in self.ray:
            if not process.lives():
                reason = f"Ray's {process.name} (process {process.pid}) has died"
                self.stop_driver(reason, signal.SIGKILL)  # it would wait for the dead
                return

    def look_at_steps(self, now: float) -> None:
        beat, stalls = self.claim.beat(), self.stalls
        waited = now - stalls.stepped
        if stalls.tell(beat, now):
            say(f"it goes on: step {beat.step} came after {duration(waited)}")
            self.claim.note(stalled=None)
        if stalls.limit_passed(now):
            self.stop_driver(
                f"nothing has changed for {duration(now - stalls.changed)} (--train.stall_limit); {doing(beat)}"
            )
        elif stalls.is_due(now):
            words = no_step(beat, now - stalls.stepped)
            say(words)
            self.claim.note(stalled={"time": timestamp(), "step": beat and beat.step, "what": words})

    def look_at_disk(self) -> None:
        warning = full_disk(self.claim.run_dir)
        if warning and not self.disk_is_full:
            say(warning)
        self.disk_is_full = bool(warning)

    def stop_driver(self, reason: str, how: int = signal.SIGTERM) -> None:
        say(f"stopping the training: {reason}")
        self.stop, self.kill_at = reason, time.monotonic() + END_SECONDS
        send(self.driver, how)

    def forward(self, number: int) -> None:
        """What asks this process to end asks the driver."""
        self.asked = number
        self.kill_at = self.kill_at or time.monotonic() + END_SECONDS
        send(self.driver, FORWARDED[number])

    # Its end

    def died_before_the_claim(self, status: int) -> int:
        if self.asked:
            return INTERRUPTED
        say(f"error: {death(status, times_killed_for_memory() - self.killed_for_memory)}")
        return 1

    def was_refused(self, status: int) -> bool:
        """Whether the driver of a restart has found a mistake before it said anything here; it has told the user which."""
        return not self.stalls and not self.end and status > 0

    def cause(self, status: int) -> tuple[str, str]:
        """Status and error for run.json."""
        if self.stop:
            return "failed", self.stop
        if self.end:
            return self.end["status"], self.end["error"]
        if self.asked:
            return "interrupted", f"ended by {signal.Signals(self.asked).name}"
        if self.was_refused(status):
            return "failed", "it could not be started again, for the reason above"
        return "failed", death(status, times_killed_for_memory() - self.killed_for_memory)

    def goes_on(self, status: int) -> bool:
        """Write the last word; True where the training is to be started again."""
        ending, error = self.cause(status)
        if ending == "complete":
            return False
        if not self.end or status < 0:  # or the driver has said it
            say(message(ReportedError(f"training stopped: {error}\n{self.claim.how_to_continue()}")))
        may = ending == "failed" and not (self.final or self.asked or self.was_refused(status))
        if not (may and self.restarts.is_allowed(self.claim.start())):
            self.last_word(ending, error)
            return False
        self.claim.note_restart(error or "")
        pause = self.restarts.pause()
        number = f"restart {self.restarts.in_a_row} of {self.restarts.allowed} (--train.max_restarts)"
        say(f"{number} in {duration(pause)}, from {self.restarts.last.tag or 'step 0'}")
        return self.paused(pause)

    def paused(self, seconds: float) -> bool:
        until = time.monotonic() + seconds
        while not self.asked and (left := until - time.monotonic()) > 0:
            select.select([self.wakeup], [], [], left)
        if self.asked:
            self.last_word("interrupted", f"ended by {signal.Signals(self.asked).name} before a restart")
        return not self.asked

    def is_started_again(self) -> bool:
        try:
            self.start_again()
        except OSError as problem:  # no memory, or no Python
            error = f"it could not be started again: {problem}"
            say(message(ReportedError(f"training stopped: {error}\n{self.claim.how_to_continue()}")))
            self.last_word("failed", error)
            return False
        return True

    def start_again(self) -> None:
        ours, theirs = socket.socketpair()
        self._begin()
        process = subprocess.Popen(
            [sys.executable, *self.again],
            env=self.restarts.environment(theirs.fileno()),
            pass_fds=[theirs.fileno()],
            start_new_session=True,
        )
        theirs.close()
        self.channel.end.close()
        self.channel, self.driver = Channel(ours), find(process.pid)

    def exit_status(self, status: int) -> int:
        if self.end and self.end["status"] == "complete" and not self.stop:
            return max(status, 0)
        if self.asked:
            return INTERRUPTED
        return status if status > 0 and not self.stop else 1
