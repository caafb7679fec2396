"""Compares an answer with a gold one by the rules of its question. Runs in the processes of rewards/pool.py.

Each part of an answer is compared as the training reward does (rewards/grading.py); the rules say what the parts are,
which of them belong together, and how near is near enough. Unbounded in time and memory, as that is.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence

from openrlhf_ebpo.rewards import grading
from openrlhf_ebpo.rewards.grading import clean, parse_gold, warm_up

__all__ = ["RULES", "grade", "parse_gold", "warm_up"]

Same = Callable[[str, str], bool]

RULES = ("answer_type", "is_multiple_answer", "ordered", "unit", "tolerance")  # those that are read here
MAX_PARTS = 40
AND = re.compile(
    r"\\(?:text|mathrm|textrm)\s*\{[\s,]*(?:and|or)\s*\}|(?<![a-zA-Z\\])(?:and|or)(?![a-zA-Z])|;|\\quad|\\qquad"
)
ELEMENT = re.compile(r"[A-Za-z]\s*\\in\s*(?=\\?\{|\\left)")
THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
RELATION = re.compile(r"[<>=]|\\(?:le|ge|lt|gt|leq|geq|leqslant|geqslant|in)(?![a-zA-Z])")
ABOUT = re.compile(r"\\(?:approx|sim|simeq|doteq)(?![a-zA-Z])")
PM, MP = re.compile(r"\\pm(?![a-zA-Z])"), re.compile(r"\\mp(?![a-zA-Z])")
SPACES = re.compile(r"\\[,;:! ]")
SIZES = re.compile(r"\\(?:left|right|[bB]igg?[lr]?)(?=\s*\\?[()\[\]{}])")

# Units behind an answer: "5 km", "5\text{ kilometers}", "24\text{ cm}^2", "60^\circ".
UNITS = {
    "m": ("meter", "metre"),
    "mm": ("millimeter", "millimetre"),
    "cm": ("centimeter", "centimetre"),
    "km": ("kilometer", "kilometre"),
    "in": ("inch", "inche"),
    "ft": ("foot", "feet"),
    "mi": ("mile",),
    "g": ("gram",),
    "kg": ("kilogram",),
    "s": ("sec", "second"),
    "min": ("minute",),
    "h": ("hr", "hour"),
    "day": (),
    "l": ("liter", "litre"),
    "ml": ("milliliter", "millilitre"),
    "degree": ("deg", r"\circ", r"^\circ", r"\degree"),
    "rad": ("radian",),
}
UNIT_OF = {
    spelled: name for name, others in UNITS.items() for other in (name, *others) for spelled in (other, other + "s")
}
UNIT_OF["ms"] = "ms"  # milliseconds, not several m
AREAS = {"square": "2", "sq": "2", "cubic": "3"}
_COMMAND = r"\\(?:text|textrm|mathrm|mbox|rm|operatorname)"
_WORD = rf"(?:{_COMMAND}\s*\{{(?:[^{{}}]|\{{[^{{}}]*\}})*\}}|(?<![A-Za-z\\])[A-Za-z]+|\^?\s*\{{?\s*\\(?:circ|degree)\s*\}}?)"
_POWER = r"(?:\s*\^\s*(?:\{-?\d+\}|\d))?"
TAIL = re.compile(rf"(?:\s|~|\\[,;:! ])*({_WORD}{_POWER}(?:\s*/\s*{_WORD}{_POWER})?)\s*$")
FRACTION = re.compile(
    rf"\\[dt]?frac\s*\{{\s*{_COMMAND}\s*\{{([^{{}}]*)\}}\s*\}}\s*\{{\s*{_COMMAND}\s*\{{([^{{}}]*)\}}\s*\}}"
)


def grade(gold: str, answer: str, rules: Mapping) -> bool:
    """Return whether the answer equals the gold. rules: those of RULES that say more than their defaults.

    Raises:
        GoldError: the gold cannot be read.
    """
    if not rules or grading.is_hopeless(clean(answer), len(gold)):
        return grading.grade(gold, answer)
    gold, answer = (SPACES.sub(" ", SIZES.sub("", clean(text))) for text in (gold, answer))
    same = functools.partial(_same_value, rules=rules)
    if rules.get("is_multiple_answer"):
        entry = functools.partial(_same_entries, same=same) if "Tuple" in rules.get("answer_type", "") else same
        return _same_set(gold, answer, entry)
    if rules.get("ordered"):
        return _same_entries(gold, answer, same)
    if rules.get("answer_type") == "Interval":
        return _is_interval(answer) and same(gold, answer)
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
    from sympy import Basic, Equality

    parsed = grading._parse(ABOUT.split(text)[-1])
    value = parsed[0] if parsed else None
    value = value.rhs if isinstance(value, Equality) else value
    if not isinstance(value, Basic) or grading.digits(value) > grading.MAX_DIGITS or value.is_number is not True:
        return None
    value = value.evalf(30)
    return value if value.is_Float or value.is_Rational else None


def _same_set(gold: str, answer: str, same: Same) -> bool:
    """Return whether the answer has all golds once each, in any order."""
    golds, answers = _parts(gold), _parts(answer)
    if len(answers) != len(golds) and re.search(r"\d{4}", gold):
        answers = _parts(THOUSANDS.sub("", answer))
    return len(answers) == len(golds) <= MAX_PARTS and _matches(golds, answers, same)


def _matches(golds: Sequence[str], answers: Sequence[str], same: Same) -> bool:
    """Return whether every gold has its own answer: with a tolerance, one answer may fit two golds (Kuhn's matching)."""
    fits = functools.cache(lambda i, j: same(golds[i], answers[j]))
    owner: dict[int, int] = {}

    def place(i: int, tried: set[int]) -> bool:
        for j in range(len(answers)):
            if j not in tried and fits(i, j):
                tried.add(j)
                if j not in owner or place(owner[j], tried):
                    owner[j] = i
                    return True
        return False

    return all(place(i, set()) for i in range(len(golds)))


def _parts(text: str) -> list[str]:
    """Return what commas, semicolons, "and" and "or" separate, braces around all of it taken off; both signs of a ±."""
    text = ELEMENT.sub("", AND.sub(",", text)).strip()
    if text.startswith(r"\{") and text.endswith(r"\}"):
        text = text[2:-2]
    pieces = [piece.strip() for piece in grading._pieces(text)]
    return [sign for piece in pieces if piece for sign in _signs(piece)]


def _signs(text: str) -> list[str]:
    r"""Return both readings of \pm and \mp, or the text."""
    return list(dict.fromkeys(PM.sub(upper, MP.sub(lower, text)) for upper, lower in ("+-", "-+")))


def _same_entries(gold: str, answer: str, same: Same) -> bool:
    """Compare two tuples, entry by entry; brackets may be missing."""
    golds, answers = _entries(gold), _entries(answer)
    return len(golds) == len(answers) and all(map(same, golds, answers))


def _entries(text: str) -> list[str]:
    r"""Return the entries of (1, 2), 1, 2 or (a, b) = (1, 2). A set in \{ \} is one entry."""
    if re.search(r"[)\]]\s*=", text):
        text = text.rpartition("=")[2].strip()
    if len(pieces := grading._pieces(text)) == 1 and text[:1] in ("(", "[") and text[-1:] in (")", "]"):
        pieces = grading._pieces(text[1:-1])
    return [piece.strip() for piece in pieces]


def _is_interval(answer: str) -> bool:
    """Return whether it is not a set or a list of its ends: math-verify would take the open interval (1, 2) for them."""
    is_list = len(grading._pieces(answer)) > 1 and not RELATION.search(answer)
    return not is_list and not answer.startswith(r"\{")


def without_unit(answer: str, unit: str) -> str | None:
    """Return the answer without its unit; as it is if it has none, or one that is not known here; None if it is known
    to be another unit than `unit`."""
    answer = FRACTION.sub(r"\\text{\1/\2}", answer)
    tail = TAIL.search(answer[-120:])
    if not tail or len(tail[0]) == len(answer):
        return answer
    found, wanted = _name(tail[1]), _name(unit)
    if found == wanted:
        return answer[: -len(tail[0])]
    return None if _is_known(found) and _is_known(wanted) else answer


def _name(unit: str) -> str:
    """Return one spelling: "cm^2" for "\\mathrm{~cm}^{2}" and "square centimeters"."""
    text = re.sub(rf"{_COMMAND}(?![a-z])|[{{}}~]|\\[,;:!]|\\(?= )", " ", unit)
    parts = [_one_name(part) for part in re.sub(r"\bper\b", "/", text).split("/")]
    return "/".join(parts)


def _one_name(text: str) -> str:
    words = text.split()
    if len(words) > 1 and words[0].lower() in AREAS:
        return f"{_one_name(words[1])}^{AREAS[words[0].lower()]}"
    base, power, exponent = "".join(words).partition("^")
    if not base:
        return UNIT_OF.get(exponent, exponent)
    return UNIT_OF.get(base if base in UNIT_OF else base.lower(), base) + power + exponent


def _is_known(name: str) -> bool:
    return all(part.partition("^")[0] in UNITS for part in name.split("/"))
