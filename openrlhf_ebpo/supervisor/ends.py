"""Processes at their end: who inherits orphans, who ends with whom, and how what is left over is ended."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Callable

from openrlhf_ebpo.record.processes import Process, adopted, below, outlives_training

RAY_WORKER, ENGINE = "ray::", "VLLM::"  # how they name themselves
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
GRACE_SECONDS = 2.0  # a worker of Ray ends by itself when its raylet is gone
TERM_SECONDS = 5.0
KILL_SECONDS = 5.0


def adopt_orphans() -> None:
    """From now on a process below this one whose parent ends becomes a child of this one, also after an exec."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)


def end_with_parent(parent: int) -> None:
    """SIGTERM for this process when its parent ends, however that ends."""
    _prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # it has ended already
        os.kill(os.getpid(), signal.SIGTERM)


def _prctl(option: int, value: int) -> None:
    with contextlib.suppress(OSError, AttributeError):  # not Linux: orphans then belong to init
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def end_orphans(driver: int = 0) -> None:
    """End Ray's workers and vLLM's engines whose parents are gone. A worker would see to that itself, but it asks whether its
    parent is process 1, and here it is the supervisor."""
    for process in adopted():
        if process.pid != driver and process.state not in "ZX":
            if process.name.startswith(RAY_WORKER):
                send(process, signal.SIGKILL)
            elif process.name.startswith(ENGINE):
                send(process, signal.SIGTERM)


def end_children(since: int) -> list[Process]:
    """End all that is below this process and began later, but for what is to outlive it; returns what did not end by itself."""

    def left() -> list[Process]:
        end_orphans()
        reap()
        return [each for each in below(os.getpid(), since) if each.state not in "ZX" and not outlives_training(each)]

    wait_until_gone(left, GRACE_SECONDS)
    found = end(left)
    reap()
    return found


def end(left: Callable[[], list[Process]]) -> list[Process]:
    """End what `left` lists: SIGTERM, later SIGKILL. It is asked again each time, as one may start another."""
    found = left()
    for number, seconds in ((signal.SIGTERM, TERM_SECONDS), (signal.SIGKILL, KILL_SECONDS)):
        until, told = time.monotonic() + seconds, set()
        while (now := left()) and time.monotonic() < until:
            for process in now:
                if process.pid not in told:
                    send(process, number)
            told.update(process.pid for process in now)
            time.sleep(0.05)
    return found


def wait_until_gone(left: Callable[[], list[Process]], seconds: float) -> None:
    until = time.monotonic() + seconds
    while left() and time.monotonic() < until:
        time.sleep(0.05)


def send(process: Process, number: int) -> None:
    if process.lives():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(process.pid, number)


def reap() -> dict[int, int]:
    """Children that have ended: process id -> exit status, negative for a signal."""
    ended = {}
    with contextlib.suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            ended[found[0]] = os.waitstatus_to_exitcode(found[1])
    return ended


def names(processes: list[Process]) -> str:
    """3 processes: raylet 12, gcs_server 13, VLLM::EngineCor 14"""
    shown = ", ".join(f"{ascii(each.name)[1:-1]} {each.pid}" for each in processes[:6])
    more = f" and {len(processes) - 6} more" if len(processes) > 6 else ""
    return f"{len(processes)} {'process' if len(processes) == 1 else 'processes'}: {shown}{more}"
