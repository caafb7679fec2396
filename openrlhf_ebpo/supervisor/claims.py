"""What the supervisor holds for a training: its run directory and checkpoints, and run.json."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

from openrlhf_ebpo.files import write_json
from openrlhf_ebpo.record import run_lock
from openrlhf_ebpo.record.heartbeat import Beat, forget_beat, read_beat
from openrlhf_ebpo.record.manifest import attempt_of
from openrlhf_ebpo.record.processes import Process, forget_processes, read_processes, write_processes
from openrlhf_ebpo.record.resume import groups, newest_whole
from openrlhf_ebpo.record.run_log import RunDirectoryError, close_run, open_run, read_run, timestamp
from openrlhf_ebpo.redact import redacted_text
from openrlhf_ebpo.supervisor.ends import end, names
from openrlhf_ebpo.supervisor.restarts import Start
from openrlhf_ebpo.supervisor.words import how_to_continue

Say = Callable[[str], None]


class Claim:
    """A run directory and a folder of checkpoints, held until `release`.

    Raises:
        RunDirectoryError: as `run_lock.claimed`.
    """

    def __init__(self, run_dir: str, ckpt_path: str, say: Say, **run):
        self.run_dir, self.ckpt_path, self.args = Path(run_dir), ckpt_path, run["args"]
        self._held = contextlib.ExitStack()
        self._recorded: list[Process] = []
        self._attempts = {self.args["ckpt"]["attempt"]}  # what the checkpoints of its drivers are marked with
        end_leftovers(self.run_dir, say)
        self._held.enter_context(run_lock.claimed(self.run_dir, Path(ckpt_path), **run))
        self._folder = os.open(self.run_dir, os.O_RDONLY | os.O_DIRECTORY)  # its number is not given to another one
        self._identity = identity(self.run_dir)
        forget_beat(self.run_dir)

    def again(self, run: dict) -> None:
        """For the driver of a restart: what is held stays held, and run.json begins anew."""
        open_run(self.run_dir, **{name: run[name] for name in run if name not in ("run_dir", "ckpt_path")})
        self.args = run["args"]
        self._attempts.add(self.args["ckpt"]["attempt"])
        forget_beat(self.run_dir)

    def is_gone(self) -> bool:
        """Whether the run directory was removed, moved away or replaced by another one."""
        return identity(self.run_dir) != self._identity

    def start(self) -> Start:
        """What a driver begins with that is started now: --ckpt.load_step counts until this command has saved something."""
        folders = groups(self.ckpt_path, self.args["algo"]["advantage"]["estimator"])
        newest = newest_whole(folders).tag
        saved_by = newest and attempt_of(folders[0] / newest)
        if saved_by in self._attempts:
            return Start(newest, saved_by)
        step = self.args["ckpt"]["load_step"]
        return Start(newest if step is None else newest_whole(folders, step).tag)

    def how_to_continue(self) -> str:
        estimator, ckpt = self.args["algo"]["advantage"]["estimator"], self.args["ckpt"]
        return how_to_continue(self.ckpt_path, estimator, ckpt["save_steps"], ckpt["load_step"])[1]

    def beat(self) -> Beat | None:
        return read_beat(self.run_dir)

    def record(self, processes: list[Process]) -> None:
        with contextlib.suppress(OSError):  # a full disk
            known = [each._replace(state="") for each in processes]
            if known != self._recorded and not self.is_gone():
                write_processes(self.run_dir, known)
                self._recorded = known

    def note(self, **fields) -> None:
        """Fields of run.json, None to take one away; best effort."""
        with contextlib.suppress(OSError, RunDirectoryError):
            if not self.is_gone() and (run := read_run(self.run_dir)):
                run |= fields
                write_json(
                    self.run_dir / "run.json", {k: v for k, v in run.items() if k not in fields or v is not None}
                )

    def note_restart(self, cause: str) -> None:
        with contextlib.suppress(OSError, RunDirectoryError):
            run = read_run(self.run_dir) or {}
            restart = {"time": timestamp(), "cause": redacted_text(cause), "from": self.start().tag}
            self.note(restarts=[*run.get("restarts", []), restart], stalled=None)

    def close(self, status: str, error: str | None) -> None:
        """The last word in run.json; where the directory was moved away, in its new place.

        Raises:
            OSError: it cannot be written.
        """
        self.note(stalled=None)
        if place := self._place():
            close_run(place, status, error)

    def _place(self) -> Path | None:
        if not self.is_gone():
            return self.run_dir
        moved = Path(os.readlink(f"/proc/self/fd/{self._folder}"))
        return moved if identity(moved) == self._identity else None

    def release(self) -> None:
        with contextlib.suppress(OSError):
            if not self.is_gone():
                forget_processes(self.run_dir)
        self._held.close()
        os.close(self._folder)


def identity(run_dir: Path) -> tuple[int, int] | None:
    """Of a run's folder; None where it is gone, or its run.json is. A disk that does not answer is no removal: OSError."""
    try:
        (run_dir / "run.json").stat()
        folder = run_dir.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return folder.st_dev, folder.st_ino


def end_leftovers(run_dir: Path, say: Say) -> None:
    """End what a training in `run_dir` has left, whose supervisor was killed.

    Raises:
        RunDirectoryError: another one is at work there; what is recorded is its own.
    """
    if not read_processes(run_dir):
        return
    with run_lock.held(run_dir):  # or another command could claim it meanwhile, and record its own
        if found := end(lambda: read_processes(run_dir)):
            say(f"ended what an earlier training in {run_dir} had left running: {names(found)}")
