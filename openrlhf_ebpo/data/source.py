"""Find the columns of a data set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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


def lookup(row: Mapping, name: str):
    """Return the value at a dotted name, or None. A column whose own name has dots comes first."""
    if name in row:
        return row[name]
    for part in name.split("."):
        row = row.get(part) if isinstance(row, Mapping) else None
    return row


def first_known(found: Sequence[str], known: Sequence[str]) -> str | None:
    """Return the first of the known names that a column has, in upper or lower case; None without one."""
    by_name = {name.lower(): name for name in reversed(found)}
    return next((by_name[name.lower()] for name in known if name.lower() in by_name), None)


def choose_column(
    found: Sequence[str], known: Sequence[str], place: str, flag: str = "", named: str | None = None
) -> str:
    """Return the column that `flag` has named or, without that, the first of the known ones. place: the data set.

    Raises:
        UsageError: the named or every known column is missing; names the columns that were found.
    """
    name = named or first_known(found, known)
    if name in found:
        return name
    missing = f"{flag} {named}: {place} has no such column" if named else f"{place} has none of {', '.join(known)}"
    remedy = f": name one with {flag} (dots lead into structs)" if flag else ""
    raise UsageError(f"{missing}, only {', '.join(found) or 'none'}{remedy}")
