"""What the list shows of a group's texts: its prompt or, in a search, the words around the first hit."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from .errors import RunError
from .groups import Groups, Index, file_of, listed, read_columns
from .text import lowered

SECONDS = 1.0  # to look for hits; groups that are left show their prompts
_AROUND = 36  # characters before a hit
_AFTER = 90


@dataclass(frozen=True)
class Words:
    """prompt, and in a search: where the first hit is (nothing where it is in the prompt), and the text around it."""

    prompt: str = ""
    where: str = ""
    before: str = ""
    hit: str = ""
    after: str = ""


def words_of(index: Index, groups: Groups, positions: np.ndarray, find: str = "") -> dict[int, Words]:
    """position -> Words, each file read once; nothing for a file that cannot be read."""
    found: dict[int, Words] = {}
    until = time.monotonic() + SECONDS
    for step in dict.fromkeys(groups.step[positions].tolist()):
        here = [int(p) for p in positions if groups.step[p] == step]
        name = file_of(index.run, step)
        if name is None:
            continue
        searched = find if time.monotonic() < until else ""
        columns = ("prompt", "label", "response") if searched else ("prompt",)
        first = min(int(groups.row[p]) for p in here)
        last = max(int(groups.row[p] + (groups.size[p] if searched else 1)) for p in here)
        try:
            table = read_columns(index.run, name, columns, slice(first, last))
            for p in here:
                start = int(groups.row[p]) - first
                found[p] = _words(table.slice(start, int(groups.size[p]) if searched else 1), searched)
        except RunError:
            continue
    return found


def _words(table: pa.Table, find: str) -> Words:
    prompt = _text(table, "prompt", 0)
    if not find:
        return Words(prompt)
    places = [("", "prompt", 0), ("expected:", "label", 0)]
    places += [(f"answer {i + 1}:", "response", i) for i in range(table.num_rows)]
    for where, column, row in places:
        text = _text(table, column, row)
        at = lowered(text).find(lowered(find))
        if at >= 0:
            return Words(prompt, where, *around(text, at, len(find)))
    return Words(prompt)


def around(text: str, at: int, length: int) -> tuple[str, str, str]:
    """Before a hit, the hit, after it, on one line."""
    before = " ".join(text[max(at - _AROUND, 0) : at].split("\n"))
    after = " ".join(text[at + length : at + length + _AFTER].split("\n"))
    return ("…" if at > _AROUND else "") + before, text[at : at + length], after


def _text(table: pa.Table, column: str, row: int) -> str:
    if column not in table.column_names or row >= table.num_rows:
        return ""
    return str(listed(table[column].slice(row, 1))[0] or "")
