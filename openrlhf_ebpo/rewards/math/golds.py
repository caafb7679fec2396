"""Read gold answers: one reader for the labels of a training, for `data prepare` and for evaluation."""

from __future__ import annotations

import json
import re
from decimal import Decimal

from openrlhf_ebpo.rewards.math.extraction import extract_answer, unwrap
from openrlhf_ebpo.rewards.math.grading import GoldError, is_cut_off, is_no_answer, parse_gold
from openrlhf_ebpo.rewards.math.reading import clean

ANSWER_MARK = "####"  # GSM8K writes its answers behind this mark, after the solution
NOT_FOUND = re.compile("proof|not ?found", re.IGNORECASE)  # NuminaMath writes them in the place of an answer
MAX_EXACT = 2**53  # larger integers in JSON become floats in some readers, and lose their last digits
WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2,}")  # not a command of LaTeX
MAX_WORDS = 12  # the grader reads more as well, as a product of letters that no response equals


class MissingGold(GoldError):
    """The gold answer is missing."""


def gold_text(value) -> str:
    r"""Return a gold answer in one spelling: "25" for 25, 25.0, ["25"], the same as a text in JSON, "$25$",
    "\boxed{25}", "Answer: 25" and "… #### 25"; a number in full, "0.00001" for 1e-05; a list of several with commas.

    Raises:
        MissingGold: the label is empty. GoldError: it is neither text nor number, or not one answer.
    """
    texts = [_one_gold(piece) for piece in (value if isinstance(value, (list, tuple)) else [value])]
    if not texts or not all(texts):
        raise MissingGold("it has no gold answer")
    return ", ".join(texts)


def check_words(gold: str) -> None:
    """Raises GoldError: a gold answer is a text."""
    if len(WORD.findall(gold)) > MAX_WORDS:
        raise GoldError(f"its gold answer is a text, and no final answer: {gold!r}")


def read_label(value) -> str:
    """Return the gold answer of a label that the reward `math` can read.

    Raises:
        MissingGold, GoldError: as `gold_text`; it is a text, or cut off.
    """
    gold = gold_text(value)
    check_words(gold)
    text = clean(gold)
    if is_no_answer(text) or is_cut_off(text):  # most need no parser
        parse_gold(gold)
    return gold


def label_answer(label) -> str:
    """Return a label as people read it: the answer of a task that examples/reasoning_gym has made, any other label as
    it is."""
    try:
        return str(json.loads(label)["entry"]["answer"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return str(label)


def _one_gold(value) -> str:
    if value is None or value != value:
        return ""
    if isinstance(value, float) and MAX_EXACT <= abs(value) < float("inf"):
        raise GoldError(f"its gold answer, {value!r}, lost its last digits in reading: write it as text")
    if isinstance(value, (int, float, Decimal)) and not isinstance(value, bool) and abs(value) != float("inf"):
        return format(Decimal(str(int(value) if value == int(value) else value)), "f")
    if not isinstance(value, str):
        raise GoldError(f"its gold answer is neither text nor number but {type(value).__name__}: {str(value)[:60]}")
    if (listed := _in_json(value)) is not None:
        return _one_gold(listed)
    found = extract_answer(value)
    text = unwrap(value) if found is None else found
    text = re.sub(r"\\?\$", "", text.rpartition(ANSWER_MARK)[2]).strip()
    if NOT_FOUND.fullmatch(text):
        raise MissingGold(f"it has no gold answer, but {text!r}")
    return text


def _in_json(text: str) -> str | int | float | None:
    """Return the answer in a JSON list of one; None for a text of another kind.

    Raises:
        GoldError: it is an object, such as tests of code, or a list of several texts or objects.
    """
    try:
        found = json.loads(text) if text.lstrip()[:1] in ("[", "{") else None
    except (ValueError, RecursionError):
        return None
    answers = found if isinstance(found, list) else []
    if isinstance(found, dict) or any(isinstance(each, (dict, list)) for each in answers):
        raise GoldError(f"its gold answer is an object in JSON, and no answer: {text[:60]}")
    if len(answers) > 1 and any(isinstance(each, str) for each in answers):
        raise GoldError(f"its gold answer is a list of {len(answers)} texts, and not one answer: {text[:60]}")
    return answers[0] if len(answers) == 1 else None
