"""Read all labels of a training with the reward `math` before anything starts, as the reward will read them."""

from __future__ import annotations

import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from openrlhf_ebpo.command import one_line
from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.rewards.math.golds import check_words, gold_text
from openrlhf_ebpo.rewards.math.grading import GoldError
from openrlhf_ebpo.rewards.math.reading import INTEGER, clean
from openrlhf_ebpo.rewards.processes.pool import shared_pool

SECONDS = 60.0  # for the labels that are not integers: 3 ms each on one core
THREADS = 16  # that wait for the pool's processes
UNTRIED = "untried"
MAX_REASON_CHARS = 160


class Labels(NamedTuple):
    """Result of reading labels. unreadable: (first row, rows, reason) of equal ones. untried: rows for which the time
    was too short."""

    total: int
    unreadable: list[tuple[int, int, str]]
    untried: int


def read_labels(labels: Iterable, seconds: float = SECONDS) -> Labels:
    """Read every label; equal ones once, and only those that are not integers in the processes of the pool.

    Raises:
        ReportedError: the pool's processes do not start.
    """
    row, rows, unreadable, untried = 0, {}, [], 0
    for row, label in enumerate(labels, 1):
        try:
            rows.setdefault(gold_text(label), [row, 0])[1] += 1
        except GoldError as error:
            unreadable.append((row, 1, str(error)))
    until = time.monotonic() + seconds

    def check(gold: str) -> str | None:
        """Describe the fault of an unreadable label."""
        try:
            check_words(gold)
            return UNTRIED if time.monotonic() > until else shared_pool().check_gold(gold)
        except GoldError as error:
            return str(error)

    formulas = [gold for gold in rows if not INTEGER.fullmatch(clean(gold))]
    with ThreadPoolExecutor(THREADS) as threads:
        for gold, reason in zip(formulas, threads.map(check, formulas), strict=True):
            if reason == UNTRIED:
                untried += rows[gold][1]
            elif reason:
                unreadable.append((*rows[gold], reason))
    return Labels(row, unreadable, untried)


def label_notices(source: str, column: str, labels: Iterable, flag: str = "--data.label_key") -> list[str]:
    """Read the labels of a data set, and warn of those that the reward cannot read. source: the data set, with its
    flag. flag: names the column.

    Raises:
        UsageError: it can read none, or less than half of them.
    """
    found = read_labels(labels)
    late = [f"{source}: {found.untried:,} of {found.total:,} labels were not looked at: it took {SECONDS:g} s"]
    notices = late if found.untried else []
    if not found.unreadable:
        return notices
    row, _, reason = min(found.unreadable)
    count = sum(rows for _, rows, _ in found.unreadable)
    text = (
        f"{source}: {count:,} of {found.total:,} labels (column {column!r}, {flag}) cannot be "
        f"read as gold answers; the first in row {row:,}: {one_line(reason, MAX_REASON_CHARS)}"
    )
    if 2 * count > found.total:
        raise UsageError(
            f"{text}. Name the column of the final answers with {flag}; openrlhf-ebpo data prepare writes one"
        )
    return [
        *notices,
        f"warning: {text}. Responses to these prompts get no reward: correct these rows, or leave them out",
    ]
