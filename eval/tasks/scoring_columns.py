"""Columns that say how a row's answers are compared; any file may have them, each may be missing."""

from __future__ import annotations

from collections.abc import Mapping

from .types import Rules

COLUMNS = ("is_multiple_answer", "unit", "answer_type", "error")


def column_rules(row: Mapping, answer) -> Rules:
    """Read is_multiple_answer, unit, answer_type as in Rules; error: the tolerance.

    Raises:
        ValueError: a tolerance that is not a number.
    """
    several = isinstance(answer, (list, tuple)) and len(answer) > 1
    answer_type = row.get("answer_type") or ""
    multiple = bool(row.get("is_multiple_answer")) or several
    return Rules(
        answer_type=answer_type,
        is_multiple_answer=multiple,
        ordered=answer_type == "Tuple" and not multiple,
        unit=str(row.get("unit") or "").replace("$", "").strip(),
        tolerance=_tolerance(row.get("error")),
    )


def _tolerance(value) -> float | None:
    if value is None or (isinstance(value, str) and not value.strip()):
        return None
    try:
        return abs(float(value))
    except (TypeError, ValueError):
        raise ValueError(f"its tolerance (column error) is not a number: {value!r}") from None
