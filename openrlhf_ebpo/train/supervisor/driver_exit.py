"""The end of a training: the cause of its driver's death, and the processes that it leaves.

The driver begins a session, in which all stay that it starts, also those whose parents have died: Ray, its workers,
vLLM.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import time
from pathlib import Path

import psutil

from openrlhf_ebpo.run.run_lock import is_alive

GRACE_SECONDS = 2.0  # a worker of Ray ends by itself when its raylet is gone
KILL_SECONDS = 5.0  # after SIGTERM, and after SIGKILL
MAX_NAMES = 6


def list_session(leader: int, began_before: float = math.inf) -> list[psutil.Process]:
    """The processes that live in the session that process `leader` has begun.

    Args:
        began_before: seconds since the epoch. Once a session is empty, its number may be another's.
    """
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if os.getsid(process.pid) == leader and process.create_time() < began_before and is_alive(process):
                found.append(process)
    return found


def end_session(leader: int, began_before: float = math.inf) -> list[str]:
    """End the session, each process by SIGTERM and then SIGKILL. Describes what did not end by itself: `raylet 12`."""
    described = []
    for number, seconds in ((None, GRACE_SECONDS), (signal.SIGTERM, KILL_SECONDS), (signal.SIGKILL, KILL_SECONDS)):
        until, signalled = time.monotonic() + seconds, set()
        while (left := set(list_session(leader, began_before))) and time.monotonic() < until:
            for process in left - signalled if number else ():
                with contextlib.suppress(psutil.Error):
                    if number == signal.SIGTERM:
                        described.append(f"{ascii(process.name())[1:-1]} {process.pid}")
                    process.send_signal(number)
            signalled |= left
            time.sleep(0.05)
    return described


def join_names(described: list[str]) -> str:
    """3 processes: raylet 12, gcs_server 13, VLLM::EngineCore 14"""
    more = f" and {len(described) - MAX_NAMES} more" if len(described) > MAX_NAMES else ""
    noun = "process" if len(described) == 1 else "processes"
    return f"{len(described)} {noun}: {', '.join(described[:MAX_NAMES])}{more}"


def describe_death(status: int, killed_for_memory: int) -> str:
    """Describe how a driver died that gave no reason.

    Args:
        status: its exit status, negative for a signal.
        killed_for_memory: processes that the kernel killed while it ran.
    """
    if status >= 0:
        return (
            f"the driver ended with status {status} and gave no reason (Ray ends a driver whose cluster is gone); see "
            "the output above"
        )
    try:
        cause = f"the driver was killed by {signal.Signals(-status).name}"
    except ValueError:
        cause = f"the driver was killed by signal {-status}"
    if -status != signal.SIGKILL:
        return cause
    if killed_for_memory:
        return f"{cause}: the machine ran out of memory, and the kernel ended {killed_for_memory} of its processes"
    return f"{cause}: by another process, or because the machine or its container ran out of memory"


def count_killed_for_memory() -> int:
    """Count the processes that the kernel has killed for lack of memory since this machine was started."""
    try:
        lines = Path("/proc/vmstat").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)
