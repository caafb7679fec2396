"""A task as the rest of the evaluation knows it: its questions, their gold answers, and how to score them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields

from openrlhf_ebpo.progress import fingerprint

MATH = "math"  # the packaged reward
RULE_COLUMNS = ("is_multiple_answer", "unit", "answer_type", "error")  # any file may have them
NO_LONGER_RULES = {"kind": MATH, "entry": ""}  # in fingerprints, which earlier results have, too


@dataclass(frozen=True)
class Rules:
    """Rules by which the reward `math` compares the answers to one question with its gold answer.

    answer_type: Numerical, Expression, Equation, Interval or Tuple; several with commas; "" unknown.
    is_multiple_answer: the gold is several answers with commas between them; all are asked for, once each.
    ordered: their order counts.
    unit: unit of the gold, which is written without it; a response may carry it.
    tolerance: largest absolute difference from a numerical gold that still counts; None: exact.
    source_gold: the (first) gold answer as the data set spells it, where that is not the gold itself; not compared.
    """

    answer_type: str = ""
    is_multiple_answer: bool = False
    ordered: bool = False
    unit: str = ""
    tolerance: float | None = None
    source_gold: str = ""

    def __post_init__(self) -> None:
        """Check the fields, which scoring trusts: a tolerance that is text would count every answer as wrong.

        Raises:
            ValueError: a field of another type, a tolerance below 0; names the field.
        """
        for each in fields(self):
            value = getattr(self, each.name)
            expected = (int, float, type(None)) if each.name == "tolerance" else type(each.default)
            if not isinstance(value, expected) or (isinstance(value, bool) and expected is not bool):
                raise ValueError(f"its rule {each.name} cannot be {value!r:.60}")
        if self.tolerance is not None and not 0 <= self.tolerance < math.inf:
            raise ValueError(f"its rule tolerance cannot be {self.tolerance!r:.60}; give a number of at least 0")

    @classmethod
    def read(cls, value: object) -> Rules:
        """Return the rules of an object, or of its JSON text.

        Raises:
            ValueError: these are not rules; names the field that is wrong.
        """
        try:
            given = json.loads(value) if isinstance(value, str) else value
        except (ValueError, RecursionError):
            given = None
        if not isinstance(given, dict):
            raise ValueError(f"its rules are not a JSON object: {str(value)[:60]!r}")
        given = {name: each for name, each in given.items() if each is not None}
        names = [each.name for each in fields(cls)]
        if unknown := [name for name in given if name not in names]:
            raise ValueError(f"its rules have {unknown[0]!r}; there are {', '.join(names)}")
        return cls(**given)

    def given(self) -> dict:
        """Return the rules that say more than their defaults."""
        return {name: value for name, value in vars(self).items() if value != getattr(Rules, name)}

    def text(self) -> str:
        """Return `given` as JSON, which `read` reads."""
        return json.dumps(self.given())


def is_several(answer) -> bool:
    """Return True for a list of several answers, which are all asked for."""
    return isinstance(answer, (list, tuple)) and len(answer) > 1


def column_rules(row: Mapping, answer) -> Rules:
    """Read is_multiple_answer, unit, answer_type as in Rules; error: the tolerance.

    Raises:
        ValueError: a tolerance that is not a number.
    """
    tolerance = row.get("error")
    try:
        is_blank = tolerance is None or (isinstance(tolerance, str) and not tolerance.strip())
        tolerance = None if is_blank else abs(float(tolerance))
    except (TypeError, ValueError):
        raise ValueError(f"its tolerance (column error) is not a number: {tolerance!r}") from None
    answer_type = row.get("answer_type") or ""
    multiple = bool(row.get("is_multiple_answer")) or is_several(answer)
    return Rules(
        answer_type=answer_type,
        is_multiple_answer=multiple,
        ordered=answer_type == "Tuple" and not multiple,
        unit=str(row.get("unit") or "").replace("$", "").strip(),
        tolerance=tolerance,
    )


@dataclass(frozen=True)
class Question:
    """id: the id of `data prepare` for the same question, so that a training set can be checked for it; a question
    that a task holds twice gets "-2" behind it. question: bare, without any instruction. gold: as text."""

    id: str
    question: str
    gold: str
    rules: Rules = field(default_factory=Rules)


@dataclass(frozen=True)
class Task:
    """name: short, fit for a folder's name. source: OWNER/NAME@REVISION on the Hub, or path@hash of a local file.
    rows: of the source. notes: what is worth knowing about the source. skipped: rows that cannot be used, one sentence
    each, with the row's number. row_of: row number of each question, by id. reward: what grades responses, MATH or a
    .py file."""

    name: str
    questions: tuple[Question, ...]
    source: str
    notes: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()
    rows: int = 0
    row_of: Mapping[str, int] = field(default_factory=dict)
    reward: str = MATH

    def fingerprint(self) -> str:
        """Return 12 hex digits of questions, golds and rules: the same for two copies that ask and accept the
        same."""
        questions = [asdict(each) | {"rules": asdict(each.rules) | NO_LONGER_RULES} for each in self.questions]
        return fingerprint(json.dumps(questions, sort_keys=True).encode())

    def record(self, notes: Sequence[str] = ()) -> dict:
        """Return the task as a result keeps it."""
        return {
            "name": self.name,
            "source": self.source,
            "questions": len(self.questions),
            "rows": self.rows,
            "fingerprint": self.fingerprint(),
            "notes": list(notes),
            "skipped": list(self.skipped),
        }
