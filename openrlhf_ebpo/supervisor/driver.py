"""The driver's side: it forks off the command's process, which becomes the supervisor, and asks it for what must outlive it."""

from __future__ import annotations

import os
import signal
import socket
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

from openrlhf_ebpo.command import interrupt_once
from openrlhf_ebpo.errors import ReportedError
from openrlhf_ebpo.record.run_log import RunDirectoryError, close_run
from openrlhf_ebpo.supervisor import restarts
from openrlhf_ebpo.supervisor.channel import Channel
from openrlhf_ebpo.supervisor.ends import adopt_orphans, end_with_parent
from openrlhf_ebpo.supervisor.signals import FORWARDED

SUPERVISOR = str(Path(__file__).with_name("__main__.py"))


def under_supervision(again: Sequence[str]) -> Supervisor:
    """Returns in the driver: a new process, or this one where a supervisor has started it. The process that the user
    started never returns from here: it becomes the supervisor, with its id, its output and its exit status.

    Called before anything has threads, and after all that can be said at once has been said.

    Args:
        again: what follows `python` in a command that starts the driver once more.
    """
    if fd := os.environ.pop(restarts.CHANNEL, None):
        end_with_parent(os.getppid())
        return Supervisor(Channel(socket.socket(fileno=int(fd))), restarted=True)
    ours, theirs = socket.socketpair()
    adopt_orphans()
    print(end="", flush=True)  # either may be closed, and None
    print(end="", flush=True, file=sys.stderr)
    parent = os.getpid()
    driver = _fork()
    if driver:
        _become_supervisor(theirs, driver, again)
    theirs.close()
    os.setsid()  # a Ctrl-C reaches it once, by the supervisor
    interrupt_once()
    end_with_parent(parent)
    return Supervisor(Channel(ours))


def _fork() -> int:
    with warnings.catch_warnings():  # numpy's threads, which Python warns of, take care of themselves
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def _become_supervisor(channel: socket.socket, driver: int, again: Sequence[str]) -> None:
    channel.set_inheritable(True)
    command = [sys.executable, SUPERVISOR, str(channel.fileno()), str(driver), *again]
    signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)  # those that come before it listens wait for it
    try:
        os.execv(sys.executable, command)
    except OSError:
        os.kill(driver, signal.SIGTERM)
        raise


class Supervisor:
    """What the driver asks for. Where the supervisor is gone, the driver does it itself.

    Attributes:
        restarted: whether the supervisor has started this driver, and so holds the claim of the one before.
        stopped: why the supervisor has stopped the training, None where it has not.
    """

    def __init__(self, channel: Channel, restarted: bool = False):
        self.channel, self.restarted = channel, restarted
        self.run_dir: Path | None = None
        self.stopped: str | None = None

    def claim(self, run_dir: Path, ckpt_path: Path, **run) -> None:
        """The run directory and the checkpoints for this training alone, until all of its processes are gone.

        Raises:
            RunDirectoryError: as `run_lock.claimed`.
        """
        question = {"claim": {"run_dir": str(run_dir), "ckpt_path": str(ckpt_path), **run}}
        try:
            answer = self.channel.ask(question)
        except (EOFError, TimeoutError) as error:
            raise ReportedError(
                f"the supervisor, the process that this command began as, {_silence(error)}; repeat the command"
            ) from error
        if problem := answer.get("error"):
            raise RunDirectoryError(problem)
        self.run_dir = run_dir

    def end(self, status: str, error: str | None, final: bool) -> None:
        """How the training has ended, for run.json. final: it must not be started again."""
        if self.run_dir is None and not self.restarted:
            return
        try:
            self.stopped = self.channel.ask({"end": {"status": status, "error": error, "final": final}}).get("stopped")
        except (EOFError, TimeoutError) as gone:
            if self.run_dir:
                close_run(self.run_dir, status, f"the supervisor {_silence(gone)}; {error}" if error else None)


def _silence(error: Exception) -> str:
    return "is gone" if isinstance(error, EOFError) else "does not answer"
