"""Run a script in a forked process: it finds imported what this process has, which saves seconds of imports each."""

import multiprocessing
import os
import runpy
import sys
from pathlib import Path


class Fork:
    """A script with its arguments, its output in a file, under other environment variables."""

    def __init__(self, log: Path, script: Path, *argv: object, **environment: str):
        self._log = log
        call = (log, script, list(map(str, argv)), environment)
        self._process = multiprocessing.get_context("fork").Process(target=_run, args=call)
        self._process.start()

    def end(self) -> str:
        """Return the output of a script that succeeds."""
        self._process.join()
        said = self._log.read_text()
        assert self._process.exitcode == 0, said[-4000:]
        return said

    def kill(self) -> None:
        self._process.kill()
        self._process.join()


def _run(log: Path, script: Path, argv: list[str], environment: dict[str, str]) -> None:
    with open(log, "w") as file:
        for number in (1, 2):
            os.dup2(file.fileno(), number)
    sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__  # pytest has put others in their places
    os.environ.update(environment)
    sys.argv = [str(script), *argv]
    sys.path.insert(0, str(script.parent))
    runpy.run_path(str(script), run_name="__main__")
