"""Grading in processes that can be killed: what sympy makes of a hostile answer may take hours, or all memory.

A caller's thread takes an idle worker, writes one line, reads one line and puts the worker back; that is all there is
to it, no further threads. The workers (pool_worker.py) are plain subprocesses: fork would copy CUDA and the threads
of a rollout actor, multiprocessing's spawn would import Ray's worker script again. Not concurrent.futures: there one
answer that has to be killed breaks the whole pool, with all answers that wait in it.

OPENRLHF_EBPO_MATH_WORKERS      processes for each rollout actor (default: an eighth of the cores, 2 to 8)
OPENRLHF_EBPO_MATH_SECONDS      processor time for one answer (default 2; 20 times that of wall time also ends it)
OPENRLHF_EBPO_MATH_MEMORY_MB    memory for one answer beyond the libraries' own (default 1024)
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import os
import queue
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

from openrlhf_ebpo.errors import ReportedError
from openrlhf_ebpo.rewards.grading import GoldError, extract_answer

logger = logging.getLogger(__name__)
PACKAGE = Path(__file__).parents[2]
GRADER = "openrlhf_ebpo.rewards.grading"
# `python -m`, but for the working directory, which it puts first: a random.py there would stand for Python's
RUN_MODULE = "import sys; sys.path.remove(''); import runpy; runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"


@dataclass(frozen=True)
class Verdict:
    """correct: the reward. outcome: "right", "wrong", "no_answer", "timeout" or "crash" (the answer ended its worker)."""

    correct: bool
    outcome: str


class Died(RuntimeError):
    """An answer ended its worker. outcome: "timeout" or "crash"."""

    def __init__(self, outcome: str, signal):
        super().__init__(f"{outcome} ({signal})")
        self.outcome = outcome


class WorkerLost(RuntimeError):
    """A worker's pipe is closed."""


class GraderError(ReportedError, RuntimeError):
    """The grading processes cannot be started."""


class Pool:
    """Workers that grade answers, each started when all before it are busy; every method may be called from many threads
    at once.

    grader: the module that they grade with, with what pool_worker.py asks of it. arguments: of its `warm_up`.
    """

    def __init__(
        self,
        workers: int | None = None,
        seconds: float | None = None,
        memory_mb: int | None = None,
        grader: str = GRADER,
        arguments: tuple[str, ...] = (),
    ):
        self.grader, self.arguments = grader, arguments
        self.seconds = seconds or number_from("OPENRLHF_EBPO_MATH_SECONDS", 2.0)
        self.memory_mb = int(memory_mb or number_from("OPENRLHF_EBPO_MATH_MEMORY_MB", 1024))
        self.workers = int(workers or number_from("OPENRLHF_EBPO_MATH_WORKERS", default_workers()))
        self._idle: queue.LifoQueue[_Worker | None] = queue.LifoQueue()  # None: not yet started
        for _ in range(self.workers):
            self._idle.put(None)
        # The samples of a prompt often give the same answer. What raises is not kept.
        self._grade_once = functools.lru_cache(maxsize=16384)(self._grade)

    def grade(self, gold: str, response: str) -> Verdict:
        """Grade the answer that a response gives.

        Raises:
            GoldError: the gold answer cannot be read. GraderError: the processes do not start.
        """
        return self.grade_answer(gold, extract_answer(response))

    def grade_answer(self, gold: str, answer: str | None) -> Verdict:
        """As `grade`, for an answer already found; None or "" is no answer."""
        if not isinstance(gold, str):
            raise GoldError(f"the gold answer must be a text, not {type(gold).__name__} {str(gold)[:200]!r}")
        verdict = self._grade_once(gold, answer or "")
        return verdict if answer else Verdict(False, "no_answer")

    def close(self) -> None:
        """End the workers once their answers are graded. Nothing can be graded afterwards."""
        for _ in range(self.workers):
            if worker := self._idle.get():
                worker.close()

    def _start(self) -> _Worker:
        return _Worker(self.seconds, self.memory_mb, self.grader, *self.arguments)

    def ask(self, gold: str, answer: str, *rest) -> bool | float | dict:
        """What the grader's `grade` says, without the cache. rest: its further arguments, as JSON has them.

        Raises:
            GoldError, GraderError: as `grade`. Died: the answer took all its time or memory, or crashed.
        """
        reply = self._ask(gold, answer, *rest)
        if reply.get("signal") == 9:  # somebody else killed it, the kernel short of memory perhaps: once more
            reply = self._ask(gold, answer, *rest)
        if "correct" in reply:
            return reply["correct"]
        if "gold_error" in reply:
            raise GoldError(reply["gold_error"])
        if reply["at_gold"]:
            raise GoldError(
                f"reading the gold answer {gold!r} ended in a {reply['died']} ({self.seconds:g} s are allowed)"
            )
        raise Died(reply["died"], reply["signal"])

    def _grade(self, gold: str, answer: str) -> Verdict:
        try:
            correct = self.ask(gold, answer)
        except Died as death:
            logger.warning("an answer ended in a %s and counts as wrong: %.200r", death, answer)
            return Verdict(False, death.outcome)
        return Verdict(correct, "right" if correct else "wrong")

    def _ask(self, *request) -> dict:
        """The reply of the next idle worker; of a new one, once, if that one was lost with everything it had."""
        worker = self._idle.get()
        try:
            worker = worker or self._start()
            try:
                return worker.ask(*request)
            except WorkerLost:
                worker.close()
                worker = self._start()
                return worker.ask(*request)
        except WorkerLost:
            return {"died": "crash", "signal": "worker lost twice", "at_gold": False}
        finally:
            self._idle.put(worker)


