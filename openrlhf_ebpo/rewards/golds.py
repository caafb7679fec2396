"""Read gold answers: one reader for the labels of a training, for `data prepare` and for evaluation."""

from __future__ import annotations

import json
import re
from decimal import Decimal

from openrlhf_ebpo.rewards.extraction import extract_answer, unwrap
from openrlhf_ebpo.rewards.grading import GoldError

ANSWER_MARK = "####"  # GSM8K writes its answers behind this mark, after the solution


class MissingGold(GoldError):
    """There is no gold answer."""


def gold_text(value) -> str:
    r"""Return a gold answer in one spelling: "25" for 25, 25.0, ["25"], "$25$", "\boxed{25}", "Answer: 25" and
    "… #### 25"; a number in full, "0.00001" for 1e-05; a list of several with commas.

    Raises:
        MissingGold: there is none. GoldError: it is neither text nor number; in words.
    """
    texts = [_one_gold(piece) for piece in (value if isinstance(value, (list, tuple)) else [value])]
    if not texts or not all(texts):
        raise MissingGold("it has no gold answer")
    return ", ".join(texts)


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
    if isinstance(value, (int, float, Decimal)) and not isinstance(value, bool) and abs(value) != float("inf"):
        return format(Decimal(str(int(value) if abs(value) < 2**53 and value == int(value) else value)), "f")
    if not isinstance(value, str):
        raise GoldError(f"its gold answer is neither text nor number but {type(value).__name__}: {str(value)[:60]}")
    found = extract_answer(value)
    text = unwrap(value) if found is None else found
    return re.sub(r"\\?\$", "", text.rpartition(ANSWER_MARK)[2]).strip()
