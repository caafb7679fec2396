"""One training at a time in a run directory, and in a folder of checkpoints.

The supervisor and its driver hold `training.lock` in each. The kernel releases it when both have ended, however they
end; on a network disk it keeps other hosts out as far as that disk passes locks on. The supervisor also touches the run
directory's, so that a reader elsewhere, such as the Space, sees that it lives.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import psutil

from openrlhf_ebpo.files import try_lock
from openrlhf_ebpo.run.run_log import LOCK, RunDirectoryError, timestamp

BEAT_SECONDS = 5.0
ENDING_SECONDS = 30.0


@contextlib.contextmanager
def hold_lock(folder: Path) -> Iterator[None]:
    """Hold the lock of `folder` inside.

    Raises:
        RunDirectoryError: another process holds it.
    """
    lock = acquire_lock(folder)
    try:
        if lock:
            write_holder(lock)
        yield
    finally:
        if lock:
            release(lock)


def acquire_lock(folder: Path) -> IO | None:
    """Acquire the lock of `folder` (created if missing); None, with a warning, where it cannot be written or its disk
    has no locks.

    Raises:
        RunDirectoryError: another process holds it; names host, process and since when.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = open(folder / LOCK, "a+")  # noqa: SIM115  held for as long as the caller keeps it
        is_free = _try_lock(lock)
    except OSError as error:  # checkpoints may lie on a disk that only the GPUs' nodes have
        print(f"warning: {folder} is not protected against a second training: {error}", flush=True)
        return None
    if not is_free:
        with lock:
            raise _in_use(folder, read_holder(lock))
    return lock


def release(lock: IO) -> None:
    _write(lock, "")
    lock.close()


def check_free(folder: Path) -> None:
    """Check that no other training holds `folder`; its own supervisor may, which has started it again.

    Raises:
        RunDirectoryError: another process holds it; names host, process and since when.
    """
    try:
        with open(folder / LOCK) as lock:
            is_free, holder = _try_lock(lock, shared=True), read_holder(lock)
    except OSError:
        return
    if not is_free and (holder.get("host"), holder.get("pid")) != (socket.gethostname(), os.getppid()):
        raise _in_use(folder, holder)


def _try_lock(lock: IO, shared: bool = False) -> bool:
    """Acquire the lock by `try_lock`. A driver whose supervisor was killed ends a moment later, and holds the lock
    until then: wait for that."""
    until = time.monotonic() + ENDING_SECONDS
    is_announced = False
    while not (is_free := try_lock(lock, shared)) and _is_killed(read_holder(lock)) and time.monotonic() < until:
        if not is_announced:
            print(
                f"waiting for the end of a killed training in {Path(lock.name).parent}, {ENDING_SECONDS:g} s at most",
                flush=True,
            )
            is_announced = True
        time.sleep(0.2)
    return is_free


def _is_killed(holder: dict) -> bool:
    """Return True if the supervisor that wrote the lock was of this host, and is gone."""
    pid = holder.get("pid")
    if holder.get("host") != socket.gethostname() or type(pid) is not int:
        return False
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
    except (psutil.Error, ValueError, OverflowError):
        return False


def is_alive(process: psutil.Process) -> bool:
    """Return False for a zombie, and for another process that has got the id."""
    try:
        return process.is_running() and process.status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.Error:
        return False


def write_holder(lock: IO, **more) -> None:
    """Write into the lock that this process holds it, with `more` to say."""
    _write(lock, json.dumps({"host": socket.gethostname(), "pid": os.getpid(), "since": timestamp(), **more}))


def _write(lock: IO, text: str) -> None:
    with contextlib.suppress(OSError):  # a full disk; the lock holds without it
        os.ftruncate(lock.fileno(), 0)
        os.pwrite(lock.fileno(), text.encode(), 0)


def read_holder(lock: IO) -> dict:
    try:
        lock.seek(0)
        found = json.loads(lock.read(4096))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _in_use(folder: Path, holder: dict) -> RunDirectoryError:
    host, pid, since = (ascii(holder.get(name, "unknown")).strip("'")[:80] for name in ("host", "pid", "since"))
    return RunDirectoryError(
        f"{folder} is in use by a training on host {host} (process {pid}, since {since}). Wait until it has ended, or "
        "end it. To train at the same time, choose another --logger.run_dir and another --ckpt.path."
    )
