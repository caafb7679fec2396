"""What the supervisor holds for a training: its run directory and checkpoints, and run.json."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import psutil

from openrlhf_ebpo.files import write_json
from openrlhf_ebpo.record import heartbeat, processes, run_lock
from openrlhf_ebpo.record.heartbeat import LOADING, STARTING, Beat, read_beat
from openrlhf_ebpo.record.manifest import attempt_of
from openrlhf_ebpo.record.resume import groups, newest_whole
from openrlhf_ebpo.record.run_log import RunDirectoryError, close_run, open_run, read_run, timestamp
from openrlhf_ebpo.redact import redacted_text
from openrlhf_ebpo.supervisor.ends import end, join_names
from openrlhf_ebpo.supervisor.restarts import Start

Say = Callable[[str], None]


class Claim:
    """A run directory and a folder of checkpoints, held until `release`.

    Raises:
        RunDirectoryError: as `run_lock.claimed`.
    """

    def __init__(self, run_dir: str, ckpt_path: str, say: Say, **run):
        self.run_dir, self.ckpt_path, self.args = Path(run_dir), ckpt_path, run["args"]
        self._held = contextlib.ExitStack()
        self._recorded: list[psutil.Process] = []
        self._attempts = {self.args["ckpt"]["attempt"]}  # what the checkpoints of its drivers are marked with
        end_leftovers(self.run_dir, say)
        self._held.enter_context(run_lock.claimed(self.run_dir, Path(ckpt_path), **run))
        self._remove(heartbeat.FILE, heartbeat.END_FILE)

    def renew(self, run: dict) -> None:
        """For the driver of a restart: what is held stays held, and run.json begins again."""
        open_run(self.run_dir, **{name: run[name] for name in run if name not in ("run_dir", "ckpt_path")})
        self.args = run["args"]
        self._attempts.add(self.args["ckpt"]["attempt"])
        self._remove(heartbeat.FILE)

    def is_gone(self) -> bool:
        """True if the run was removed or moved away. A disk that does not answer is an OSError."""
        return not (self.run_dir / "run.json").exists()

    def start(self) -> Start:
        """Where a driver begins that is started now: --ckpt.load_step counts until this command has saved something."""
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

    def request_end(self, by: str) -> bool:
        """Ask the training to save after its current step and to end. False where that saves nothing: no step has begun, no
        checkpoints are kept, or the request cannot be written."""
        beat = self.beat()
        if beat is None or beat.phase in (STARTING, LOADING) or self.args["ckpt"]["disable_ds"]:
            return False
        try:
            heartbeat.request_end(self.run_dir, by)
        except OSError:  # a full disk
            return False
        return True

    def record(self, found: list[psutil.Process]) -> None:
        """Write processes.json; best effort."""
        with contextlib.suppress(OSError):
            if found != self._recorded and not self.is_gone():
                processes.write_processes(self.run_dir, found)
                self._recorded = found

    def note(self, **fields) -> None:
        """Set fields of run.json, None to remove one; best effort."""
        with contextlib.suppress(OSError, RunDirectoryError):
            if run := read_run(self.run_dir):
                kept = {name: value for name, value in run.items() if name not in fields}
                new = {name: value for name, value in fields.items() if value is not None}
                write_json(self.run_dir / "run.json", kept | new)

    def note_restart(self, cause: str) -> None:
        with contextlib.suppress(OSError, RunDirectoryError):
            run = read_run(self.run_dir) or {}
            restart = {"time": timestamp(), "cause": redacted_text(cause), "from": self.start().tag}
            self.note(restarts=[*run.get("restarts", []), restart], stalled=None)

    def close(self, status: str, error: str | None) -> None:
        """Write the end into run.json, unless that is gone.

        Raises:
            OSError: it cannot be written.
        """
        self.note(stalled=None)
        if not self.is_gone():
            close_run(self.run_dir, status, error)

    def release(self) -> None:
        self._remove(processes.FILE, heartbeat.END_FILE)
        self._held.close()

    def _remove(self, *names: str) -> None:
        for name in names:
            with contextlib.suppress(OSError):
                (self.run_dir / name).unlink()


def how_to_continue(
    ckpt_path: str, estimator: str, save_steps: object, load_step: int | None = None
) -> tuple[bool, str]:
    """Returns:
    True if a checkpoint can be resumed, and what to do.
    """
    found = newest_whole(groups(ckpt_path, estimator))
    if found.lost:
        return False, found.refusal()
    if found.tag is None:
        return False, f"no checkpoint was complete in {ckpt_path} (--ckpt.save_steps is {save_steps})"
    without = "" if load_step is None else " and without --ckpt.load_step"
    repeat = f"{found.tag} is complete: repeat the command with --ckpt.load_enable{without} to go on from it"
    return True, "\n".join([*found.warnings(), repeat])


def end_leftovers(run_dir: Path, say: Say) -> None:
    """End what a training in `run_dir` has left, whose supervisor was killed.

    Raises:
        RunDirectoryError: another one is at work there; what is recorded belongs to it.
    """
    if not processes.read_processes(run_dir):
        return
    with run_lock.held(run_dir):  # or another command could claim it meanwhile, and record its own
        if found := end(lambda: processes.read_processes(run_dir)):
            say(f"ended what an earlier training in {run_dir} had left running: {join_names(found)}")
