"""Compare the answer of a response with the gold answer.

Numbers are compared exactly, formulas by math-verify. A reading counts only if it holds every number and letter of the
text (reading.py); otherwise the text is split at its top level and compared piece by piece, and what still cannot be
read is compared as text. `grade` is unbounded in time and memory, as sympy is: pool.py runs it in processes that can be
killed.
"""

from __future__ import annotations

import functools
import logging
import re
import string
from collections.abc import Callable, Sequence

from openrlhf_ebpo.rewards.math import pieces, units
from openrlhf_ebpo.rewards.math.bounds import MAX_DIGITS, digits, exceeds_parse_limits, is_unfinished
from openrlhf_ebpo.rewards.math.extraction import MARKUP
from openrlhf_ebpo.rewards.math.reading import (
    INTEGER,
    NUMBER,
    STYLE,
    WORD,
    clean,
    formula,
    normal,
    number,
    spelled,
    value_of,
)

APPROXIMATE = re.compile(r"\\(?:approx|simeq|doteq|thickapprox)(?![a-zA-Z])")
NAME = re.compile(r"(?:[\s\\](?!pi(?![a-z]))|[A-Za-z])*")
# A choice and its value: (B) 27, \textbf{(B)}~27, B. 27.
CHOICE = re.compile(
    rf"(?:\\{STYLE} *\{{ *)?\(?([A-J])(?:\)|[.:](?= ))[ .:]*\}}?[ .:]*(?!and\b|or\b)"
    r"((?:-?(?:\d|\\(?:frac|sqrt|pi)|\.\d)|[A-Za-z]{2}).*)"
)
LETTER = re.compile(rf"(?:\\{STYLE} *\{{ *)?\(?([A-J])\)?(?: *\}})?")
MAX_PARTS = 100  # of a list that is compared in any order
NOT_AN_ANSWER = re.compile(r"####|^[\[{]\s*[\"']")  # a solution with its answer at the end, a list of texts, JSON
CUT_OFF = re.compile(r"\n.*\n|(?:[-+*/^_=<>&\\]|\\(?:frac|sqrt|cdot|times|le|ge|cup|cap))\s*$")

WARM_UP = (
    (r"\frac{1}{2}", "0.3"),
    (r"2\sqrt{10}", r"\sqrt{41}"),
    ("x^2-1", "(x-1)(x+2)"),
    (r"\pi/2", r"2^{-3}\pi"),
    ("(1,2)", r"(2,\frac{\pi}{2})"),
    ("1,-2", r"\pm 2"),
    ("[1,2)", "x>3"),
    ("y=2x+3", "y=3x"),
    (r"\text{Yes}", r"12\%"),
    ("3+4i", r"90^\circ"),
)


class GoldError(ValueError):
    """A gold answer that cannot be read: a mistake in the data, not of the policy."""


def warm_up() -> Callable[[str, str], bool]:
    """Import and use everything once, so that no answer pays for it. Returns `grade`."""
    logging.getLogger("math_verify").setLevel(logging.CRITICAL)
    for gold, answer in WARM_UP:
        grade(gold, answer)
    return grade


def grade(gold: str, answer: str) -> bool:
    """Compare an extracted answer with the gold one.

    Raises:
        GoldError: the gold cannot be read.
    """
    gold = parse_gold(gold)
    if exceeds_parse_limits(answer, len(gold)):
        return answer.strip() == gold
    answer = clean(answer)
    if INTEGER.fullmatch(gold) and INTEGER.fullmatch(answer):  # most answers
        return int(gold) == int(answer)
    if answer == gold:
        return True
    sides = APPROXIMATE.split(gold)  # an exact number and a decimal, \sqrt{10} \approx 3.162
    exact, *decimal = (_quantity(normal(side).rpartition("=")[2].strip(), True)[0] for side in sides)
    is_pair = len(decimal) == 1 and number(decimal[0]) and getattr(formula(exact), "is_number", False)
    golds = sides if is_pair else [gold]
    if APPROXIMATE.search(answer) and (len(golds) > 1 or not APPROXIMATE.search(gold)):
        sides = [side for side in APPROXIMATE.split(answer) if not NAME.fullmatch(side)]
        answer = sides[-1 if len(golds) == 1 and "." in gold else 0] if sides else answer
    return any(is_same(normal(each), normal(answer)) for each in golds)


