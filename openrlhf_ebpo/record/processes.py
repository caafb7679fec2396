"""processes.json: the processes of a training, so that what outlives it can be ended exactly.

A process id is used again when its process is gone. One is known by three things more: the boot of the kernel, the id
space of its container, and the clock tick at which it began.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from openrlhf_ebpo.files import write_json

FILE = "processes.json"
OUTLIVES = "OPENRLHF_EBPO_OUTLIVES_TRAINING"  # in the environment of one that is to go on afterwards


class Process(NamedTuple):
    """began: in clock ticks after the kernel's start, exact where a time of day is not. state: R, S, Z (a zombie), …"""

    pid: int
    began: int
    name: str
    parent: int = 0
    state: str = ""

    def lives(self) -> bool:
        now = find(self.pid)
        return now is not None and now.began == self.began and now.state not in "ZX"


def find(pid: int) -> Process | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    name, _, rest = text.partition("(")[2].rpartition(")")  # it may have brackets of its own
    fields = rest.split()
    return Process(pid, int(fields[19]), name, parent=int(fields[1]), state=fields[0])


def adopted() -> list[Process]:
    """The children of this process, those that it has not started too."""
    pids: list[str] = []
    for path in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):  # a thread that has ended
            pids += path.read_text().split()
    return [process for pid in pids if (process := find(int(pid)))]


def below(ancestor: int, since: int = 0) -> list[Process]:
    """All processes that `ancestor`, or one below it, is the parent of; nearest first. Neither those that began before
    `since` (see `Process`) nor any below these."""
    everybody = [process for name in os.listdir("/proc") if name.isdigit() and (process := find(int(name)))]
    children: dict[int, list[Process]] = {}
    for process in everybody:
        if process.began >= since:
            children.setdefault(process.parent, []).append(process)
    found = list(children.get(ancestor, ()))
    for process in found:  # grows on the way
        found += children.get(process.pid, ())
    return found


def outlives_training(process: Process) -> bool:
    try:
        return f"{OUTLIVES}=1".encode() in Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False


def write_processes(run_dir: Path, processes: Iterable[Process]) -> None:
    rows = [{"pid": each.pid, "began": each.began, "name": each.name} for each in processes]
    write_json(run_dir / FILE, {**_here(), "processes": rows})


def read_processes(run_dir: Path) -> list[Process]:
    """Those that are recorded in `run_dir` and still live; none of another machine, boot or container."""
    try:
        found = json.loads((run_dir / FILE).read_text())
        if {name: found.get(name) for name in _here()} != _here():
            return []
        rows = [Process(int(row["pid"]), int(row["began"]), str(row["name"])) for row in found["processes"]]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return []
    return [process for process in rows if process.pid > 1 and process.lives()]


def forget_processes(run_dir: Path) -> None:
    with contextlib.suppress(OSError):
        (run_dir / FILE).unlink()


def boot_id() -> str:
    """The running kernel's, shared by all its containers."""
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
