"""The driver's side: it forks off the command's process, which becomes the supervisor, and asks it for what must outlive it."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import warnings
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path

from openrlhf_ebpo.command import interrupt_once
from openrlhf_ebpo.errors import ReportedError
from openrlhf_ebpo.record.run_log import RunDirectoryError, close_run
from openrlhf_ebpo.supervisor import restarts
from openrlhf_ebpo.supervisor.ends import adopt_orphans, end_with_parent

SUPERVISOR = str(Path(__file__).with_name("__main__.py"))
SAVE_FIRST = (signal.SIGUSR1, signal.SIGTERM, signal.SIGHUP)  # a scheduler's: save after the current step, then end
FORWARDED = {signal.SIGINT: signal.SIGINT, **dict.fromkeys(SAVE_FIRST, signal.SIGTERM)}
ANSWER_SECONDS = 180.0  # a claim may watch a foreign lock, and end what an earlier training has left


def under_supervision(again: Sequence[str]) -> Supervisor:
    """Returns in the driver: a new process, or this one where a supervisor has started it. The process that the user
    started never returns from here: it becomes the supervisor, with its id, its output and its exit status.

    Called before anything has threads, and after everything is checked that can be checked at once.

    Args:
        again: what follows `python` in a command that starts the driver once more.
    """
    if fd := os.environ.pop(restarts.CHANNEL, None):
        _ignore_the_schedulers_signal()
        end_with_parent(os.getppid())
        return Supervisor(Connection(int(fd)), restarted=True)
    ours, theirs = multiprocessing.Pipe()
    adopt_orphans()
    print(end="", flush=True)  # either may be closed, and None
    print(end="", flush=True, file=sys.stderr)
    parent = os.getpid()
    driver = _fork()
    if driver:
        _become_supervisor(theirs, driver, again)
    theirs.close()
    os.setsid()  # a Ctrl-C reaches it once, by the supervisor
    _ignore_the_schedulers_signal()
    interrupt_once()
    end_with_parent(parent)
    return Supervisor(ours)


def _ignore_the_schedulers_signal() -> None:
    """Here and in all processes that are started from here: some schedulers send it to every process of a job, and its
    default is to kill. The supervisor acts on it."""
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)


def _fork() -> int:
    with warnings.catch_warnings():  # numpy's threads, which Python warns of, take care of themselves
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def _become_supervisor(channel: Connection, driver: int, again: Sequence[str]) -> None:
    os.set_inheritable(channel.fileno(), True)
    command = [sys.executable, SUPERVISOR, str(channel.fileno()), str(driver), *again]
    signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)  # those that come before it listens wait for it
    try:
        os.execv(sys.executable, command)
    except OSError:
        os.kill(driver, signal.SIGTERM)
        raise


class Supervisor:
    """What the driver asks for. If the supervisor is gone, the driver does it itself.

    Attributes:
        restarted: True if the supervisor has started this driver, and so holds the claim of the one before.
        stopped: why the supervisor has stopped the training, None if it has not.
        cause: the error that `end` was given.
    """

    def __init__(self, channel: Connection, restarted: bool = False):
        self.channel, self.restarted = channel, restarted
        self.run_dir: Path | None = None
        self.stopped: str | None = None
        self.cause: str | None = None

    def claim(self, run_dir: Path, ckpt_path: Path, **run) -> None:
        """The run directory and the checkpoints for this training alone, until all of its processes are gone.

        Raises:
            RunDirectoryError: as `run_lock.claimed`.
        """
        try:
            answer = self._ask({"claim": {"run_dir": str(run_dir), "ckpt_path": str(ckpt_path), **run}})
        except ConnectionError as error:
            raise ReportedError(
                f"the supervisor, the process that this command began as, {error}; repeat the command"
            ) from error
        if problem := answer.get("error"):
            raise RunDirectoryError(problem)
        self.run_dir = run_dir

    def end(self, status: str, error: str | None, final: bool) -> None:
        """How the training has ended, for run.json. final: it must not be started again."""
        self.cause = error
        if self.run_dir is None and not self.restarted:
            return
        try:
            self.stopped = self._ask({"end": {"status": status, "error": error, "final": final}}).get("stopped")
        except ConnectionError as gone:
            if self.run_dir:
                close_run(self.run_dir, status, f"the supervisor {gone}; {error}" if error else None)

    def _ask(self, question: dict) -> dict:
        """Raises:
        ConnectionError: the supervisor is gone or does not answer; its text says which.
        """
        try:
            self.channel.send(question)
            if self.channel.poll(ANSWER_SECONDS):
                return self.channel.recv()
        except (EOFError, BrokenPipeError, ConnectionResetError) as error:
            raise ConnectionError("is gone") from error
        raise ConnectionError("does not answer")