@functools.lru_cache(maxsize=4096)
def parse_gold(gold: str) -> str:
    """Return a gold answer in one spelling.

    Raises:
        GoldError: it is empty, cut off, or a text that holds its answer somewhere.
    """
    text = clean(gold)
    if INTEGER.fullmatch(text):
        return text
    if (formula(normal(text)) is None and is_cut_off(text)) or is_no_answer(text):
        raise GoldError(f"math-verify cannot read the gold answer {gold!r}")
    return text


def is_cut_off(text: str) -> bool:
    return CUT_OFF.search(text) is not None or not pieces.is_balanced(text)


def is_no_answer(text: str) -> bool:
    return MARKUP.fullmatch(text) is not None or NOT_AN_ANSWER.search(text) is not None


def is_same(gold: str, answer: str) -> bool:
    """Compare two texts in `normal` spelling: the first comparison that understands both decides."""
    if spelled(gold) == spelled(answer):
        return True
    if (word := WORD.fullmatch(gold)) and (other := WORD.fullmatch(answer)):  # as formulas, DNE and END are equal
        return word[1].lower() == other[1].lower()
    decided = (compare(gold, answer) for compare in _COMPARISONS)
    return next((same for same in decided if same is not None), False)


def _same_choice(gold: str, answer: str) -> bool | None:
    """Compare `(B) 27` with B by its letter, with 27 by its value."""
    found = CHOICE.fullmatch(gold), CHOICE.fullmatch(answer)
    if found == (None, None):
        return None
    letters = [each or LETTER.fullmatch(text) for each, text in zip(found, (gold, answer), strict=True)]
    if None not in letters:
        return letters[0][1] == letters[1][1]
    return is_same(*(each[2] if each else text for each, text in zip(found, (gold, answer), strict=True)))


def _same_number(gold: str, answer: str) -> bool | None:
    """Compare two rational numbers exactly; 12 equals 12 %, and 0.5 equals 50 %."""
    found = number(gold), number(answer)
    if None in found:
        return None
    (first, is_percent), (second, is_other) = found
    if first == second and (is_percent == is_other or abs(first) >= 1):
        return True
    return (first / 100 if is_percent else first) == (second / 100 if is_other else second)


def _same_quantity(gold: str, answer: str) -> bool | None:
    """Compare values with units: one of both may leave its unit out. A lone letter of the gold is one if the answer has
    it, too."""
    (value, unit), (other, other_unit) = _quantity(gold, True), _quantity(answer, False)
    if unit is None and other_unit is not None and _quantity(gold, False)[1] == other_unit:
        value, unit = _quantity(gold, False)
    if unit is None and other_unit is None:
        return None
    if unit is None and number(value) is None and other_unit is not None and not units.is_known(other_unit):
        return None
    if None in (unit, other_unit):
        return is_same(value, other) or None  # it may be a letter: 3V/4 is 3/4 V
    return unit == other_unit and is_same(value, other)


def _quantity(text: str, is_gold: bool) -> tuple[str, str | None]:
    """Return a value and its unit; the text and None if it has none that is certain to be one."""
    found = NUMBER.match(text)
    if found and found.end() < len(text) and value_of(found) is not None:
        unit = units.unit_behind_number(text[found.end() :], is_gold)
        if unit is not None:
            return found[0], unit
    return units.unit_behind_formula(text)


def _same_residue(gold: str, answer: str) -> bool | None:
    """Compare `x \\equiv 3 \\pmod{7}` with others of the same modulus."""
    found = pieces.residue(gold), pieces.residue(answer)
    if found == (None, None):
        return None
    if None in found:
        return False
    (value, modulus), (other, other_modulus) = found
    if not is_same(modulus, other_modulus):
        return False
    texts = [value, other, modulus]
    if all(map(INTEGER.fullmatch, texts)) and int(modulus):
        return (int(value) - int(other)) % int(modulus) == 0
    return is_same(value, other)


