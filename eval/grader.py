"""The reward `math` in an evaluation: grades responses by the rules of their questions, in processes that can be
killed, and finds equal answers.

The processes are those of rewards/processes/pool.py; killable.py says why no library does this.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from openrlhf_ebpo.rewards.math.bounds import MAX_CHARACTERS, exceeds_parse_limits
from openrlhf_ebpo.rewards.math.extraction import extract_answer, opened_thoughts
from openrlhf_ebpo.rewards.math.grading import GoldError
from openrlhf_ebpo.rewards.math.reading import INTEGER, clean
from openrlhf_ebpo.rewards.processes.killable import CallFailed
from openrlhf_ebpo.rewards.processes.pool import Pool
from openrlhf_ebpo.run.votes import classes

from . import answer_match
from .tasks import Question, Rules

MAX_REASON = 200  # characters: a gold may be a long text by mistake
MAX_COMPARISONS = 64  # between the wrong answers to one question; beyond, only equal texts count as equal
NO_GOLD = "gold: "  # how the error of an answer begins that no gold could be compared with
UNFINISHED = re.compile(r"\\(?:sum|prod|lim|i*int)(?![a-z])")
Compare = Callable[[str, str], tuple[bool, str | None]]  # (gold, answer) -> whether they are equal, and what went wrong


class Grader:
    """Grading processes, one per core, and a cache of their results. Every method is thread-safe.

    Args:
        workers: processes; None: one per core. seconds: of processor time for one answer; None: as in training.
    """

    def __init__(self, workers: int | None = None, seconds: float | None = None):
        workers = workers or len(os.sched_getaffinity(0))
        self._pool = Pool(workers, seconds, grader=answer_match.__name__)
        self._threads = ThreadPoolExecutor(workers)
        # A model often gives the same answer, and a question has one gold for all of them.
        self._compare_once = functools.lru_cache(1 << 16)(self._compare)

    def __enter__(self) -> Grader:
        return self

    def __exit__(self, *_) -> None:
        self._threads.shutdown(cancel_futures=True)
        self._pool.close()

    def map(self, function: Callable, items: Iterable) -> Iterator:
        """Map over threads, one for each process; an iterator in order."""
        return self._threads.map(function, items)

    def grade(self, gold: str, rules: Rules, response: str, prompt: str = "") -> dict:
        """Return correct; extracted, None without an answer; error: None, "timeout" or "crash" if the answer ended its
        process (it counts as wrong), or NO_GOLD and the reason if the gold cannot be read (it counts for nothing).

        prompt: as the model got it.

        Raises:
            ReportedError: the processes do not start.
        """
        answer = extract_answer(response, bool(opened_thoughts(prompt))) or None
        correct, error = False, self.gold_error(gold, rules)
        if answer and not error:
            correct, error = self.compare(gold, rules, answer)
        return {"correct": correct, "extracted": answer, "error": error}

    def grade_samples(self, question: Question, responses: Sequence[str], prompt: str = "") -> list[dict]:
        """Return `grade` for all responses to a question, and their class (votes.classes)."""
        grades = [self.grade(question.gold, question.rules, response, prompt) for response in responses]
        ended = {each["extracted"] for each in grades if each["error"]}
        same = SameAnswer(lambda first, answer: self.compare(first, question.rules, answer), ended)
        names = classes(*([each[name] for each in grades] for name in ("extracted", "correct")), clean, same)
        return [{**each, "class": name} for each, name in zip(grades, names, strict=True)]

    def compare(self, gold: str, rules: Rules, answer: str) -> tuple[bool, str | None]:
        """Return whether an answer equals a gold one, and the error as in `grade`."""
        longest = 8 * max(MAX_CHARACTERS, 4 * len(gold))  # too long to match, and not worth caching
        return (False, None) if len(answer) > longest else self._compare_once(gold, rules, answer)

    def _compare(self, gold: str, rules: Rules, answer: str) -> tuple[bool, str | None]:
        compared = {name: value for name, value in rules.given().items() if name in answer_match.RULES}
        try:
            return self._pool.ask(gold, answer, compared), None
        except CallFailed as lost:
            return False, lost.outcome
        except GoldError as error:
            return False, NO_GOLD + str(error)[:MAX_REASON]

    def gold_error(self, gold: str, rules: Rules) -> str | None:
        """Describe why answers cannot be compared with a gold one; None if they can."""
        correct, error = self._compare_once(gold, rules, gold)
        return error or (None if correct else f"{NO_GOLD}{gold!r:.{MAX_REASON}} does not equal itself under its rules")


class SameAnswer:
    """The comparison of two wrong answers to one question, for a vote: integers as such, others as gold and answer; a
    limited number, and none with a text that is too long to be an answer or has ended its process.

    Args:
        ended: answers that have ended their process.
    """

    def __init__(self, compare: Compare, ended: Iterable[str] = ()):
        self._compare, self._ended, self._left = compare, set(ended), MAX_COMPARISONS

    def __call__(self, first: str, answer: str) -> bool:
        texts = [clean(text) for text in (first, answer)]
        if all(map(INTEGER.fullmatch, texts)):
            return int(texts[0]) == int(texts[1])
        if not self._left or self._ended & {first, answer}:
            return False
        if any(exceeds_parse_limits(text, 0) or UNFINISHED.search(text) for text in texts):
            return False  # too long, too nested, or leaves work to sympy: it is compared with its gold alone
        self._left -= 1
        equal, error = self._compare(first, answer)
        if error:
            self._ended.add(first if error.startswith(NO_GOLD) else answer)
        return equal
