"""The driver's side: it forks off the command's process, which becomes the supervisor, and tells it what it holds and
how it ends."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import socket
import sys
import warnings
from collections.abc import Sequence
from multiprocessing import reduction
from multiprocessing.connection import Connection
from pathlib import Path

from openrlhf_ebpo.command import end_with_parent, interrupt_once
from openrlhf_ebpo.errors import ReportedError
from openrlhf_ebpo.redact import redacted_text
from openrlhf_ebpo.run import heartbeat, run_lock
from openrlhf_ebpo.run.run_log import LOCK, RunDirectoryError, close_run, open_run, read_run
from openrlhf_ebpo.run.run_settings import RunSettings
from openrlhf_ebpo.train.supervisor import restarts
from openrlhf_ebpo.train.supervisor.driver_exit import end_session, join_names
from openrlhf_ebpo.train.supervisor.restarts import SupervisionSettings

SUPERVISOR = str(Path(__file__).with_name("__main__.py"))
SAVE_FIRST = (signal.SIGUSR1, signal.SIGTERM, signal.SIGHUP)  # a scheduler's: save after the current step, then end
GONE_SECONDS = 0.5
FORWARDED = {signal.SIGINT: signal.SIGINT, **dict.fromkeys(SAVE_FIRST, signal.SIGTERM)}


def under_supervision(restart_command: Sequence[str]) -> Supervisor:
    """Returns in the driver: a new process, or this one where a supervisor has started it. The process that the user
    started never returns from here: it becomes the supervisor, with its id, its output and its exit status.

    Called before anything has threads, and after everything is checked that can be checked at once.

    Args:
        restart_command: what follows `python` in a command that starts the driver again.
    """
    if fd := os.environ.pop(restarts.CHANNEL, None):
        _end_with_supervisor(os.getppid())
        return Supervisor(Connection(int(fd)), restarted=True)
    ours, theirs = multiprocessing.Pipe()
    print(end="", flush=True)  # either may be closed, and None
    print(end="", flush=True, file=sys.stderr)
    parent = os.getpid()
    with warnings.catch_warnings():  # numpy's threads, which Python warns of, take care of themselves
        warnings.simplefilter("ignore", DeprecationWarning)
        driver = os.fork()
    if driver:
        _become_supervisor(theirs, driver, restart_command)
    theirs.close()
    os.setsid()  # a Ctrl-C reaches it once, by the supervisor, which ends this session
    interrupt_once()
    _end_with_supervisor(parent)
    return Supervisor(ours)


def _end_with_supervisor(parent: int) -> None:
    end_with_parent(signal.SIGTERM)
    # here and in all processes that are started from here: some schedulers send it to every process of a job
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    if os.getppid() != parent:  # it has ended already
        os.kill(os.getpid(), signal.SIGTERM)


def _become_supervisor(channel: Connection, driver: int, restart_command: Sequence[str]) -> None:
    os.set_inheritable(channel.fileno(), True)
    command = [sys.executable, SUPERVISOR, str(channel.fileno()), str(driver), *restart_command]
    signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)  # those that come before it listens wait for it
    try:
        os.execv(sys.executable, command)
    except OSError:
        os.kill(driver, signal.SIGTERM)
        raise


class Supervisor:
    """The driver's link to its supervisor.

    Attributes:
        restarted: True if the supervisor has started this driver, and so holds the locks of the one before.
        cause: the error that `end` was given.
    """

    def __init__(self, channel: Connection, restarted: bool = False):
        self.channel, self.restarted = channel, restarted
        self.run_dir: Path | None = None
        self.cause: str | None = None

    def claim(self, settings: RunSettings, supervision: SupervisionSettings, **run) -> None:
        """Claim the run directory and the checkpoints for this training, and share them with the supervisor.

        Raises:
            RunDirectoryError: as `run_lock.claim`.
        """
        run_dir = settings.run_dir
        if self.restarted:
            self.locks = []
            open_run(settings, **run)
        else:
            end_leftovers(run_dir)
            self.locks = run_lock.claim(settings, **run)
        self.run_dir = run_dir
        (run_dir / heartbeat.FILE).unlink(missing_ok=True)
        if not self.restarted:  # a request to end outlives a restart
            (run_dir / heartbeat.END_FILE).unlink(missing_ok=True)
        claim = {"run": settings, "supervision": supervision, "attempt": run["args"]["ckpt"]["attempt"]}
        try:
            self.channel.send({"claim": {**claim, "locks": len(self.locks)}})
            for lock in self.locks:
                reduction.send_handle(self.channel, lock.fileno(), os.getppid())
        except OSError as error:
            raise ReportedError(
                "the supervisor, the process that this command began as, is gone; repeat the command"
            ) from error

    def end(self, status: str, error: str | None, final: bool) -> None:
        """Record how the training has ended. final: it must not be started again."""
        self.cause = error
        with contextlib.suppress(OSError):
            self.channel.send({"end": {"status": status, "error": error, "final": final}})
        # the supervisor sends nothing, so there is something to read when it is gone; its SIGTERM may come a moment
        # before
        if error and self.channel.poll(GONE_SECONDS if status == "interrupted" else 0):
            error = f"the supervisor is gone; {error}"
        if self.run_dir:
            record_end(self.run_dir, status, error)


def record_end(run_dir: Path, status: str, error: str | None) -> None:
    """Write the end into run.json, unless it says so already or is gone."""
    try:
        run = read_run(run_dir)
        if run and (run.get("status"), run.get("error")) != (status, error and redacted_text(error)):
            close_run(run_dir, status, error)
    except (OSError, RunDirectoryError) as problem:
        print(f"warning: run.json does not say that the run is {status}: {problem}", file=sys.stderr, flush=True)


def end_leftovers(run_dir: Path) -> None:
    """End what a training in `run_dir` has left on this machine, whose supervisor was killed.

    Raises:
        RunDirectoryError: another one is at work there.
    """
    if not (run_dir / LOCK).exists() or (lock := run_lock.acquire_lock(run_dir)) is None:
        return
    with lock:
        holder, touched = run_lock.read_holder(lock), os.fstat(lock.fileno()).st_mtime
        session = holder.get("session")
        if holder.get("host") != socket.gethostname() or type(session) is not int or session <= 1:
            return  # 0 is the session of all that was started outside of a container
        if found := end_session(session, began_before=touched + run_lock.BEAT_SECONDS):
            print(f"ended what an earlier training in {run_dir} had left running: {join_names(found)}", file=sys.stderr)
