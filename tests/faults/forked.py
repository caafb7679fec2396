"""Trainings whose Ray workers and engines are forked from one process that has imported the stack: a third of the time a start
takes. What runs in them is the same; drivers, supervisors, reward processes and Ray itself start as for any command."""

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

import kinds
import psutil

HERE = Path(__file__).parent


@contextlib.contextmanager
def environment(folder: Path) -> Iterator[dict[str, str]]:
    """What a training has to be started with, as long as the context is open."""
    sys.path.insert(0, str(HERE.parent / "integration"))
    from forked_engines import FORKED
    from forked_workers import forked_workers

    with forked_workers(folder) as python:
        kinds.spared.update(process.pid for process in psutil.Process().children(recursive=True))
        yield {"PYTHONPATH": str(HERE / "forked_site"), "OPENRLHF_EBPO_FAULTS_PYTHON": python, FORKED: "1"}
