"""Tables in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], numbers: int = 0) -> str:
    """numbers: how many of the last columns are aligned to the right."""
    return "\n".join([head(columns, numbers), *map(line, rows)])


def head(columns: Sequence[str], numbers: int = 0) -> str:
    """The first two lines, for rows that are printed one by one."""
    rule = ["---"] * (len(columns) - numbers) + ["---:"] * numbers
    return f"{line(columns)}\n{line(rule)}"


def line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
