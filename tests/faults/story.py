"""One training in one run directory, started, killed and resumed until it is complete."""

import contextlib
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Collection
from pathlib import Path

import ending
import kinds
import psutil
import workshop
from disk import Disk
from moment import Moment

from openrlhf_ebpo.run.run_log import RunDirectoryError, read_metrics, read_run

DISK = "disk"  # the disk is full for a while; nothing is killed
MARK = "OPENRLHF_EBPO_FAULTS"
START_SECONDS = 300.0  # without a step: it hangs
STILL_SECONDS = 150.0  # after a kill, without an end or another step: it hangs. A lost GCS takes Ray a minute
ORPHAN_SECONDS = 60.0
REFUSALS = 3  # starts in a row that fail by themselves, then the training is given up
STEPS_AFTER = {"gcs": float("inf"), "pusher": 0, "reward": 0, "disk": 2}  # that show that a training goes on
QUEUED_STEPS = 6  # elsewhere: the batches that wait are used up first
LAST_WORD_SECONDS = 40.0
PAUSE_SECONDS = 10.0  # after such a start
TICK = 0.02
FINDS = 0.3  # looking through all processes takes a while


class Story:
    """chosen: kinds that may be killed; the training has a Hub, workers that grade, or a small disk only where these are.

    Attributes:
        status: "running" (there is something to kill or to go on with), "complete", "stuck".
    """

    def __init__(
        self,
        folder: Path,
        mode: str,
        number: int,
        episodes: int,
        report: Callable,
        chosen: Collection[str],
        command: list[str] | None = None,
        patience: float = 1.0,
        environment: dict[str, str] | None = None,
    ):
        self.output = folder / f"{mode}-{number}"
        self.run_dir, self.ckpt_path = self.output / "model" / "run", self.output / "ckpt"
        self.report, self.status, self.mode = report, "running", mode
        self.patience, self.environment = patience, environment or {}
        self.session = uuid.uuid4().hex
        self.process: subprocess.Popen | None = None
        self.is_good = False
        self.refusals = 0
        self.found: list[psutil.Process] = []
        self.left: dict[psutil.Process, float] = {}  # what outlived its command, since when
        self.output.mkdir(exist_ok=True)
        self.disk = Disk(self.output, DISK in chosen)
        self.hub = workshop.start_hub()
        what = {"pooled": "reward" in chosen, "repo": f"owner/{mode}-{number}" if "pusher" in chosen else None}
        flags = workshop.flags(folder, self.output, mode, episodes, **what)
        self.command = [*(command or [sys.executable, "-m", "openrlhf_ebpo.cli.train_ppo_ray"]), *flags]

    # Starting and ending

    def start(self) -> None:
        environment = {
            **os.environ,
            **self.hub.environment,
            "RAY_ADDRESS": "local",
            "OMP_NUM_THREADS": "1",
            "HF_HUB_DISABLE_XET": "1",
            "HF_HOME": str(self.output / "hf_home"),
            "OPENRLHF_EBPO_MATH_WORKERS": "1",
            MARK: self.session,
            **self.environment,
        }
        number = len(list(self.output.glob("log-*.txt")))
        self.log = self.output / f"log-{number:03d}.txt"
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(
                self.command,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                cwd=self.output,
                start_new_session=True,
            )
        self.wounded = False  # something in it was killed, and it goes on
        kinds.reap.awaited = {self.process.pid}
        self.at_start = self.step()
        self.before = set(self.left)

    def step(self) -> int:
        rows = read_metrics(self.run_dir) if self.run_dir.is_dir() else []
        return rows[-1]["step"] if rows else 0

    def alive(self) -> bool:
        self.sweep()
        return self.process is not None and self.process.poll() is None

    def own(self) -> list[psutil.Process]:
        """Processes of the command that runs now."""
        return [process for process in kinds.descendants() if process not in self.before]

    def ended(self, planned: bool) -> None:
        """The command has ended, by a kill (`planned`) or by itself."""
        code, self.process = self.process.returncode, None
        self.left.update(dict.fromkeys((p for p in kinds.descendants() if p not in self.left), time.monotonic()))
        if code == 0:
            self.status = "complete"
        elif not planned and self.wounded:
            self.report("late_end", returncode=code, words=last_words(self.log), **self.last_word())
        elif not planned:
            self.refusals += 1
            self.report("failed", returncode=code, words=last_words(self.log), log=self.log.name)
            if self.refusals >= REFUSALS:
                self.status = "stuck"
                self.report("stuck", words=last_words(self.log))
            time.sleep(PAUSE_SECONDS)

    def sweep(self) -> None:
        """Report and end what has outlived its command by a minute. The pusher may: it has its own limit."""
        for process, moment in list(self.left.items()):
            if not kinds.lives(process):
                del self.left[process]
            elif since(moment) > ORPHAN_SECONDS and (kind := kinds.kind_of(process)) != "pusher":
                self.report("orphan", kind=kind, pid=process.pid, seconds=since(moment))
                with contextlib.suppress(psutil.Error):
                    process.kill()

    # Faults

    def strike(self, kind: str, moment: Moment) -> bool:
        """Wait for the moment and kill a process of the kind. False where the command ended before."""
        if not self.alive():
            self.start()
        if kind == DISK:
            return self.wait_for(moment) and self.fill_the_disk(moment)
        if moment.when != "start" and not (self.find(kind) and self.wait_for(moment)):
            return self.absent(kind)
        if moment.when == "start" and not (self.wait_for(moment) and self.find(kind)):
            return self.absent(kind)
        living = [process for process in self.found if kinds.lives(process)]
        if kind == "driver":  # the command's process may have become the supervisor
            living = kinds.of_kind(kind, living)
        living = living or self.look_for(kind)
        if not living:
            return False
        target = living[0]
        step = self.step()
        with contextlib.suppress(psutil.Error):
            target.kill()
        self.after(kind=kind, when=str(moment), step=step, pid=target.pid)
        return True

    def find(self, kind: str) -> bool:
        """Wait for a process of the kind; one that is found now need not be looked for at the moment of the kill."""
        return self.wait_until(
            lambda: self.look_for(kind) or (kind == "supervisor" and self.step() > self.at_start), FINDS
        )

    def look_for(self, kind: str) -> list[psutil.Process]:
        self.found = kinds.of_kind(kind, self.own())
        return self.found

    def absent(self, kind: str) -> bool:
        """True where the command has no such process at all: this version has no supervisor, or it came to its end without."""
        if self.found or not (self.status == "complete" or (kind == "supervisor" and self.alive())):
            return False
        self.report("absent", kind=kind)
        return True

    def after(self, **row) -> None:
        """What the fault did: the command ended, went on, or stands still. Ray lives on for a minute without its GCS."""
        began = moved = time.monotonic()
        step = last = self.step()
        while self.alive() and since(moved) < self.patience * (
            START_SECONDS if last == self.at_start else STILL_SECONDS
        ):
            if last >= step + STEPS_AFTER.get(row["kind"], QUEUED_STEPS) and since(began) >= 5:
                self.wounded = True
                self.report("kill", **row, outcome="went on", seconds=since(began))
                return
            last, moved = (self.step(), time.monotonic()) if self.step() != last else (last, moved)
            time.sleep(TICK)
        outcome = "hung" if self.alive() else "ended"
        if outcome == "hung":
            self.end_all()
        code = self.process.wait()
        self.refusals = 0
        outcome = "went on" if code == 0 else outcome  # to its end
        self.report("kill", **row, outcome=outcome, seconds=since(began), returncode=code, **self.last_word())
        self.ended(planned=True)

    def last_word(self) -> dict:
        """What run.json says; a driver that has lost its supervisor has a while to write it."""
        until = time.monotonic() + LAST_WORD_SECONDS
        while (status := self.run_status()) == "running" and time.monotonic() < until:
            time.sleep(0.5)
        return {"status": status}

    def run_status(self) -> str | None:
        with contextlib.suppress(RunDirectoryError):
            return (read_run(self.run_dir) or {}).get("status")
        return "damaged"

    def fill_the_disk(self, moment: Moment) -> bool:
        if not self.disk.mounted:
            self.report("absent", kind=DISK)
            return True
        step = self.step()
        self.disk.fill()
        try:
            self.after(kind=DISK, when=str(moment), step=step, pid=None)
        finally:
            self.disk.free()
        return True

    # Waiting

    def go_on(self) -> None:
        """Let it run to its end."""
        if not self.alive():
            self.start()
        self.wait_until(lambda: False, FINDS)

    def wait_for(self, moment: Moment) -> bool:
        reached = {
            "start": lambda: True,
            "step": self.from_now(self.step(), moment.step),
            "saving": self.next_save(moment.step),
        }[moment.when]
        if not self.wait_until(reached):
            return False
        until = time.monotonic() + moment.seconds
        return self.wait_until(lambda: time.monotonic() >= until)

    def from_now(self, now: int, step: int | None) -> Callable[[], bool]:
        return lambda: self.step() >= (step or now + 1)

    def next_save(self, step: int | None) -> Callable[[], object]:
        before = self.saves()
        return lambda: self.saves() & {f"global_step{step}"} if step else self.saves() - before

    def wait_until(self, reached: Callable[[], object], pause: float = TICK) -> bool:
        """False where the command ended, or was ended since it had made no step for so long."""
        last, moved = self.step(), time.monotonic()
        while not reached():
            if self.alive() and since(moved) > self.patience * START_SECONDS:
                self.report("hung", words=last_words(self.log), seconds=since(moved))
                self.end_all()
                self.process.wait()
            if not self.alive():
                self.ended(planned=False)
                return False
            last, moved = (self.step(), time.monotonic()) if self.step() != last else (last, moved)
            time.sleep(pause)
        return True

    def saves(self) -> set[str]:
        """Checkpoints whose saving is under way."""
        found = set()
        for path in (self.ckpt_path / "_actor").glob("global_step*/*.json"):
            with contextlib.suppress(OSError):
                if '"complete": false' in path.read_text():
                    found.add(path.parent.name)
        return found

    # The end

    def check(self) -> None:
        """Report what is found at the end of a complete training, and of its orphans a minute later."""
        if self.status == "complete":
            found = ending.findings(self.run_dir, self.ckpt_path, workshop.STEPS)
            self.report("end", problems=(problems := ending.problems(found)), **found)
            self.is_good = not problems
        until = time.monotonic() + ORPHAN_SECONDS + 5
        while self.left and time.monotonic() < until:
            self.sweep()
            time.sleep(0.5)
        known = set(kinds.descendants())
        for process in kinds.marked(MARK, self.session):
            if process not in known:
                self.report("escaped", kind=kinds.kind_of(process), pid=process.pid)

    def end_all(self) -> None:
        for process in kinds.descendants():
            with contextlib.suppress(psutil.Error):
                process.kill()

    def close(self) -> None:
        self.end_all()
        if self.process:
            self.process.wait()
        self.hub.stop()
        if self.is_good:  # else somebody wants to look
            self.disk.remove()


def since(moment: float) -> float:
    return round(time.monotonic() - moment, 1)


def last_words(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-4:])[-1000:]
