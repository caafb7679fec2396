"""For the reasoning-gym reward: every label is an entry, and the scorers know their own right answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from openrlhf_ebpo.checks.preflight import BUILT_IN, DATA_SUFFIXES, REWARDS
from openrlhf_ebpo.errors import UsageError

FILE = str(REWARDS / BUILT_IN["reward.remote_url"]["reasoning_gym"])
SCORED = 3  # entries of each kind in a file
SHOWN = 5  # problems; one mistake is often in every row


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
        for row, problem in _problems(_labels(name, column))
    ]
    if problems:
        more = [f"and {len(problems) - SHOWN} more rows like these"] if len(problems) > SHOWN else []
        raise UsageError("\n".join([*problems[:SHOWN], *more, "docs/data.md says how rows for this reward are made"]))


def _labels(path: str, column: str) -> Iterable:
    from datasets import load_dataset

    kind = Path(path).suffix[1:]
    return load_dataset("json" if kind == "jsonl" else kind, data_files=path, split="train")[column]


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
            if seen[kind] <= SCORED and (problem := oracle_problem(pool, label)):
                yield row, problem
    finally:
        pool.close()
