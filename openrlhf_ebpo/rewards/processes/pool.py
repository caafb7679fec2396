"""Grading in processes that can be killed (killable.py): what sympy makes of a hostile answer may take hours, or all
memory.

OPENRLHF_EBPO_MATH_WORKERS      processes for each rollout actor (default: an eighth of the cores, 2 to 8)
OPENRLHF_EBPO_MATH_SECONDS      processor time for one answer (default 2; 20 times that of wall time also ends it)
OPENRLHF_EBPO_MATH_MEMORY_MB    memory for one answer beyond the libraries' own (default 1024)
"""

from __future__ import annotations

import functools
import importlib
import logging
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass

from openrlhf_ebpo.command import positive_number
from openrlhf_ebpo.errors import ReportedError
from openrlhf_ebpo.rewards.math.extraction import extract_answer
from openrlhf_ebpo.rewards.math.grading import GoldError
from openrlhf_ebpo.rewards.processes.killable import CallFailed, Processes, StartError
from openrlhf_ebpo.rewards.processes.reward_values import NO_ANSWER

logger = logging.getLogger(__name__)
GRADER = "openrlhf_ebpo.rewards.math.grading"
PROBE = "0.1"  # an answer that costs nothing: what ends now is the gold's fault, which reading alone may not work out
GROW_SECONDS = 0.2  # answers that wait so long get another process
WALL_PER_CPU = 20  # processor time is limited, so that a busy machine costs no answer; so much wall time ends it too


@dataclass(frozen=True)
class Verdict:
    """correct: the reward. outcome: "right", "wrong", NO_ANSWER, "timeout" or "crash" (the answer ended its
    process)."""

    correct: bool
    outcome: str


class Pool:
    """Processes that grade answers; every method may be called from many threads at once.

    grader: the module that they grade with, such as grading.py: `parse_gold(gold)`, and `warm_up()`, which returns
    `grade(gold, answer, …)`.
    """

    def __init__(
        self,
        workers: int | None = None,
        seconds: float | None = None,
        memory_mb: int | None = None,
        grader: str = GRADER,
    ):
        default = max(2, min(8, len(os.sched_getaffinity(0)) // 8))  # several rollout actors share a node
        self.grader = grader
        self.seconds = seconds or positive_number("OPENRLHF_EBPO_MATH_SECONDS", 2.0)
        self._processes = Processes(
            f"{__name__}:load",
            (grader,),
            ("OPENRLHF_EBPO_MATH_SECONDS", "OPENRLHF_EBPO_MATH_MEMORY_MB"),
            memory_mb=int(memory_mb or positive_number("OPENRLHF_EBPO_MATH_MEMORY_MB", 1024)),
            cpu_seconds=self.seconds,
            most=int(workers or positive_number("OPENRLHF_EBPO_MATH_WORKERS", default)),
            grow_seconds=GROW_SECONDS,
        )
        # The samples of a prompt often give the same answer. What raises is not kept.
        self._grade_once = functools.lru_cache(maxsize=16384)(self._grade)

    def grade(self, gold: str, response: str, in_thoughts: bool = False) -> Verdict:
        """Grade the answer that a response gives. in_thoughts: as in `extract_answer`.

        Raises:
            GoldError: the gold answer cannot be read. ReportedError: the processes do not start.
        """
        answer = extract_answer(response, in_thoughts)
        verdict = self._grade_once(gold, answer or "")
        return verdict if answer else Verdict(False, NO_ANSWER)

    def ask(self, gold: str, answer: str, *rest) -> bool:
        """Call the grader's `grade` without the cache. rest: its further arguments.

        Raises:
            GoldError, ReportedError: as `grade`; also if the gold answer alone ends its process.
            CallFailed: the answer took all its time or memory, or crashed.
        """
        try:
            return self._ask(gold, answer, *rest)
        except CallFailed:
            self.check_gold(gold, PROBE, *rest)
            raise

    def check_gold(self, gold: str, *compared) -> None:
        """Raises GoldError, ReportedError: as `ask`."""
        try:
            self._ask(gold, *compared)
        except CallFailed as lost:
            raise GoldError(
                f"reading the gold answer {gold!r} ended in a {lost.outcome} ({self.seconds:g} s are allowed)"
            ) from None

    def close(self) -> None:
        """End the processes, once nothing is being graded."""
        self._processes.close()

    def _grade(self, gold: str, answer: str) -> Verdict:
        try:
            correct = self.ask(gold, answer)
        except CallFailed as lost:
            logger.warning("an answer ended in a %s (%s) and counts as wrong: %.200r", lost.outcome, lost, answer)
            return Verdict(False, lost.outcome)
        return Verdict(correct, "right" if correct else "wrong")

    def _ask(self, *call):
        try:
            reply = self._processes.call(call, self.seconds * WALL_PER_CPU)
        except StartError as error:
            raise ReportedError(
                f"a grading process did not start: {self.grader} {error} (its own message is in this process's log). "
                "Is what it needs installed? For mathematics: pip install 'openrlhf_ebpo[math]'"
            ) from None
        if "gold_error" in reply:
            raise GoldError(reply["gold_error"])
        if "error" in reply:  # such as a RecursionError
            raise CallFailed(reply["error"])
        return reply["grade"]


def load(module: str) -> Callable[..., dict]:
    """Return a function that checks a gold answer, and grades if there is an answer; called in a process of the
    pool."""
    grader = importlib.import_module(module)
    grade = grader.warm_up()

    def graded(gold: str, *answer) -> dict:
        try:
            grader.parse_gold(gold)
            return {"grade": grade(gold, *answer) if answer else None}
        except GoldError as error:
            return {"gold_error": str(error)}

    return graded


# A process has one pool: OpenRLHF loads a reward function by its file and gives it texts alone, so none can be passed.
_shared, _lock = functools.cache(Pool), threading.Lock()


def shared_pool() -> Pool:
    """Return this process's pool, whose processes start at the first answer."""
    with _lock:  # `cache` may call twice
        return _shared()


def close_shared_pool() -> None:
    """End the processes of this process's pool; the next answer starts new ones."""
    shared_pool().close()
    _shared.cache_clear()
