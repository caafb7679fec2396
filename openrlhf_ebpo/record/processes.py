"""processes.json: the processes of a training, so that the next command can end what a killed supervisor has left.

A process id is used again when its process is gone. So three things more are recorded: the boot of the kernel, the id space
of the container, and the clock tick at which the process began.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Iterable
from pathlib import Path

import psutil

from openrlhf_ebpo.files import write_json

FILE = "processes.json"
OUTLIVES = "OPENRLHF_EBPO_OUTLIVES_TRAINING"  # in the environment of a process that continues after the training


def began(pid: int) -> int | None:
    """Clock ticks from the kernel's start to the process's, None if it is gone. psutil's create_time moves with the clock."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    return int(text.rpartition(")")[2].split()[19])  # its name may have brackets


def is_alive(process: psutil.Process) -> bool:
    """False for a zombie, and for another process that has got the id."""
    try:
        return process.is_running() and process.status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.Error:
        return False


def outlives_training(process: psutil.Process) -> bool:
    try:
        return process.environ().get(OUTLIVES) == "1"
    except (psutil.Error, OSError):
        return False


def write_processes(run_dir: Path, processes: Iterable[psutil.Process]) -> None:
    rows = [{"pid": each.pid, "began": began(each.pid)} for each in processes]
    write_json(run_dir / FILE, {**_here(), "processes": rows})


def read_processes(run_dir: Path) -> list[psutil.Process]:
    """The processes that are recorded in `run_dir` and still live; none of another machine, boot or container."""
    try:
        found = json.loads((run_dir / FILE).read_text())
        if {name: found.get(name) for name in _here()} != _here():
            return []
        pids = [int(row["pid"]) for row in found["processes"] if row["began"] == began(int(row["pid"])) is not None]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return []
    recorded = []
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            if pid > 1:
                recorded.append(psutil.Process(pid))
    return [process for process in recorded if is_alive(process)]


def boot_id() -> str:
    """Identify the running kernel, which all its containers share."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return socket.gethostname()


def _here() -> dict[str, str]:
    try:
        ids = os.readlink("/proc/self/ns/pid")
    except OSError:
        ids = ""
    return {"boot": boot_id(), "ids": ids}