def _same_ratio(gold: str, answer: str) -> bool | None:
    """Compare 2:3:5 part by part, up to a common factor; 2:3 equals 2/3."""
    (names, gold), (other_names, answer) = pieces.named_ratio(gold), pieces.named_ratio(answer)
    ratios = [pieces.split(text, ":") for text in (gold, answer)]
    if names and other_names and names != other_names:
        if sorted(names) != sorted(other_names) or len(ratios[1]) != len(names):
            return False
        ratios[1] = [ratios[1][other_names.index(name)] for name in names]
    if (names or other_names) and max(map(len, ratios)) == 1:
        return is_same(gold, answer)
    if max(map(len, ratios)) == 1:
        return None
    if (time := pieces.CLOCK.fullmatch(gold)) and (other := pieces.CLOCK.fullmatch(answer)):
        return time[1] == other[1]
    values = [[number(part) for part in ratio] for ratio in ratios]
    if any(None in each for each in values):
        return len(ratios[0]) == len(ratios[1]) and all(map(is_same, *ratios))
    first, second = ([value for value, _ in each] for each in values)
    first, second = ([*each, 1] if len(each) == 1 else each for each in (first, second))
    pairs = list(zip(first, second, strict=False))
    return (
        len(first) == len(second) and all(a * second[0] == b * first[0] for a, b in pairs) and any(first) == any(second)
    )


def _same_named(gold: str, answer: str) -> bool | None:
    """Compare values that have names: `x=1, y=2` by name, and with (1, 2) as they are written. Coordinates go in the
    order of the alphabet, and so do neighbouring letters of an answer: their gold may be (p, q)."""
    named, others = pieces.named(gold), pieces.named(answer)
    if named is None and others is None:
        return None
    if named and others:
        if named.keys() != others.keys() or len(named) == 1:
            return None if len(named) == len(others) == 1 else False
        return all(is_same(value, others[name]) for name, value in named.items())
    if named is None:
        value, bracket = pieces.entries(gold)
        if len(others) == 1:
            return None if "=" in gold else is_same(gold, next(iter(others.values())))
        ordered = pieces.in_order_of_names(others, string.ascii_lowercase)
        return _in_order(value, ordered) if bracket else _in_any_order(value, ordered)
    if len(named) == 1:
        return None if "=" in answer else is_same(next(iter(named.values())), answer)
    values = pieces.entries(answer)[0]
    return "=" not in answer and _in_order(pieces.in_order_of_names(named, "xyz"), values)


def _same_relation(gold: str, answer: str) -> bool | None:
    """Compare the sides of two chains of relations: 1<2 is not 2<3, though both hold."""
    (sides, signs), (others, other_signs) = pieces.relation(gold), pieces.relation(answer)
    if not signs or not other_signs:
        return None
    if len(signs) == len(other_signs):
        if signs == other_signs and all(map(is_same, sides, others)):
            return True
        flipped = [pieces.FLIPPED.get(sign, sign) for sign in reversed(other_signs)]
        if signs == flipped and all(map(is_same, sides, reversed(others))):
            return True
    return None if re.search("[A-Za-z]", re.sub(r"\\[A-Za-z]+", "", gold)) else False


def _same_solutions(gold: str, answer: str) -> bool | None:
    """Compare inequalities with intervals, and unions of intervals that are joined by "or": x < -1 or x > 3."""
    kinds = [bool(pieces.INEQUALITY.search(text)) for text in (gold, answer)]
    is_union = any("\\cup" in text for text in (gold, answer)) and any(map(pieces.OR.search, (gold, answer)))
    if kinds[0] == kinds[1] and not is_union and not any(map(pieces.BUILDER.match, (gold, answer))):
        return None
    found = [pieces.solutions(text, formula) for text in (gold, answer)]
    if None in found:
        return None
    is_finite = [each.is_FiniteSet for each in found]  # math-verify takes the ends of an open interval for it
    return is_finite[0] == is_finite[1] and _verifier()(*found)


