"""Training commands forked from one process that has imported what they import: a sixth of a training's processor time.

Ray, the actors and the engines start as they do for any command.
"""

from __future__ import annotations

import functools
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
    """The process that has imported the stack, as a multiprocessing context. The first call is not for several threads."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["driver_imports"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", HERE)  # the forkserver of Python 3.11 does not get sys.path
        multiprocessing.forkserver.ensure_running()
    return context


class ForkedDriver:
    """A training command in a session of its own, with what the tests use of subprocess.Popen."""

    returncode: int | None = None

    def __init__(self, argv: list[str], log: Path, environment: dict[str, str]):
        self.process = forkserver().Process(target=run, args=(argv, str(log), environment))
        self.process.start()
        self.pid = self.process.pid

    def poll(self) -> int | None:
        self.returncode = self.process.exitcode
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        self.process.join(timeout)
        if self.poll() is None:
            raise subprocess.TimeoutExpired("training", timeout)
        return self.returncode


def run(argv: list[str], log: str, environment: dict[str, str]) -> None:
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(Path(log).parent)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    sys.argv = ["train_ppo_ray", *argv]

    from openrlhf_ebpo.cli import train_ppo_ray

    train_ppo_ray.main(argv)
