"""Processes at their end: who inherits orphans, how what is left is ended, and why a driver died."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from openrlhf_ebpo.record.processes import began, is_alive, outlives_training

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
GRACE_SECONDS = 2.0  # a worker of Ray ends by itself when its raylet is gone
TERM_SECONDS = 5.0
KILL_SECONDS = 5.0


def adopt_orphans() -> None:
    """From now on a descendant whose parent ends becomes a child of this process, also after an exec."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)


def end_with_parent(parent: int) -> None:
    """SIGTERM for this process when its parent ends, however that ends."""
    _prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # it has ended already
        os.kill(os.getpid(), signal.SIGTERM)


def _prctl(option: int, value: int) -> None:
    with contextlib.suppress(OSError, AttributeError):  # not Linux: orphans then belong to init
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def list_descendants(since: int) -> list[psutil.Process]:
    """All that is below this process, but for children that began before the clock tick `since` and what is below these."""
    found = []
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.Error):
            if (began(child.pid) or 0) >= since:
                found += [child, *child.children(recursive=True)]
    return found


def end_children(since: int) -> list[str]:
    """End all descendants since `since`, but for those that outlive a training. Describes what did not end by itself."""

    def left() -> list[psutil.Process]:
        reap()
        return [each for each in list_descendants(since) if is_alive(each) and not outlives_training(each)]

    found = end(left, GRACE_SECONDS)
    reap()
    return found


def end(left: Callable[[], list[psutil.Process]], grace: float = 0.0) -> list[str]:
    """End what `left` lists: SIGTERM after `grace` seconds, later SIGKILL. It is called again each time, as one process may
    start another. Describes what was there after the grace."""
    _signal_all(left, None, grace)
    found = describe(left())
    _signal_all(left, signal.SIGTERM, TERM_SECONDS)
    _signal_all(left, signal.SIGKILL, KILL_SECONDS)
    return found


def _signal_all(left: Callable[[], list[psutil.Process]], number: int | None, seconds: float) -> None:
    """Send a signal to each process once, until none is left or the time is up."""
    until, signalled = time.monotonic() + seconds, set()
    while (now := set(left())) and time.monotonic() < until:
        for process in now - signalled if number else ():
            send(process, number)
        signalled |= now
        time.sleep(0.05)


def send(process: psutil.Process, number: int) -> None:
    with contextlib.suppress(psutil.Error):  # gone, or another user's
        process.send_signal(number)


def reap() -> dict[int, int]:
    """Children that have ended: process id -> exit status, negative for a signal."""
    ended = {}
    with contextlib.suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            ended[found[0]] = os.waitstatus_to_exitcode(found[1])
    return ended


def describe(processes: list[psutil.Process]) -> list[str]:
    """[raylet 12, VLLM::EngineCore 14], without those that are gone."""
    described = []
    for process in processes:
        with contextlib.suppress(psutil.Error):
            described.append(f"{ascii(process.name())[1:-1]} {process.pid}")
    return described


def join_names(described: list[str]) -> str:
    """3 processes: raylet 12, gcs_server 13, VLLM::EngineCore 14"""
    more = f" and {len(described) - 6} more" if len(described) > 6 else ""
    return f"{len(described)} {'process' if len(described) == 1 else 'processes'}: {', '.join(described[:6])}{more}"


def describe_death(status: int, killed_for_memory: int) -> str:
    """Say how a driver died that gave no reason. killed_for_memory: processes that the kernel killed while it ran."""
    if status >= 0:
        return (
            f"the driver ended with status {status} and gave no reason (Ray ends a driver whose cluster is gone); see the "
            "output above"
        )
    try:
        cause = f"the driver was killed by {signal.Signals(-status).name}"
    except ValueError:
        cause = f"the driver was killed by signal {-status}"
    if -status != signal.SIGKILL:
        return cause
    if killed_for_memory:
        return f"{cause}: the machine ran out of memory, and the kernel ended {killed_for_memory} of its processes"
    return f"{cause}: by somebody, or because the machine or its container ran out of memory"


def count_killed_for_memory() -> int:
    """Count the processes that the kernel has killed for lack of memory since this machine was started."""
    try:
        lines = Path("/proc/vmstat").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)
