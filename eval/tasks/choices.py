"""Multiple choice: the choices of a row, and the question with them behind letters.

Choices are columns (GPQA: `Correct Answer`, `Incorrect Answer 1`, …), which are shuffled, since the right one is always
the first; or a list in its order, with the index, letter or text of the right one (MMLU).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from string import ascii_uppercase as LETTERS

from .types import CHOICE, Rules

CORRECT, INCORRECT = "Correct Answer", "Incorrect Answer "
LISTS = ("choices", "options")
ASKED = "Answer with the letter of the right choice."

Found = tuple[list, int]  # the choices, and the index of the right one


def lettered(question: str, texts: Sequence, right: int, seed: int | None) -> tuple[str, str, Rules]:
    """Return the question with its choices, the letter of the right one, and the rules.

    seed: of the order, which is the same for a question wherever it stands; None: as they are.

    Raises:
        ValueError: too few or too many choices, one without a text, or another one equals the right one.
    """
    spelled = [_text(text) for text in texts]
    if not 2 <= len(spelled) <= len(LETTERS):
        raise ValueError(f"it has {len(spelled)} choices; 2 to {len(LETTERS)} can be told apart by letters")
    if not all(spelled):
        raise ValueError("one of its choices has no text")
    if not 0 <= right < len(spelled):
        raise ValueError(f"its right choice is number {right}, of {len(spelled)} from 0 on")
    if spelled.count(spelled[right]) > 1:
        raise ValueError(f"two of its choices are the right one, {spelled[right]!r:.60}")
    order = list(range(len(spelled)))
    if seed is not None:
        order.sort(key=lambda i: hashlib.sha256(f"{seed}\0{question}\0{i}".encode()).hexdigest())
    # an indent, so that no line of a choice looks like another choice
    lines = [f"{letter}) {spelled[i]}".replace("\n", "\n   ") for letter, i in zip(LETTERS, order, strict=False)]
    text = "\n".join([question, "", *lines, "", ASKED])
    return text, LETTERS[order.index(right)], Rules(CHOICE, entry=LETTERS[: len(spelled)])


def _text(value) -> str:
    if not isinstance(value, (str, int, float)) or isinstance(value, bool):
        raise ValueError(f"one of its choices is neither text nor number but {type(value).__name__}")
    return str(value).strip()


def named_choices(row: Mapping, correct) -> Found:
    """Return the choices of GPQA's columns, without empty ones, and the index of the right one.

    Raises:
        ValueError: an incorrect one is missing.
    """
    wrong = [value for name, value in sorted(row.items()) if name.startswith(INCORRECT) and value not in (None, "")]
    if correct is None or not wrong:
        raise ValueError(f"it has no {CORRECT!r} or no {INCORRECT + '1'!r}")
    return [correct, *wrong], 0


def listed_choices(row: Mapping, answer) -> Found:
    """Return the choices of the list `choices` or `options`, and the index of the right one. answer: an index from 0, a letter,
    or the text of one.

    Raises:
        ValueError: there is no list, or the answer is none or two of its choices.
    """
    texts = next((list(row[name]) for name in LISTS if is_list(row.get(name))), None)
    if not texts:
        raise ValueError(f"it has no list of choices in {' or '.join(LISTS)}")
    if type(answer) is int:
        return texts, answer
    named = str(answer).strip()
    places = {i for i, text in enumerate(texts) if named in (str(text).strip(), LETTERS[i : i + 1])}
    if not places and re.fullmatch(r"\d{1,2}", named):
        places = {int(named)}
    if len(places) != 1:
        raise ValueError(f"its answer {named!r:.60} is {'more than one' if places else 'none'} of its choices")
    return texts, places.pop()


def is_list(value) -> bool:
    return isinstance(value, (list, tuple)) and len(value) > 0


def refuse_unread(row: Mapping, answer) -> None:
    """Refuse multiple choice whose choices are in another form: it would be asked without them.

    Raises:
        ValueError: the answer is a letter, and there is a column of LISTS, or A and B; or texts stand with labels.
    """
    is_letter = isinstance(answer, str) and re.fullmatch(r"[A-Ja-j]", answer.strip())
    labelled = any(isinstance(row.get(name), Mapping) and "label" in row[name] for name in LISTS)
    if labelled or (is_letter and (any(row.get(name) for name in LISTS) or {"A", "B"} <= row.keys())):
        raise ValueError(
            f"its answer {answer!r:.60} is one of choices that are not a list in {' or '.join(LISTS)}: write them so, or give a "
            "benchmark with a function `choices`"
        )
