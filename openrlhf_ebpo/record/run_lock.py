"""One training at a time in a run directory, and in a folder of checkpoints.

The supervisor holds `training.lock` in each until all processes of its training are gone. The kernel releases a lock
however a process ends. But not every network file system has locks across hosts, so the holder also updates the file's
modification time, and a lock of another host counts as held while that changes. The Space reads it too.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from openrlhf_ebpo.record import resume
from openrlhf_ebpo.record.processes import boot_id
from openrlhf_ebpo.record.run_log import LOCK, RunDirectoryError, move_aside, open_run, timestamp

BEAT_SECONDS = 5.0
SILENCE_SECONDS = 30.0


@contextlib.contextmanager
def claimed(run_dir: Path, ckpt_path: Path, *, force: bool, **run) -> Iterator[dict]:
    """The run directory, claimed as `open_run` does (`run` is what it takes), and the checkpoints, for this process alone.

    Raises:
        RunDirectoryError: another training is at work there, or `open_run` refuses.
    """
    if force and (run_dir / "run.json").exists():
        with held(run_dir):
            move_aside(run_dir)
    check_free(ckpt_path)
    with contextlib.ExitStack() as locks:
        locks.enter_context(held(run_dir))
        opened = open_run(run_dir, force=force, **run)
        if ckpt_path.resolve() != run_dir.resolve():  # not sooner: it may lie in the run directory, which must be empty
            locks.enter_context(held(ckpt_path))
        if force and not run["resume"]:
            _move_checkpoints_aside(ckpt_path)
        yield opened


def _move_checkpoints_aside(ckpt_path: Path) -> None:
    for group in resume.groups(ckpt_path, "gae"):  # whichever the other run had
        if group.is_dir():
            print(f"moved the checkpoints of another run to {move_aside(group)}", flush=True)


@contextlib.contextmanager
def held(folder: Path) -> Iterator[None]:
    """Hold the lock of `folder` inside.

    Raises:
        RunDirectoryError: another process holds it.
    """
    check_free(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = open(folder / LOCK, "a+")  # noqa: SIM115  closed below
    except OSError as error:  # checkpoints may lie on a disk that only the GPUs' nodes have
        print(f"warning: {folder} is not protected against a second training: {error}", flush=True)
        yield
        return
    with file:
        if _lock(file) is False:
            raise _in_use(folder, _read_holder(file))
        holder = {"host": socket.gethostname(), "pid": os.getpid(), "since": timestamp(), "boot": boot_id()}
        _write(file, json.dumps(holder) + "\n")
        try:
            with _beating(file):
                yield
        finally:
            _write(file, "")


def check_free(folder: Path) -> None:
    """Check that no other process holds `folder`. Not for the one that holds it: it would release the lock (`_lock`).

    Raises:
        RunDirectoryError: another process holds it; names host, process and since when.
    """
    path = folder / LOCK
    try:
        file = _open_to_look(path)
    except OSError:
        return
    with file:
        holder = _read_holder(file)
        free = _lock(file) if file.writable() else None
        modified = os.fstat(file.fileno()).st_mtime_ns
    if (holder.get("pid"), holder.get("boot")) == (os.getppid(), boot_id()):
        return  # the supervisor holds it for this driver, which it has started
    if free is False:
        raise _in_use(folder, holder)
    left_by_another_kernel = holder and (free is None or holder.get("boot") != boot_id())
    if left_by_another_kernel and not _is_silent(folder, _describe(holder), modified):
        raise _in_use(folder, holder, f" If you know that it is dead, delete {path}.")


def _open_to_look(path: Path):
    try:
        return open(path, "r+")
    except PermissionError:  # another user's
        return open(path)


def _lock(file) -> bool | None:
    """Try to acquire the lock: True if it was, None if the file system has no locks.

    A POSIX record lock, not flock: it belongs to this process alone, where a forked child would inherit an flock and keep
    it after the holder's death; and NFS enforces it across hosts. Its price: closing any file object of the same file
    releases it, so nothing else in the holder may open it.
    """
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):  # POSIX allows either
        return False
    except OSError:
        return None
    return True


@functools.cache  # the early check and the claim ask about the same heartbeat
def _is_silent(folder: Path, holder: str, modified: int) -> bool:
    """True if the holder has stopped. Compares modification times with each other, as hosts' clocks differ."""
    print(
        f"{folder} was in use by {holder}, which did not let go of it: watching for {SILENCE_SECONDS:g} s whether it is "
        "still alive",
        flush=True,
    )
    until = time.monotonic() + SILENCE_SECONDS
    while time.monotonic() < until:
        time.sleep(min(1.0, SILENCE_SECONDS / 10))
        with contextlib.suppress(OSError), open(folder / LOCK) as file:  # open() revalidates NFS's attribute cache
            if os.fstat(file.fileno()).st_mtime_ns != modified:
                return False
    return True


@contextlib.contextmanager
def _beating(file) -> Iterator[None]:
    ended = threading.Event()

    def beat() -> None:
        while not ended.wait(BEAT_SECONDS):
            with contextlib.suppress(OSError):  # a file system that is unavailable for a while
                os.utime(file.fileno())

    thread = threading.Thread(target=beat, daemon=True, name="training.lock")
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _write(file, text: str) -> None:
    with contextlib.suppress(OSError):  # a full disk; the lock holds without it
        os.ftruncate(file.fileno(), 0)
        os.write(file.fileno(), text.encode())


def _read_holder(file) -> dict:
    try:
        file.seek(0)
        found = json.loads(file.read(4096))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _in_use(folder: Path, holder: dict, more: str = "") -> RunDirectoryError:
    return RunDirectoryError(
        f"{folder} is in use by {_describe(holder)}. Wait until it has ended, or end it. To train at the same time, choose another "
        f"--logger.run_dir and another --ckpt.path.{more}"
    )


def _describe(holder: dict) -> str:
    host, pid, since = (ascii(holder.get(name, "unknown")).strip("'")[:80] for name in ("host", "pid", "since"))
    return f"a training on host {host} (process {pid}, since {since})"
