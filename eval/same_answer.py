"""Compare the wrong answers to one question, for the vote of maj@k."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from openrlhf_ebpo.rewards.bounds import is_hopeless
from openrlhf_ebpo.rewards.reading import INTEGER, clean

MAX_COMPARISONS = 64  # between the wrong answers to one question; beyond, only equal texts count as equal
NO_GOLD = "gold: "  # how the error of an answer begins that no gold could be compared with
UNFINISHED = re.compile(r"\\(?:sum|prod|lim|i*int)(?![a-z])")
Compare = Callable[[str, str], tuple[bool, str | None]]  # (gold, answer) -> whether they are equal, and what went wrong


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
        if not self._left or self._ended & {first, answer} or any(map(is_hostile, texts)):
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