def start_module(name: str, *arguments: str, **environment: str) -> subprocess.Popen:
    """A module of ours as a process with pipes for its input and output."""
    path = os.pathsep.join(filter(None, [str(PACKAGE), os.environ.get("PYTHONPATH")]))
    return subprocess.Popen(
        [sys.executable, "-c", RUN_MODULE, name, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path, **environment},
    )


class _Worker:
    """One subprocess of pool_worker.py, used by one thread at a time."""

    def __init__(self, seconds: float, memory_mb: int, grader: str, *arguments: str):
        self._process = start_module(
            "openrlhf_ebpo.rewards.pool_worker", str(seconds), str(memory_mb), grader, *arguments
        )
        self._ready = False

    def ask(self, *request) -> dict:
        """Send one request to the worker and wait for its answer.

        Raises:
            WorkerLost: the worker's pipe is closed.
            GraderError: the worker did not start.
        """
        if not self._ready and self._process.stdout.readline() != "ready\n":
            raise GraderError(
                f"a process that grades with {' '.join(self._process.args[6:])} did not start (exit code {self._process.wait()}; "
                "its own message is in this process's log). Is what it needs installed? For mathematics: "
                "pip install 'openrlhf_ebpo[math]', for reasoning-gym: pip install reasoning-gym"
            )
        self._ready = True
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            reply = self._process.stdout.readline()
        except BrokenPipeError:
            reply = ""
        if not reply.endswith("\n"):
            raise WorkerLost
        return json.loads(reply)

    def close(self) -> None:
        """Close the pipe, at which an idle worker ends."""
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


def default_workers() -> int:
    """Several rollout actors share a node, and grading takes milliseconds."""
    return max(2, min(8, len(os.sched_getaffinity(0)) // 8))


def number_from(variable: str, default: float) -> float:
    """A positive number from the environment."""
    text = os.environ.get(variable)
    try:
        number = float(text) if text else default
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise GraderError(f"{variable}={text!r}: a positive number is needed")
    return number


_lock = threading.Lock()
_pools: dict[str, Pool] = {}


def shared_pool(grader: str = GRADER) -> Pool:
    """This process's pool of a grader, started when it is first asked for."""
    with _lock:
        if grader not in _pools:
            _pools[grader] = Pool(grader=grader)
        return _pools[grader]
