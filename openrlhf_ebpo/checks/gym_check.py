"""Check for the reasoning-gym reward that every label is an entry, and that the scorers accept their own right answers."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from openrlhf_ebpo.checks.preflight import BUILT_IN, DATA_SUFFIXES, REWARDS
from openrlhf_ebpo.errors import raise_problems

FILE = str(REWARDS / BUILT_IN["reward.remote_url"]["reasoning_gym"])
MAX_SCORED = 3  # entries of each kind in a file
MAX_PROBLEMS = 5  # one mistake is often in every row


def check_labels(reward: str | None, files: dict[str, str | None], column: str) -> None:
    """Score the right answers of a few entries of each kind, as training will. Reads local files as training reads them;
    what is wrong with a data set on the Hub is found out by the first step.

    files: flag -> names of data sets, with commas between them.

    Raises:
        UsageError: a label is not an entry, or its right answer does not get full marks; with file, row and reason.
    """
    if (reward or "").split(",")[0] != FILE:
        return
    named = {name.partition("@")[0]: flag for flag, names in files.items() for name in (names or "").split(",")}
    problems = [
        f"{flag} {name}, column {column!r}, row {row}: {problem}"
        for name, flag in named.items()
        if Path(name).suffix in DATA_SUFFIXES and Path(name).is_file()
        for row, problem in _problems(name, column)
    ]
    if more := len(problems[MAX_PROBLEMS:]):
        problems[MAX_PROBLEMS:] = [f"and {more} more rows like these"]
    raise_problems(problems and [*problems, "docs/data.md says how rows for this reward are made"])


def _problems(name: str, column: str) -> Iterator[tuple[int, str]]:
    from openrlhf_ebpo.rewards import gym
    from openrlhf_ebpo.rewards.pool import Pool
    from openrlhf_ebpo.rewards.reasoning_gym import GRADER, oracle_problem

    seen: Counter[str] = Counter()
    with contextlib.closing(Pool(workers=1, grader=GRADER)) as pool:
        for row, label in enumerate((each[column] for each in _rows(name)), 1):
            try:
                kind = gym.decode(label)["name"]
            except gym.EntryError as error:
                yield row, str(error)
                continue
            seen[kind] += 1
            if seen[kind] <= MAX_SCORED and (problem := oracle_problem(pool, label)):
                yield row, problem


def _rows(place: str) -> Iterator[dict]:
    """Yield the rows of a data file as datasets reads its kind."""
    from datasets import load_dataset

    kind = Path(place).suffix[1:]
    yield from load_dataset("json" if kind == "jsonl" else kind, data_files=place, split="train", streaming=True)
