r"""One spelling for gold answers: "025", "25.0", 25.0, ["25"], "$25$" and "\boxed{25}" are all the gold 25."""

from __future__ import annotations

import re

from openrlhf_ebpo.data.questions import answer_key, answer_text
from openrlhf_ebpo.rewards.grading import extract_answer

DEGREES = re.compile(r"\s*(?:\^\s*\{?\s*\\circ\s*\}?|°)$")
LAST_LINE = "####"  # GSM8K writes its answers behind this mark, after the solution


def gold_text(value) -> str:
    r"""A gold answer as text: unboxed, without any $, a list joined with commas.

    Raises:
        ValueError: there is none, or it is neither text nor number; in words.
    """
    texts = [_one_gold(piece) for piece in (value if isinstance(value, (list, tuple)) else [value])]
    if not texts or not all(texts):
        raise ValueError("it has no gold answer")
    return ", ".join(texts)


def integer_text(text: str) -> str:
    """A gold answer that has to be an integer, without leading zeros, decimals, separators and degrees.

    Raises:
        ValueError: it is no integer.
    """
    number = answer_key(DEGREES.sub("", text))
    if not re.fullmatch(r"-?\d+", number):
        raise ValueError(f"its gold answer {text[:60]!r} is no integer")
    return number


def _one_gold(value) -> str:
    text = None if isinstance(value, bool) else answer_text(value)
    if text is None:
        raise ValueError(f"its gold answer is neither text nor number but {type(value).__name__}: {str(value)[:60]}")
    if r"\boxed" in text:
        text = extract_answer(text) or ""
    return re.sub(r"\\?\$", "", text.rpartition(LAST_LINE)[2]).strip()
