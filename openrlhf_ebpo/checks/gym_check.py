"""Check for the reasoning-gym reward that every label is an entry, and that the scorers accept their own right answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from openrlhf_ebpo.checks.preflight import BUILT_IN, DATA_SUFFIXES, REWARDS
from openrlhf_ebpo.checks.prompt_rows import of_file
from openrlhf_ebpo.errors import raise_problems

FILE = str(REWARDS / BUILT_IN["reward.remote_url"]["reasoning_gym"])
MAX_SCORED = 3  # entries of each kind in a file
MAX_PROBLEMS = 5  # one mistake is often in every row


def check_training(args: dict) -> None:
    """`check_labels` for the flat arguments of training."""
    flags = ("data.prompt_dataset", "eval.dataset")
    files = {name: f"--{flag}" for flag in flags for name in (args[flag] or "").split(",")}
    check_labels((args["reward.remote_url"] or "").split(",")[0], files, args["data.label_key"])


def check_labels(reward: str, files: dict[str, str], column: str) -> None:
    """Score the right answers of a few entries of each kind, as training will. Reads local files as training reads them;
    what is wrong with a data set on the Hub is found out by the first step.

    files: name -> the flag that names it.

    Raises:
        UsageError: a label is no entry, or the right answer to one does not get full marks; with file, row and reason.
    """
    if reward != FILE:
        return
    paths = {name.partition("@")[0]: flag for name, flag in files.items()}
    problems = [
        f"{flag} {name}, column {column!r}, row {row}: {problem}"
        for name, flag in paths.items()
        if Path(name).suffix in DATA_SUFFIXES and Path(name).is_file()
        for row, problem in _problems(each[column] for each in of_file(name))
    ]
    more = len(problems) - MAX_PROBLEMS
    first = [*problems[:MAX_PROBLEMS], *([f"and {more} more rows like these"] if more > 0 else [])]
    raise_problems(first and [*first, "docs/data.md says how rows for this reward are made"])


def _problems(labels: Iterable) -> Iterator[tuple[int, str]]:
    from openrlhf_ebpo.rewards import gym
    from openrlhf_ebpo.rewards.pool import Pool
    from openrlhf_ebpo.rewards.reasoning_gym import GRADER, oracle_problem

    pool, seen = Pool(workers=1, grader=GRADER), Counter()
    try:
        for row, label in enumerate(labels, 1):
            try:
                kind = gym.decode(label)["name"]
            except gym.EntryError as error:
                yield row, str(error)
                continue
            seen[kind] += 1
            if seen[kind] <= MAX_SCORED and (problem := oracle_problem(pool, label)):
                yield row, problem
    finally:
        pool.close()
