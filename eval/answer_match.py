"""Compares an answer with a gold one by the rules of its question. Runs in the processes of rewards/processes/pool.py.

Each part of an answer is compared as the training reward does (rewards/math/grading.py); the rules say what the parts
are, which of them belong together, and how near is near enough. Unbounded in time and memory, as that is.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping

from openrlhf_ebpo.rewards.math import grading, pieces, units
from openrlhf_ebpo.rewards.math.bounds import MAX_DIGITS, digits, exceeds_parse_limits
from openrlhf_ebpo.rewards.math.grading import parse_gold
from openrlhf_ebpo.rewards.math.reading import clean, formula, normal, number

__all__ = ["RULES", "grade", "parse_gold", "warm_up"]

Same = Callable[[str, str], bool]

RULES = ("answer_type", "is_multiple_answer", "ordered", "unit", "tolerance")  # those that are read here
MAX_PARTS = 40
AND = re.compile(
    r"\\(?:text|mathrm|textrm)\s*\{[\s,]*(?:and|or)\s*\}|(?<![a-zA-Z\\])(?:and|or)(?![a-zA-Z])|;|\\quad|\\qquad"
)
ELEMENT = re.compile(r"[A-Za-z]\s*\\in\s*(?=\\?\{|\\left)")
RELATION = re.compile(r"[<>=]|\\(?:le|ge|lt|gt|leq|geq|leqslant|geqslant|in)(?![a-zA-Z])")
ABOUT = re.compile(r"\\(?:approx|sim|simeq|doteq)(?![a-zA-Z])")
SPACES = re.compile(r"\\[,;:! ]")
SIZES = re.compile(r"\\(?:left|right|[bB]igg?[lr]?)(?=\s*\\?[()\[\]{}])")


def warm_up() -> Callable[..., bool]:
    """Import and use everything once. Returns `grade`."""
    grading.warm_up()
    return grade


def grade(gold: str, answer: str, rules: Mapping) -> bool:
    """Return whether the answer equals the gold. rules: those of RULES that say more than their defaults.

    Raises:
        GoldError: the gold cannot be read.
    """
    if not rules or exceeds_parse_limits(clean(answer), len(gold)):
        return grading.grade(gold, answer)
    gold, answer = (SPACES.sub(" ", SIZES.sub("", clean(text))) for text in (gold, answer))
    same = functools.partial(_same_value, rules=rules)
    if rules.get("is_multiple_answer"):
        entry = functools.partial(_same_entries, same=same) if "Tuple" in rules.get("answer_type", "") else same
        golds, answers = _parts(gold), _parts(answer)
        if len(answers) != len(golds) and re.search(r"\d{4}", gold):
            answers = _parts(pieces.THOUSANDS.sub("", answer))
        return len(answers) == len(golds) <= MAX_PARTS and grading.matches(golds, answers, entry)
    if rules.get("ordered"):
        return _same_entries(gold, answer, same)
    if rules.get("answer_type") == "Interval":  # math-verify would take a set or list of its ends for the open (1, 2)
        is_list = len(pieces.split(answer)) > 1 and not RELATION.search(answer)
        if is_list or answer.startswith(r"\{"):
            return False
    return same(gold, answer)


def _same_value(gold: str, answer: str, rules: Mapping) -> bool:
    """Compare one answer with one gold: the unit, then the tolerance, then math-verify."""
    if rules.get("unit"):
        gold, answer = without_unit(gold, rules["unit"]) or gold, without_unit(answer, rules["unit"])
        if answer is None:
            return False
    if rules.get("tolerance") is not None and (near := _is_near(gold, answer, rules["tolerance"])) is not None:
        return near
    return grading.grade(gold, answer)


def _is_near(gold: str, answer: str, tolerance: float) -> bool | None:
    """Return whether two numbers differ by the tolerance or less; None if one of them is not a number."""
    numbers = [_number(text) for text in (gold, answer)]
    if None in numbers:
        return None
    return bool(abs(numbers[0] - numbers[1]) <= tolerance * (1 + 1e-9) + 1e-12 * abs(numbers[0]))


def _number(text: str):
    """Return a real number in 30 digits, or None. Of `x = 3` it is the 3."""
    from sympy import Basic, Equality, Rational

    text = normal(ABOUT.split(text)[-1])
    if found := number(text):
        return Rational(found[0]) / (100 if found[1] else 1)
    value = formula(text)
    value = value.rhs if isinstance(value, Equality) else value
    if not isinstance(value, Basic) or digits(value) > MAX_DIGITS or value.is_number is not True:
        return None
    value = value.evalf(30)
    return value if value.is_Float or value.is_Rational else None


def _parts(text: str) -> list[str]:
    """Split at commas, semicolons, "and" and "or", without braces around the text; both signs of a ±."""
    text = ELEMENT.sub("", AND.sub(",", text)).strip()
    if text.startswith(r"\{") and text.endswith(r"\}"):
        text = text[2:-2]
    return [sign for piece in pieces.split(text) if piece for sign in pieces.signs(piece)]


def _same_entries(gold: str, answer: str, same: Same) -> bool:
    """Compare two tuples, entry by entry; brackets may be missing."""
    golds, answers = _entries(gold), _entries(answer)
    return len(golds) == len(answers) and all(map(same, golds, answers))


def _entries(text: str) -> list[str]:
    r"""Return the entries of (1, 2), 1, 2 or (a, b) = (1, 2). A set in \{ \} is one entry."""
    if re.search(r"[)\]]\s*=", text):
        text = text.rpartition("=")[2].strip()
    if len(found := pieces.split(text)) == 1 and text[:1] in ("(", "[") and text[-1:] in (")", "]"):
        found = pieces.split(text[1:-1])
    return found


def without_unit(answer: str, unit: str) -> str | None:
    """Return the answer without its unit; as it is if it has none, or one that is not known here; None if it is known
    to be another unit than `unit`."""
    answer = units.FRACTION.sub(r"\\text{\1/\2}", answer)
    tail = units.TAIL.search(answer[-120:])
    if not tail or len(tail[0]) == len(answer):
        return answer
    found, expected = units.name_of(tail[1]), units.name_of(unit)
    if found == expected:
        return answer[: -len(tail[0])]
    return None if units.is_known(found) and units.is_known(expected) else answer
