"""Grade the answer of a response: finding it is ours, comparing it with the gold answer is math-verify's.

The answer is the last `\\boxed{...}` or, without one, the last "Answer:" line; a number anywhere else does not
count. `grade` is unbounded in time and memory, as sympy is: pool.py runs it in processes that can be killed.
"""

from __future__ import annotations

import functools
import logging
import math
import re
import unicodedata

MAX_CHARACTERS = 1000  # of an answer, unless the gold is as long: parsing takes seconds beyond
MAX_DEPTH = 40  # nested brackets in an answer: the parser's time grows with a power of it
MAX_DIGITS = 10_000  # of a number that is written out to be compared (2024^{2024} has 6,690)

SPECIAL = re.compile(r"<[|｜][^<>\n]{1,60}[|｜]>|</?s>|<(?:bos|eos|pad|end_of_turn)>")  # of decoded tokens
# A second backslash is forgiven. A bare number needs no braces, and any other escaped character is not a brace.
TOKEN = re.compile(
    r"(?P<open>\\{1,2}(?:boxed|fbox)\s*\{)|\\{1,2}boxed\s+(?P<bare>-?\d+)|\\.|(?P<brace>[{}])", re.DOTALL
)
# A word: letters alone, perhaps in a text command.
WORD = re.compile(r"(?:\\(?:text|math|operator|m)(?:bf|it|rm|sf|tt|up|normal|name|box)?\s*\{\s*)?([A-Za-z]{3,})\s*\}?")
INTEGER = re.compile(r"[+-]?[0-9]{1,1000}")
ANSWER_LINE = re.compile(r"[ \t*_#>]*(?:the )?(?:final )?answer[ \t*_]*:(.*)", re.IGNORECASE)
SYMBOLS = {
    **dict.fromkeys("−–—‐‑‒﹣", "-"),
    **dict.fromkeys("·⋅∙∗", r"\cdot "),
    **{"×": r"\times ", "÷": "/", "π": r"\pi ", "∞": r"\infty ", "±": r"\pm ", "°": r"^\circ ", "′": "'"},
    **{"≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ", "∪": r"\cup ", "∩": r"\cap ", "∈": r"\in ", "∅": r"\emptyset "},
}

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


def warm_up() -> None:
    """Import and use everything once, so that no answer pays for it."""
    logging.getLogger("math_verify").setLevel(logging.CRITICAL)
    for gold, answer in WARM_UP:
        grade(gold, answer)


def extract_answer(response: str) -> str | None:
    """Find the answer of a response ("" for an empty box); None if it has neither a box nor an "Answer:" line.
    Takes time linear in the length of the response."""
    box = last_box(response) if "box" in response else None
    return _last_answer_line(response) if box is None else box.strip()


def last_box(text: str) -> str | None:
    """Return the content of the box that closes last. One that never closes does not count: the response was cut off there."""
    content, opened = None, []  # of each open brace: where its box's content starts, None for a brace of no box
    for token in TOKEN.finditer(text):
        if token["open"]:
            opened.append(token.end())
        elif token["bare"]:
            content = token["bare"]
        elif token["brace"] == "{":
            opened.append(None)
        elif token["brace"] == "}" and opened and (start := opened.pop()) is not None:
            content = text[start : token.start()]
    return content


def _last_answer_line(text: str) -> str | None:
    """Return what follows the last "Answer:" at the start of a line, on that line or, if nothing does, on the next one."""
    lines = SPECIAL.sub("", text).split("\n")
    for number in range(len(lines) - 1, -1, -1):
        if match := ANSWER_LINE.match(lines[number]):
            rest = (line.strip(" \t\r*_") for line in [match[1], *lines[number + 1 :]])
            return next((line for line in rest if line), "")
    return None


def grade(gold: str, answer: str) -> bool:
    """Compare an extracted answer with the gold one.

    Raises:
        GoldError: the gold cannot be read.
    """
    golds = parse_gold(gold)
    gold, answer = clean(gold), clean(answer)
    if answer == gold:
        return True
    if INTEGER.fullmatch(gold) and INTEGER.fullmatch(answer):  # most answers: no need to parse
        return int(gold) == int(answer)
    if (word := WORD.fullmatch(gold)) and (other := WORD.fullmatch(answer)):  # as formulas, DNE and END are equal
        return word[1].lower() == other[1].lower()
    if is_hopeless(answer, len(gold)):
        return False
    answers = _parse(answer)
    is_huge = any(digits(expression) > MAX_DIGITS for expression in (golds[0], *answers))
    if is_huge or any(is_unfinished(expression, golds[0]) for expression in answers):
        return bool(answers) and answers[0] == golds[0]  # as they are written
    return _equal(golds, answers) and (not _collapses(golds[0], gold) or _same_pieces(gold, answer))


