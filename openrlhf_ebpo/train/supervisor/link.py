"""The driver's side: it tells the supervisor, which has forked it, what it holds and how it ends."""

from __future__ import annotations

import os
import pickle
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from openrlhf_ebpo.command import end_with_parent, interrupt_once
from openrlhf_ebpo.redact import redacted_text
from openrlhf_ebpo.run import heartbeat, run_lock, run_start
from openrlhf_ebpo.run.run_log import LOCK, RunDirectoryError, close_run, read_run
from openrlhf_ebpo.run.run_settings import RunSettings
from openrlhf_ebpo.train.supervisor.driver_exit import end_session, join_names
from openrlhf_ebpo.train.supervisor.restarts import SupervisionSettings


class SupervisorLink:
    """The driver's link to its supervisor.

    Attributes:
        channel: a message is ("claim" or "end", its fields), with the locks that the driver has acquired.
        saved: None in the first driver of a command. In one that the supervisor has started after a failure, whether
            this command has saved a checkpoint to resume.
        locks: of the run directory and the checkpoints; a driver inherits those of the one before.
    """

    def __init__(self, channel: socket.socket, saved: bool | None, locks: Sequence[IO]):
        self.channel, self.saved, self.locks = channel, saved, locks
        self.run_dir: Path | None = None
        self.has_ended = False

    def claim(self, settings: RunSettings, supervision: SupervisionSettings, **run) -> None:
        """Claim the run directory and the checkpoints for this training, and share the locks with the supervisor.

        Raises:
            RunDirectoryError: as `run_start.claim`.
        """
        run_dir, new_locks = settings.run_dir, []
        if self.saved is None:
            end_leftovers(run_dir)
            self.locks = new_locks = run_start.claim(settings, **run)
            heartbeat.forget_end_request(run_dir)  # which outlives a restart
        else:
            run_start.open_run(settings, **run)
        self.run_dir = run_dir
        (run_dir / heartbeat.FILE).unlink(missing_ok=True)
        fields = {"run": settings, "supervision": supervision, "attempt": run["args"]["ckpt"]["attempt"]}
        self.send("claim", fields, [lock.fileno() for lock in new_locks])

    def end(self, status: str, error: str | None, final: bool) -> None:
        """Record how the training has ended; the first call counts. final: it must not be started again."""
        if self.has_ended:
            return
        self.has_ended = True
        try:
            self.send("end", {"status": status, "error": error, "final": final})
        except OSError:
            error = error and f"the supervisor is gone; {error}"
        if self.run_dir:
            record_end(self.run_dir, status, error)

    def send(self, kind: str, fields: dict, locks: Sequence[int] = ()) -> None:
        socket.send_fds(self.channel, [pickle.dumps((kind, fields))], locks)


def become_driver(supervisor: int) -> None:
    """Begin a session, which the supervisor ends as one, and end with the process of that id."""
    os.setsid()  # a Ctrl-C reaches the supervisor alone
    interrupt_once()
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
    # here and in all processes that are started from here: some schedulers send it to every process of a job
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    end_with_parent(signal.SIGTERM)
    if os.getppid() != supervisor:  # it ended before the kernel was asked
        os.kill(os.getpid(), signal.SIGTERM)


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
