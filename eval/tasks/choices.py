"""Multiple choice: the choices of a row, and the question with them behind letters.

Choices are columns (GPQA: `Correct Answer`, `Incorrect Answer 1`, …), which are shuffled, since the right one is always
the first; or in the order that they have: a list with the index, letter or text of the right one (MMLU), texts with labels
(ARC, MedQA), or columns A, B, C, … (C-Eval, CMMLU).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile
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
        ValueError: there is no incorrect one.
    """
    wrong = [value for name, value in sorted(row.items()) if name.startswith(INCORRECT) and value not in (None, "")]
    if correct is None or not wrong:
        raise ValueError(f"it has no {CORRECT!r} or no {INCORRECT + '1'!r}")
    return [correct, *wrong], 0


def listed_choices(row: Mapping, answer) -> Found:
    """Return the choices of `choices` or `options`, and the index of the right one: a list, ARC's texts and labels, texts by
    letter, or one of these as JSON. answer: an index from 0, a letter or label, or the text of one.

    Raises:
        ValueError: there is no list, or the answer is none or two of its choices.
    """
    found = next((found for name in LISTS if (found := _read(row.get(name)))), None)
    if not found:
        raise ValueError(f"it has no list of choices in {' or '.join(LISTS)}")
    texts, labels = found
    named = str(answer).strip()
    places = _places(named, labels)  # a label that a row gives is meant where a text equals it too
    if len(places) != 1 and type(answer) is int:
        return texts, answer
    if len(places) != 1:
        places = _places(named, (labels or LETTERS)[: len(texts)]) | _places(named, texts)
    if not places and re.fullmatch(r"\d{1,2}", named):
        places = {int(named)}
    if len(places) != 1:
        raise ValueError(f"its answer {named!r:.60} is {'more than one' if places else 'none'} of its choices")
    return texts, places.pop()


def lettered_choices(row: Mapping, answer) -> Found:
    """Return the choices of columns A, B, C, …, without empty ones, and the index of the right one. answer: a letter.

    Raises:
        ValueError: there is no A or no B, or the answer is none of them.
    """
    found = _by_letter({name: row[name] for name in takewhile(row.__contains__, LETTERS) if row[name] != ""})
    if not found:
        raise ValueError("it has no choices in columns A, B, …")
    texts, labels = found
    named = str(answer).strip()
    if named not in labels:
        raise ValueError(f"its answer {named!r:.60} is none of its choices {', '.join(labels)}")
    return texts, labels.index(named)


def reader_of(rows: Sequence[tuple[Mapping, object]]) -> Callable[[Mapping, object], Found] | None:
    """Return the function above that reads one of these rows, each with its answer; None where they are not multiple choice:
    in other data these columns are empty, or something else."""
    if any(_read(row.get(name)) for row, _ in rows for name in LISTS):
        return listed_choices
    for row, answer in rows:
        with contextlib.suppress(ValueError):
            lettered_choices(row, answer)
            return lettered_choices
    return None


def refuse_unread(row: Mapping, answer) -> None:
    """Refuse a question whose answer is a letter, and whose choices cannot be read.

    Raises:
        ValueError: the answer is a letter, and a column of LISTS holds something that cannot be read.
    """
    for name in LISTS:
        if row.get(name) and isinstance(answer, str) and re.fullmatch(r"[A-Ja-j]", answer.strip()):
            raise ValueError(
                f"its answer is the letter {answer.strip()}, and its choices in {name!r} are neither a list nor texts by letter: "
                f"{row[name]!r:.60}"
            )


def _read(value) -> tuple[list, list] | None:
    """Return the texts and their labels, [] without any, of any form of LISTS."""
    if isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return None
    if isinstance(value, (list, tuple)):
        return (list(value), []) if value else None
    if not isinstance(value, Mapping):
        return None
    pair = [value.get(name) for name in ("text", "label")]
    if all(isinstance(each, (list, tuple)) and each for each in pair):
        return list(pair[0]), list(pair[1])
    return _by_letter(value)


def _by_letter(texts: Mapping) -> tuple[list, list] | None:
    """Return the texts in the order of their letters, from A and B on; None in a .parquet file is no text."""
    labels = sorted(str(label) for label, text in texts.items() if text is not None)
    if labels[:2] != ["A", "B"] or not set(labels) <= set(LETTERS):
        return None
    return [texts[label] for label in labels], labels


def _places(named: str, among: Sequence) -> set[int]:
    return {place for place, each in enumerate(among) if str(each).strip() == named}
