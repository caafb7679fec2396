"""Grades responses to questions under a protocol, in processes that can be killed, and says which answers are equal.

The processes are rewards/pool.py's, which says why they are no library's.
"""

from __future__ import annotations

import functools
import os
import re
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields

from openrlhf_ebpo.rewards import gym
from openrlhf_ebpo.rewards.grading import INTEGER, MAX_CHARACTERS, GoldError, clean, is_hopeless
from openrlhf_ebpo.rewards.pool import Died, Pool

from . import answer_match, released
from .protocols import EXTRACTORS, MATH_VERIFY
from .tasks import REASONING_GYM, Question, Rules
from .voting import classes

SECONDS = 2.0  # of processor time for one answer, as in training
MAX_COMPARISONS = 64  # between the wrong answers to one question; beyond, only equal texts count as equal
NO_GOLD = "gold: "  # how the error of an answer begins that no gold could be compared with
MAX_REASON = 200  # characters: a gold may be a whole text by mistake
UNFINISHED = re.compile(r"\\(?:sum|prod|lim|i*int)(?![a-z])")
COMPARED = ("answer_type", "is_multiple_answer", "ordered", "unit", "tolerance")  # the rules that answer_match.py reads


class Grader:
    """Grading processes and a cache of their results. Every method is thread-safe.

    Args:
        extraction, scorer, strip_think: as protocols.Protocol has them.
        workers: processes; None: one per core.
        seconds: of processor time for one answer.
    """

    def __init__(
        self,
        extraction: str,
        scorer: str,
        workers: int | None = None,
        seconds: float = SECONDS,
        strip_think: bool = False,
    ):
        self.extract = EXTRACTORS[extraction]
        self.read = without_thinking if strip_think else str
        self.scorer = scorer
        self.workers = workers or len(os.sched_getaffinity(0))
        self.seconds = seconds
        self._pools: dict[str, Pool] = {}
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
        """The built-in map over threads, one for each process; an iterator in order."""
        return self._threads.map(function, items)

    def grade(self, gold: str, rules: Rules, response: str) -> dict:
        """correct; extracted, None without an answer; error: None, "timeout" or "crash" where the answer ended its
        process (it counts as wrong), or NO_GOLD and the reason where the gold cannot be read (it counts for nothing).

        Raises:
            GraderError: the processes do not start.
        """
        extract = gym.answer_of if rules.kind == REASONING_GYM else self.extract
        answer = extract(self.read(response)) or None
        correct, error = False, self.gold_error(gold, rules)
        if answer and not error:
            correct, error = self.compare(gold, rules, answer)
        return {"correct": correct, "extracted": answer, "error": error}

    def grade_samples(self, question: Question, responses: Sequence[str]) -> list[dict]:
        """`grade` for all responses to a question, and their class (voting.classes)."""
        grades = [self.grade(question.gold, question.rules, response) for response in responses]
        columns = [[each[name] for each in grades] for name in ("extracted", "correct")]
        spelled = functools.partial(self._spelled, question.rules)
        names = classes(*columns, spelled, self._same_within(question.rules, grades))
        return [{**each, "class": name} for each, name in zip(grades, names, strict=True)]

    def compare(self, gold: str, rules: Rules, answer: str) -> tuple[bool, str | None]:
        """Whether an answer equals a gold one, and the error as in `grade`."""
        longest = 8 * max(MAX_CHARACTERS, 4 * len(gold))  # too long to match, and not worth caching
        return (False, None) if len(answer) > longest else self._compare_once(gold, rules, answer)

    def _compare(self, gold: str, rules: Rules, answer: str) -> tuple[bool, str | None]:
        try:
            return self._ask(gold, rules, answer), None
        except Died as death:
            return False, death.outcome
        except GoldError as error:
            return False, NO_GOLD + str(error)[:MAX_REASON]

    def _ask(self, gold: str, rules: Rules, answer: str) -> bool:
        if rules.kind == REASONING_GYM:
            return self._pool(gym.__name__).ask(rules.entry, answer) >= 1
        if self.scorer == MATH_VERIFY:
            return self._pool(answer_match.__name__).ask(gold, answer, rules_given(rules))
        return released.is_equal(rules.source_gold or gold, answer)

    def _gold_error(self, gold: str, rules: Rules) -> str | None:
        if not self._is_math(rules):
            return None
        correct, error = self._compare_once(gold, rules, gold)
        return error or (None if correct else f"{NO_GOLD}{gold!r:.{MAX_REASON}} does not equal itself under its rules")

    def _same_within(self, rules: Rules, grades: Sequence[dict]) -> Callable[[str, str], bool]:
        """The comparison of two wrong answers: integers as such, others as answers and golds; a limited number, and
        none with a text that is too long to be an answer or has ended its process."""
        ended = {each["extracted"] for each in grades if each["error"]}
        left = MAX_COMPARISONS if self._is_math(rules) else 0

        def same(first: str, answer: str) -> bool:
            nonlocal left
            texts = [clean(text) for text in (first, answer)]
            if all(map(INTEGER.fullmatch, texts)):
                return self._is_math(rules) and int(texts[0]) == int(texts[1])
            if not left or ended & {first, answer} or any(map(is_hostile, texts)):
                return False
            left -= 1
            equal, error = self.compare(first, rules, answer)
            if error:
                ended.add(first if error.startswith(NO_GOLD) else answer)
            return equal

        return same

    def _is_math(self, rules: Rules) -> bool:
        return rules.kind != REASONING_GYM and self.scorer == MATH_VERIFY

    def _spelled(self, rules: Rules, answer: str) -> str:
        if rules.kind == REASONING_GYM:
            return answer.strip()
        return clean(answer) if self.scorer == MATH_VERIFY else released.spelled(answer)

    def _pool(self, module: str) -> Pool:
        with self._lock:
            if module not in self._pools:
                self._pools[module] = Pool(self.workers, self.seconds, grader=module)
            return self._pools[module]


def without_thinking(response: str) -> str:
    """What follows the last </think>; nothing of a <think> that never ends. Where the prompt has opened it, the response
    begins with it (generate.to_record)."""
    return response.rpartition("</think>")[2].partition("<think>")[0]


def is_hostile(answer: str) -> bool:
    """Whether an answer is too long or too nested, or leaves work to sympy: it is compared with its gold alone."""
    return is_hopeless(answer, 0) or UNFINISHED.search(answer) is not None


def rules_given(rules: Rules) -> dict:
    """The rules that answer_match.py reads and that say more than their defaults."""
    return {
        field.name: getattr(rules, field.name)
        for field in fields(Rules)
        if field.name in COMPARED and getattr(rules, field.name) != field.default
    }
