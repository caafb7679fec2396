"""Find the columns of a data set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from openrlhf_ebpo.errors import UsageError

# In this order: DAPO's own names first, then what other data sets call them.
PROMPT_COLUMNS = ("prompt", "question", "problem", "query", "instruction", "input")
ANSWER_COLUMNS = (
    "reward_model.ground_truth",
    "answer",
    "final_answer",
    "expected_answer",
    "ground_truth",
    "gold",
    "target",
    "label",
    "solution",
)
SOURCE_COLUMNS = ("datasource", "data_source", "source")


@dataclass(frozen=True)
class Columns:
    """Names of the columns, dots lead into structs. datasource: None if the rows name none."""

    prompt: str
    answer: str
    datasource: str | None

    def values(self, row: dict) -> tuple:
        """Return (prompt, answer, datasource) of a row; None for what is missing."""
        return tuple(lookup(row, name) if name else None for name in (self.prompt, self.answer, self.datasource))


def lookup(row: Mapping, name: str):
    """Return the value at a dotted name, or None. A column whose own name has dots comes first."""
    if name in row:
        return row[name]
    for part in name.split("."):
        row = row.get(part) if isinstance(row, Mapping) else None
    return row


def find_columns(found: Sequence[str], place: str, prompt: str | None, answer: str | None) -> Columns:
    """Return the columns named by flags, or the first known name that a data set has, in upper or lower case.

    found: names of its columns. place: its name.

    Raises:
        UsageError: the named or every known column is missing.
    """
    by_name = {name.lower(): name for name in reversed(found)}

    def first_of(known: Sequence[str]) -> str | None:
        return next((by_name[name] for name in known if name in by_name), None)

    chosen = []
    for flag, named, known in (
        ("--prompt_column", prompt, PROMPT_COLUMNS),
        ("--answer_column", answer, ANSWER_COLUMNS),
    ):
        name = named or first_of(known)
        if name not in found:
            missing = f"{place} has none of {', '.join(known)}"
            if named:
                missing = f"{flag} {named}: {place} has no such column"
            raise UsageError(f"{missing}, only {', '.join(found)}: name one with {flag} (dots lead into structs)")
        chosen.append(name)
    return Columns(*chosen, first_of(SOURCE_COLUMNS))
