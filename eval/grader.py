"""Grades responses to questions under a protocol, in processes that can be killed, and says which answers are equal.

The processes are those of rewards/pool.py; processes.py says why no library does this.
"""

from __future__ import annotations

import functools
import os
import threading
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from openrlhf_ebpo.rewards.bounds import MAX_CHARACTERS
from openrlhf_ebpo.rewards.extraction import extract_answer
from openrlhf_ebpo.rewards.grading import GoldError
from openrlhf_ebpo.rewards.pool import Died, Pool
from openrlhf_ebpo.rewards.reading import clean
from openrlhf_ebpo.run.votes import classes

from . import answer_match, custom_scorer
from .same_answer import NO_GOLD, SameAnswer
from .tasks import OWN, Question, Rules, custom_benchmarks

SECONDS = 2.0  # of processor time for one answer, as in training
MAX_REASON = 200  # characters: a gold may be a whole text by mistake
TIMEOUT = "timeout"
MAX_TIMEOUTS = 16  # timeouts of a custom scorer in a row: each takes up to 20 times SECONDS
GIVEN_UP = f"not called any more, since it took all its time {MAX_TIMEOUTS} times in a row"


class Grader:
    """Grading processes and a cache of their results. Every method is thread-safe.

    Args:
        workers: processes; None: one per core.
        seconds: of processor time for one answer.
    """

    def __init__(
        self,
        workers: int | None = None,
        seconds: float = SECONDS,
    ):
        self.workers = workers or len(os.sched_getaffinity(0))
        self.seconds = seconds
        self._hung: Counter[str] = Counter()  # by scorer: timeouts since its last score
        self._pools: dict[tuple[str, str], Pool] = {}
        self._lock = threading.Lock()
        self._threads = ThreadPoolExecutor(self.workers)
        # A model often gives the same answer, and a question has one gold for all of them.
        self._compare_once = functools.lru_cache(1 << 16)(self._compare)
        self.gold_error = functools.lru_cache(1 << 16)(self._gold_error)

    def __enter__(self) -> Grader:
        return self

    def __exit__(self, *_) -> None:
        self._threads.shutdown(cancel_futures=True)
        for pool in self._pools.values():
            pool.close()

    def map(self, function, items):
        """Map over threads, one for each process; an iterator in order."""
        return self._threads.map(function, items)

    def grade(self, gold: str, rules: Rules, response: str, in_thoughts: bool = False) -> dict:
        """Return correct; extracted, None without an answer; error: None, "timeout" or "crash" if the answer ended its
        process, custom_scorer.FAILED and the reason if its scorer raised (it counts as wrong), or NO_GOLD and the
        reason if the gold cannot be read (it counts for nothing).

        in_thoughts: as in `extract_answer`.

        Raises:
            GraderError: the processes do not start.
        """
        if rules.kind == OWN:
            return self._own_grade(gold, rules, response)
        answer = extract_answer(response, in_thoughts) or None
        correct, error = False, self.gold_error(gold, rules)
        if answer and not error:
            correct, error = self.compare(gold, rules, answer)
        return {"correct": correct, "extracted": answer, "error": error}

    def grade_samples(self, question: Question, responses: Sequence[str], in_thoughts: bool = False) -> list[dict]:
        """Return `grade` for all responses to a question, and their class (votes.classes)."""
        grades = [self.grade(question.gold, question.rules, response, in_thoughts) for response in responses]
        columns = [[each[name] for each in grades] for name in ("extracted", "correct")]
        if question.rules.kind == OWN:
            names = classes(*columns, str.strip, lambda first, answer: False)
        else:
            ended = {each["extracted"] for each in grades if each["error"]}
            same = SameAnswer(lambda first, answer: self.compare(first, question.rules, answer), ended)
            names = classes(*columns, clean, same)
        return [{**each, "class": name} for each, name in zip(grades, names, strict=True)]

    def compare(self, gold: str, rules: Rules, answer: str) -> tuple[bool, str | None]:
        """Return whether an answer equals a gold one, and the error as in `grade`."""
        longest = 8 * max(MAX_CHARACTERS, 4 * len(gold))  # too long to match, and not worth caching
        return (False, None) if len(answer) > longest else self._compare_once(gold, rules, answer)

    def _compare(self, gold: str, rules: Rules, answer: str) -> tuple[bool, str | None]:
        try:
            return self._ask(gold, rules, answer), None
        except Died as death:
            return False, death.outcome
        except GoldError as error:
            return False, NO_GOLD + str(error)[:MAX_REASON]

    def _own_grade(self, gold: str, rules: Rules, response: str) -> dict:
        """Grade by the task's scorer. It is custom code: an end of its process is an error of the response like
        any other."""
        pool, error = self._pool(custom_scorer.__name__, rules.scorer), f"{custom_scorer.FAILED}{GIVEN_UP}"
        if self._hung[rules.scorer] < MAX_TIMEOUTS:
            try:
                grade = pool.ask(gold, response, rules.entry)
                self._hung[rules.scorer] = 0
                return grade
            except Died as death:
                self._hung[rules.scorer] += death.outcome == TIMEOUT
                error = death.outcome
        return {"correct": False, "extracted": None, "error": error}

    def _ask(self, gold: str, rules: Rules, answer: str) -> bool:
        compared = {name: value for name, value in rules.given().items() if name in answer_match.RULES}
        return self._pool(answer_match.__name__).ask(gold, answer, compared)

    def _gold_error(self, gold: str, rules: Rules) -> str | None:
        if rules.kind == OWN:
            return None
        correct, error = self._compare_once(gold, rules, gold)
        return error or (None if correct else f"{NO_GOLD}{gold!r:.{MAX_REASON}} does not equal itself under its rules")

    def _pool(self, module: str, scorer: str = "") -> Pool:
        with self._lock:
            if (module, scorer) not in self._pools:
                seconds = custom_benchmarks.benchmark_of(scorer, "the scorer").seconds if scorer else None
                arguments = (scorer,) if scorer else ()
                self._pools[module, scorer] = Pool(
                    self.workers, seconds or self.seconds, grader=module, arguments=arguments
                )
            return self._pools[module, scorer]
