"""Run a part's commands: each is recorded, writes to the part's log, and has a limit."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from openrlhf_ebpo.errors import ReportedError
from openrlhf_ebpo.redact import redacted_text

ROOT = Path(__file__).parents[2]
SAVE = 20  # seconds: a training saves after its step
GRACE = 60  # seconds: a training that is told to end clears up Ray and vLLM
TAIL = 40  # lines


class PartFailed(ReportedError):
    """The part does not hold; the message says what was found."""


@dataclass
class Work:
    """One part under way.

    Attributes:
        folder: of the report.
        seconds: the part's limit, from its beginning.
        gpus: how many GPUs there are; in a rehearsal, how many a machine is taken to have.
    """

    part: str
    folder: Path
    seconds: float
    cpu: bool = False
    gpus: int = 1
    commands: list[dict] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)

    @property
    def log(self) -> Path:
        return self.folder / "logs" / f"{self.part}.log"

    @property
    def output(self) -> Path:
        """For the part alone."""
        return self.folder / "parts" / self.part

    @property
    def model(self) -> Path:
        """The quickstart's data and warm start, which the first training makes."""
        return self.folder / "model"

    def check_time(self) -> None:
        """Raises PartFailed where the limit has passed."""
        if time.monotonic() >= self.began + self.seconds:
            raise PartFailed(f"not done after its limit of {self.seconds:.0f} s")

    @contextlib.contextmanager
    def started(self, words: Sequence[str], **environment: str) -> Iterator[subprocess.Popen]:
        """The command under way; ended at the end, if it is not done."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        record = {"command": list(words), "environment": environment, "seconds": None, "status": None}
        self.commands.append(record)
        began = time.monotonic()
        with open(self.log, "a") as log:
            log.write(f"$ {shell_command(record)}\n")
            log.flush()
            process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONUNBUFFERED": "1", **environment},
                cwd=ROOT,
                start_new_session=True,
            )
        try:
            yield process
        finally:
            stop(process)
            record |= {"seconds": round(time.monotonic() - began, 1), "status": process.returncode}

    def wait(self, done: Callable[[], bool], pause: float = 0.1) -> None:
        """Until `done`, as long as the limits allow."""
        while not done():
            self.check_time()
            time.sleep(pause)

    def run(self, words: Sequence[str], **environment: str) -> None:
        """Run the command to its end.

        Raises:
            PartFailed: its status is not 0, or the part's limit has passed.
        """
        with self.started(words, **environment) as process:
            self.wait(lambda: process.poll() is not None)
        if process.returncode:
            raise PartFailed(f"exit status {process.returncode}: {shell_command(self.commands[-1])}")


def stop(process: subprocess.Popen) -> None:
    """End it, and what it started in its session: first asked (a training saves at the first signal, and ends at the
    second), then killed."""
    if process.poll() is not None:
        return
    for number, patience in ((signal.SIGTERM, SAVE), (signal.SIGTERM, GRACE), (signal.SIGKILL, GRACE)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=patience)
            return


def shell_command(record: dict) -> str:
    """As a shell takes it."""
    import shlex

    variables = [f"{name}={shlex.quote(value)}" for name, value in record["environment"].items()]
    return " ".join([*variables, shlex.join(record["command"])])


def tail(path: Path, lines: int = TAIL) -> list[str]:
    """The last lines of somebody else's output: without control characters and secrets, none very long."""
    if not path.is_file():
        return []
    with open(path, "rb") as file:
        file.seek(max(0, path.stat().st_size - 200_000))
        text = file.read().decode(errors="replace")
    text = re.sub(r"\x1b\[[0-9;?]*[ -/]*[@-~]", "", text).replace("\r", "\n")
    kept = ("".join(sign for sign in line if sign.isprintable()).rstrip() for line in text.splitlines())
    return [redacted_text(line)[:400] for line in kept if line][-lines:]
