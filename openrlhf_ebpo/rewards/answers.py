"""Read the answer of a response as a packaged reward does, and compare the wrong answers to one question."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from openrlhf_ebpo.rewards.bounds import is_hopeless
from openrlhf_ebpo.rewards.extraction import extract_answer
from openrlhf_ebpo.rewards.grading import GoldError
from openrlhf_ebpo.rewards.pool import shared_pool
from openrlhf_ebpo.rewards.reading import INTEGER, clean
from openrlhf_ebpo.rewards.settings import RewardSettings

MAX_COMPARISONS = 64  # between the wrong answers to one question; beyond, only equal texts count as equal
NO_GOLD = "gold: "  # how the error of an answer begins that no gold could be compared with
UNFINISHED = re.compile(r"\\(?:sum|prod|lim|i*int)(?![a-z])")
MATH = "math"
Compare = Callable[[str, str], tuple[bool, str | None]]  # (gold, answer) -> whether they are equal, and what went wrong


class SameAnswer:
    """The comparison of two wrong answers to one question, for a vote: integers as such, others as gold and answer; a
    limited number, and none with a text that is too long to be an answer or has ended its process.

    Args:
        ended: answers that have ended their process.
        until: on the monotonic clock; afterwards only integers and equal texts count as equal.
    """

    def __init__(self, compare: Compare, ended: Iterable[str] = (), until: float = float("inf")):
        self._compare, self._ended, self._until = compare, set(ended), until
        self._left = MAX_COMPARISONS

    def __call__(self, first: str, answer: str) -> bool:
        texts = [clean(text) for text in (first, answer)]
        if all(map(INTEGER.fullmatch, texts)):
            return int(texts[0]) == int(texts[1])
        if not self._left or self._ended & {first, answer} or any(map(is_hostile, texts)):
            return False
        if time.monotonic() > self._until:
            return False
        self._left -= 1
        equal, error = self._compare(first, answer)
        if error:
            self._ended.add(first if error.startswith(NO_GOLD) else answer)
        return equal


def is_hostile(answer: str) -> bool:
    """Return True for an answer that is too long or too nested, or leaves work to sympy: it is compared with its gold
    alone."""
    return is_hopeless(answer, 0) or UNFINISHED.search(answer) is not None


@dataclass(frozen=True)
class Reading:
    """Describe how a packaged reward reads responses. extract: the answer, or None. spelled: one spelling for what
    differs in typing only. compares: whether wrong answers can be compared beyond that."""

    extract: Callable[[str], str | None]
    spelled: Callable[[str], str]
    compares: bool

    def same(self, until: float) -> Callable[[str, str], bool]:
        """Return a new comparison for the wrong answers to one question."""
        return SameAnswer(compared_in_pool, until=until) if self.compares else lambda first, answer: False


READINGS = {
    MATH: Reading(lambda response: extract_answer(response) or None, clean, True),
}


def packaged(settings: RewardSettings) -> str | None:
    """Return the name in READINGS of what gives the rewards; None if it is not of this package."""
    path = Path("" if settings.agent else next(iter(settings.sources), ""))
    return MATH if path == Path(__file__).with_name("math.py") else None


def compared_in_pool(gold: str, answer: str) -> tuple[bool, str | None]:
    """Compare two answers as mathematics, in a process that can be killed."""
    try:
        verdict = shared_pool().grade_answer(gold, answer)
    except GoldError as error:
        return False, f"{NO_GOLD}{error}"
    return verdict.correct, verdict.outcome if verdict.outcome in ("timeout", "crash") else None