def _same_list(gold: str, answer: str) -> bool | None:
    """Compare tuples and intervals entry by entry, lists and sets in any order."""
    found = [pieces.entries(text) for text in (gold, answer)]
    for i, (inner, opening) in enumerate(found):
        if len(inner) == 1 and opening == r"\{" and inner[0].startswith("("):  # {(1, 2)} is (1, 2)
            found[i] = pieces.entries(inner[0])
    (golds, bracket), (answers, other_bracket) = found
    if len(golds) == len(answers) == 1:
        return None
    if len(golds) == 1 or len(answers) == 1:  # an interval may have another name
        return None if pieces.is_ordered(bracket if len(answers) == 1 else other_bracket) else False
    if number(gold):  # 1,600 is not (1, 600)
        return False
    if bracket and other_bracket and bracket != other_bracket and (len(golds) == 2 or "{" in bracket + other_bracket):
        return False
    if pieces.is_ordered(bracket) or pieces.is_ordered(other_bracket):
        return _in_order(golds, answers)
    differs = len({_quantity(each, True)[1] for each in golds}) > 1  # 3 boys, 4 girls
    if differs and all(_quantity(each, False)[1] is None for each in answers):
        return _in_order(golds, answers)
    return _in_any_order(golds, answers)


def _in_order(golds: Sequence[str], answers: Sequence[str]) -> bool:
    return len(golds) == len(answers) and all(map(is_same, golds, answers))


def _in_any_order(golds: Sequence[str], answers: Sequence[str]) -> bool:
    return len(golds) == len(answers) <= MAX_PARTS and matches(golds, answers, is_same)


def matches(golds: Sequence[str], answers: Sequence[str], same: Callable[[str, str], bool]) -> bool:
    """Return whether every gold has its own answer: with a tolerance, one answer may fit two golds (Kuhn's
    matching)."""
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


def _same_formula(gold: str, answer: str) -> bool | None:
    """Compare two formulas with math-verify."""
    long_words = [set(LONG_WORD.findall(STYLED.sub(r"\1", text))) for text in (gold, answer)]
    if all(long_words) and long_words[0] != long_words[1]:  # as products, boys and sobs are equal
        return False
    first, second = formula(gold), formula(answer)
    if first is None or second is None:
        return False
    if any(digits(each) > MAX_DIGITS for each in (first, second)) or is_unfinished(second, first):
        return first == second  # as they are written
    return _verifier()(*(_exact(each) for each in (first, second)))


_COMPARISONS = (
    *(_same_choice, _same_number, _same_quantity, _same_residue, _same_ratio, _same_named, _same_relation),
    *(_same_solutions, _same_list, _same_formula),
)
LONG_WORD = re.compile(r"(?<![A-Za-z\\])[A-Za-z]{4,}")
STYLED = re.compile(rf"\\{STYLE} *\{{([^{{}}]*)\}}|\\(?:begin|end)\{{[a-z]*\}}")


def _exact(expression):
    """Return an expression with decimals as fractions, i as the imaginary unit, and without a factor 1."""
    from sympy import Float, I, Mul, Product, Rational, Sum, Symbol

    if isinstance(expression, Mul) and 1 in expression.args:
        expression = Mul(*(factor for factor in expression.args if factor != 1), evaluate=False)
    if expression.has(Sum, Product):  # i may be their index
        return expression
    replaced = {each: Rational(str(each)) for each in expression.atoms(Float)}
    replaced.update({I: Symbol("I", real=True), Symbol("i", real=True): I})
    used = {old: new for old, new in replaced.items() if expression.has(old)}
    return expression.xreplace(used) if used else expression


@functools.cache
def _verifier() -> Callable[..., bool]:
    """Return math-verify's comparison, which rounds neither decimals nor what is near 0: 10^{-30} is not 2 *
    10^{-30}."""
    from math_verify import grader, verify
    from sympy import Expr

    rounded = grader.sympy_numeric_eq

    def exact(first, second, *precision) -> bool:
        if not isinstance(first, Expr) or not isinstance(second, Expr):
            return rounded(first, second, *precision)
        return first.is_number and second.is_number and _is_near(first.doit(), second.doit())

    grader.sympy_numeric_eq = exact
    return lambda gold, answer: verify([gold], [answer], allow_set_relation_comp=True, timeout_seconds=None)


def _is_near(first, second) -> bool:
    """Compare two numeric expressions: rational ones exactly, others in 15 digits."""
    if first == second:
        return True
    if (first.is_Rational and second.is_Rational) or not (first.is_finite and second.is_finite):
        return False
    size = abs(first.evalf(15))
    return bool(abs((first - second).evalf(15)) <= size * 1e-15)