@functools.lru_cache(maxsize=4096)
def parse_gold(gold: str) -> list:
    """Parse a gold answer with math-verify: a sympy expression, then its text.

    Raises:
        GoldError: the gold cannot be read.
    """
    import sympy

    text = clean(gold)
    if INTEGER.fullmatch(text):
        return [sympy.Integer(text), text]
    parsed = _parse(text) if text else []
    if not parsed or isinstance(parsed[0], str):
        raise GoldError(f"math-verify cannot read the gold answer {gold!r}")
    return parsed


def _parse(text: str) -> list:
    """Read all of the text as one boxed formula."""
    from math_verify import LatexExtractionConfig, parse

    return parse(f"\\boxed{{{text}}}", [LatexExtractionConfig(boxed_match_priority=0)], parsing_timeout=None)


def _equal(golds: list, answers: list) -> bool:
    from math_verify import verify

    return verify(golds, answers, allow_set_relation_comp=True, timeout_seconds=None)


def clean(text: str) -> str:
    """Give one spelling to what differs in typing only: dollars, mathematics brackets, thousands spaces, final full stop,
    and Unicode digits, minus, fractions, powers, roots and operators."""
    text = SPECIAL.sub("", text).replace("\\$", "").replace("$", "")
    text = re.sub(r"(?<=\d)(?:\\[,;:! ]|\{,\})+(?=\d{3})", "", text if text.isascii() else _ascii(text)).strip()
    for start, end in (("\\(", "\\)"), ("\\[", "\\]")):
        text = text.removeprefix(start).removesuffix(end)
    return text.strip().removesuffix(".").strip()


def _ascii(text: str) -> str:
    text = re.sub(r"√\s*(\d+|[^\W\d_])", r"\\sqrt{\1}", text).replace("√", "\\sqrt")
    return "".join(character if character.isascii() else _ascii_character(character) for character in text)


def _ascii_character(character: str) -> str:
    if character in SYMBOLS:
        return SYMBOLS[character]
    kind = unicodedata.decomposition(character).partition(" ")[0]
    if kind in ("<fraction>", "<super>", "<sub>"):
        plain = unicodedata.normalize("NFKC", character).replace("−", "-")
        over, _, under = plain.partition("⁄")
        return {"<fraction>": f"\\frac{{{over}}}{{{under}}}", "<super>": f"^{{{plain}}}", "<sub>": f"_{{{plain}}}"}[
            kind
        ]
    digit = unicodedata.decimal(character, None)
    return unicodedata.normalize("NFKC", character) if digit is None else str(digit)


def is_hopeless(answer: str, gold_length: int) -> bool:
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
    """Return True if an answer leaves a sum, product, limit or integral to be worked out, and the gold answer does not: a
    policy could otherwise restate the problem and be paid for sympy's work."""
    from sympy import Basic, Derivative, Integral, Limit, Product, Sum

    open_work = (Derivative, Integral, Limit, Product, Sum)
    return isinstance(expression, Basic) and expression.has(*open_work) and not gold.has(*open_work)


def _size(expression, digits_of_it: float) -> float:
    """Bound the absolute value of a numeric expression of so many digits, from above."""
    from sympy import Integer

    if isinstance(expression, Integer):
        return float(min(abs(int(expression)), 10**300))
    return 10 ** min(digits_of_it, 300.0) if expression.is_number else 1.0


def _collapses(gold, text: str) -> bool:
    """Return True for a gold list, not a set, that names an answer twice: as sympy's set it has forgotten that."""
    return hasattr(gold, "is_FiniteSet") and gold.is_FiniteSet and len(gold.args) < len(_pieces(text))


def _pieces(text: str) -> list[str]:
    """Split at commas outside brackets. A set in braces is one piece."""
    depth, pieces = 0, [""]
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        if character == "," and depth == 0:
            pieces.append("")
        else:
            pieces[-1] += character
    return pieces


def _same_pieces(gold: str, answer: str) -> bool:
    """Return True if two lists hold the same answers as often, in any order."""
    left = [_parse(piece) for piece in _pieces(answer)]
    for piece in map(_parse, _pieces(gold)):
        match = next((i for i, other in enumerate(left) if _equal(piece, other)), None)
        if match is None:
            return False
        left.pop(match)
    return not left
