"""Full marks that an answer does not deserve: some of reasoning-gym's scorers give them to one and the same answer to every
task, and a policy would find it."""

from __future__ import annotations

import math
import re
from fractions import Fraction

# An answer of nothing but numbers and these: min(1, nan) is 1. In words, Nan may be a name.
NO_NUMBER = re.compile(r"(?:[\d\s()\[\],.;+*/eij-]*(?:nan|inf(?:inity)?))+[\d\s()\[\],.;+*/eij-]*", re.IGNORECASE)
LONGEST = 1000  # characters of an answer that may be numbers alone
PROBABILITY = 1e-4  # coin_flip's own tolerance
NONSENSE = "Nobody knows."
SAME = 0.01  # two numbers that may be one, rounded


def deserved(name: str, entry: dict, answer: str) -> bool:
    """Whether the scorer's full marks stand."""
    if reads_as_no_number(answer) and not reads_as_no_number(str(entry.get("answer"))):
        return False
    source = (entry.get("metadata") or {}).get("source_dataset")  # what a composite has it from
    return all(STRICTER[each](entry, answer) for each in {name, source} & STRICTER.keys())


def reads_as_no_number(answer: str) -> bool:
    return len(answer) <= LONGEST and NO_NUMBER.fullmatch(answer.strip()) is not None


def number(text: str) -> float | None:
    text = text.strip().replace(",", "")
    try:
        return float(text if "e" in text.lower() else Fraction(text))  # Fraction("1e999999999") takes all memory
    except (ValueError, ZeroDivisionError, OverflowError):
        return None


def probability(entry: dict, answer: str) -> bool:
    """Its scorer takes any beginning of the number for all of it: "0" for 0.65625."""
    found, right = number(answer), number(str(entry.get("answer")))
    return found is None or right is None or abs(found - right) <= min(PROBABILITY, abs(right) / 2)  # 0 is never near


def given_numbers(entry: dict, answer: str) -> bool:
    """Its scorer takes any four numbers that make 24, such as 6 + 6 + 6 + 6, for those of the task."""
    numbers = (entry.get("metadata") or {}).get("numbers")
    return numbers is None or sorted(map(int, re.findall(r"\d+", answer))) == sorted(numbers)


STRICTER = {"coin_flip": probability, "puzzle24": given_numbers}


def wrong_answers(right: str) -> list[str]:
    """What no scorer may give full marks where `right` is right: what says nothing, and what is the same for every task."""
    tried = [NONSENSE, "", "nan", "inf", "0", "1", right[:1]]
    return [each for each in dict.fromkeys(tried) if not _may_be_same(each, right)]


def _may_be_same(one: str, other: str) -> bool:
    if one.casefold().strip() in (other.casefold().strip(), *other.casefold().split()[:1]):
        return True  # "7" for "7 days"
    numbers = number(one), number(other)
    return None not in numbers and math.isclose(*numbers, rel_tol=SAME, abs_tol=SAME)
