"""Commands forked from one process that has imported what they import: a sixth of a training's processor time.

Ray, the actors and the engines start as they do for any command.
"""

import functools
import importlib
import multiprocessing
import multiprocessing.forkserver
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

HERE = str(Path(__file__).parent)


@functools.cache
def forkserver():
    """The process that has imported the stack, as a multiprocessing context. The first call is not for several
    threads."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["preloaded"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", HERE)  # the forkserver of Python 3.11 does not get sys.path
        multiprocessing.forkserver.ensure_running()
    return context


class ForkedDriver:
    """`python -m module argv` in a session of its own and the log's folder, with what the tests use of
    subprocess.Popen."""

    returncode: int | None = None

    def __init__(self, module: str, argv: list[str], log: Path, environment: dict[str, str]):
        log.touch()
        self.process = forkserver().Process(target=run, args=(module, argv, str(log), environment))
        self.process.start()
        self.pid = self.process.pid

    def poll(self) -> int | None:
        self.returncode = self.process.exitcode
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        self.process.join(timeout)
        if self.poll() is None:
            raise subprocess.TimeoutExpired(self.process.name, timeout)
        return self.returncode

    def kill(self) -> None:
        self.process.kill()


def run(module: str, argv: list[str], log: str, environment: dict[str, str]) -> None:
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(Path(log).parent)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    sys.path.extend(filter(None, environment.get("PYTHONPATH", "").split(os.pathsep)))
    sys.argv = [module, *argv]
    importlib.import_module(module).main(argv)
