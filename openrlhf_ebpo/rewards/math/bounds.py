"""Bound the work of an answer before sympy begins it: its length, its nesting, the digits that it would write out."""

from __future__ import annotations

import math
import re

MAX_CHARACTERS = 1000  # of an answer, unless the gold is as long: parsing takes seconds beyond
MAX_DEPTH = 40  # nested brackets in an answer: the parser's time grows with a power of it
MAX_DIGITS = 10_000  # of a number that is written out to be compared (2024^{2024} has 6,690)


def exceeds_parse_limits(answer: str, gold_length: int) -> bool:
    """Return True for an answer too long or too deeply nested to be one, before the parser spends seconds on it."""
    if not answer or len(answer) > max(MAX_CHARACTERS, 4 * gold_length):
        return True
    if "binom" in answer and re.search(r"\d{7}", answer):  # the parser works it out
        return True
    depth = deepest = 0
    for bracket in re.findall(r"[()\[\]{}^]", answer):
        depth += 1 if bracket in "([{" else -1 if bracket in ")]}" else 0
        deepest = max(deepest, depth)
    return deepest > MAX_DEPTH or answer.count("^") > MAX_DEPTH


def digits(expression) -> float:
    """Bound the digits of the numbers that evaluating and expanding a sympy expression writes out, from above."""
    from sympy import Pow, Rational, binomial, factorial

    if isinstance(expression, Rational):
        return max(expression.p.bit_length(), expression.q.bit_length()) * math.log10(2) + 1
    parts = [digits(part) for part in getattr(expression, "args", ())]
    if isinstance(expression, Pow):
        size = _size(expression.exp, parts[1])
        terms = expression.base.args if expression.base.is_Add and not expression.base.is_number else (1,)
        return parts[0] * (size if len(terms) == 1 else math.comb(int(min(size, 1e6)) + len(terms) - 1, len(terms) - 1))
    if isinstance(expression, (factorial, binomial)):
        return parts[0] * _size(expression.args[0], parts[0])
    return max(1.0, sum(parts))


def is_unfinished(expression, gold) -> bool:
    """Return True if an answer leaves a sum, product, limit or integral to be worked out, and the gold answer does not:
    a policy could otherwise restate the problem and be paid for sympy's work."""
    from sympy import Basic, Derivative, Integral, Limit, Product, Sum

    open_work = (Derivative, Integral, Limit, Product, Sum)
    return isinstance(expression, Basic) and expression.has(*open_work) and not gold.has(*open_work)


def _size(expression, digits_of_it: float) -> float:
    """Bound the absolute value of a numeric expression of so many digits, from above."""
    from sympy import Integer

    if isinstance(expression, Integer):
        return float(min(abs(int(expression)), 10**300))
    return 10 ** min(digits_of_it, 300.0) if expression.is_number else 1.0
