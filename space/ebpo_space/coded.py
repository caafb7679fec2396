"""Samples of an evaluation in numbers: which question each row is of, and which rows are right. Of millions of rows only the
different values become Python's. Pure."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .errors import RunError
from .groups import listed

MAX_QUESTIONS = 100_000  # of a result


class Numbered(NamedTuple):
    """keys of questions in order of their first rows; first: these rows; of: the number of each row's question."""

    keys: list[str]
    first: list[int]
    of: np.ndarray

    def rows(self) -> list[list[int]]:
        """List the rows of each question, ascending."""
        sizes = np.bincount(self.of, minlength=len(self.keys))
        return [rows.tolist() for rows in np.split(np.argsort(self.of, kind="stable"), np.cumsum(sizes))[:-1]]

    def shares(self, rows: np.ndarray) -> list[float]:
        """Which share of each question's rows is marked in `rows`."""
        count = len(self.keys)
        return (np.bincount(self.of, rows, count) / np.bincount(self.of, minlength=count)).tolist()


def numbered(table: pa.Table) -> Numbered:
    """A question's key is its question_id or, in a row without one, its text.

    Raises:
        RunError: a column cannot be read.
    """
    (ids, id_values), (texts, text_values) = (_coded(table, name) for name in ("question_id", "question"))
    pairs, first, of = np.unique(ids * len(text_values) + texts, return_index=True, return_inverse=True)
    if len(pairs) > MAX_QUESTIONS:
        raise RunError(f"More than {MAX_QUESTIONS:,} questions are not shown.")
    numbers: dict[str, int] = {}
    starts, number = [], np.zeros(len(pairs), int)
    for i in np.argsort(first):
        one, other = divmod(int(pairs[i]), len(text_values))
        key = str(id_values[one] or text_values[other])
        if key not in numbers:
            starts.append(int(first[i]))
        number[i] = numbers.setdefault(key, len(numbers))
    return Numbered(list(numbers), starts, number[of])


def truth(table: pa.Table, name: str) -> np.ndarray:
    """Which rows hold something true.

    Raises:
        RunError: the column cannot be read.
    """
    codes, values = _coded(table, name)
    return np.array([bool(value) for value in values], bool)[codes]


def _coded(table: pa.Table, name: str) -> tuple[np.ndarray, list]:
    """Code each row by its value, and list the values; None in all rows without such a column."""
    if name not in table.column_names:
        return np.zeros(len(table), int), [None]
    column = table[name]
    try:
        chunks = pc.dictionary_encode(column, null_encoding="encode").unify_dictionaries().chunks
    except pa.ArrowException:  # lists and the like
        return np.arange(len(table)), listed(column)
    if not chunks:
        return np.zeros(0, int), [None]
    return np.concatenate([chunk.indices.to_numpy() for chunk in chunks]).astype(int), listed(chunks[0].dictionary)
