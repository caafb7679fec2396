"""Multiple choice: the choices of a row, and the question with them behind letters.

Choices are columns (GPQA: `Correct Answer`, `Incorrect Answer 1`, …), which are shuffled, since the right one is always
the first; or a list with the index, letter or text of the right one (MMLU, ARC), in the order that they have there.
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

Lettered = tuple[str, str, Rules]


def lettered(question: str, texts: Sequence, right: int, seed: int | None) -> Lettered:
    """The question with its choices, the letter of the right one, and the rules.

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
    order = sorted(range(len(spelled)), key=lambda i: _rank(seed, question, i))
    # an indent, so that no line of a choice looks like another choice
    lines = [f"{letter}) {spelled[i]}".replace("\n", "\n   ") for letter, i in zip(LETTERS, order, strict=False)]
    text = "\n".join([question, "", *lines, "", ASKED])
    return text, LETTERS[order.index(right)], Rules(CHOICE, entry=LETTERS[: len(spelled)])


def _rank(seed: int | None, question: str, index: int):
    return index if seed is None else hashlib.sha256(f"{seed}\0{question}\0{index}".encode()).hexdigest()


def _text(value) -> str:
    if not isinstance(value, (str, int, float)) or isinstance(value, bool):
        raise ValueError(f"one of its choices is neither text nor number but {type(value).__name__}")
    return str(value).strip()


def named_choices(row: Mapping, correct) -> tuple[list, int]:
    """Of GPQA's columns; those without a value are none.

    Raises:
        ValueError: there is no incorrect one.
    """
    wrong = [value for name, value in sorted(row.items()) if name.startswith(INCORRECT) and value not in (None, "")]
    if correct is None or not wrong:
        raise ValueError(f"it has no {CORRECT!r} or no {INCORRECT + '1'!r}")
    return [correct, *wrong], 0


def listed_choices(row: Mapping, answer) -> tuple[list, int]:
    """Of a list `choices` or `options`, or ARC's texts and labels. answer: an index from 0, a letter or label, or the text
    of one.

    Raises:
        ValueError: there is no list, or the answer is none or two of its choices.
    """
    found = next((row[name] for name in LISTS if holds_choices(row.get(name))), None)
    labels = list(LETTERS)
    if isinstance(found, Mapping):
        found, labels = found["text"], list(found["label"])
    if not isinstance(found, (list, tuple)):
        raise ValueError(f"it has no list of choices in {' or '.join(LISTS)}")
    return list(found), _right(answer, list(found), labels)


def holds_choices(value) -> bool:
    """Whether a value of LISTS is of one of the two forms: in other data these columns are empty, or something else."""
    if isinstance(value, Mapping):
        return all(holds_choices(value.get(name)) for name in ("text", "label"))
    return isinstance(value, (list, tuple)) and len(value) > 0


def _right(answer, texts: list, labels: list) -> int:
    if isinstance(answer, int) and not isinstance(answer, bool):
        return answer
    named = str(answer).strip()
    readings = {i for i, label in enumerate(labels[: len(texts)]) if label == named}
    readings |= {i for i, text in enumerate(texts) if str(text).strip() == named}
    if not readings and re.fullmatch(r"\d{1,2}", named):
        readings = {int(named)}
    if len(readings) != 1:
        raise ValueError(f"its answer {named!r:.60} is {'none' if not readings else 'more than one'} of its choices")
    return readings.pop()
