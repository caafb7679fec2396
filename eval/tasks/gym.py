"""`reasoning_gym:NAME` or `reasoning_gym:NAME:{"size": 100, "seed": 1}`: generated tasks of the reasoning-gym package, scored by its own scorers."""

from __future__ import annotations

import importlib.metadata

from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.rewards import gym

from .rows import FLAG, Rows, folder_name, make_task
from .types import REASONING_GYM, Rules, Task

PREFIX = "reasoning_gym:"
SIZE = 200
SEED = 100_000_000  # item i is drawn with seed + i: near seeds share items, so this one is far from any training's


def load_gym(spec: str) -> Task:
    """Return the task of a spec such as chain_sum:{"size": 100}: generated questions, scored by reasoning-gym.

    Raises:
        UsageError: reasoning-gym is not installed, has no such data set or setting, fails to make the questions, or cannot
        tell a right answer from a wrong one.
    """
    try:
        name, given = gym.parse_spec(spec)
        settings = {"size": SIZE, "seed": SEED, **given}
        rows = _rows(spec, name, settings)
    except (gym.EntryError, UsageError) as error:
        raise UsageError(f"{FLAG} {PREFIX}{error}") from error

    def read(row: dict):
        if "problem" in row:
            raise ValueError(row["problem"])
        return row["entry"]["question"], gym.gold(row["entry"]), Rules(REASONING_GYM, entry=row["text"])

    place = f"reasoning_gym {importlib.metadata.version('reasoning-gym')}:{name}"
    source = Rows(("question", "answer"), rows, f"{place}:{','.join(_texts(settings))}", place)
    return make_task(folder_name(f"{PREFIX}{'-'.join([name, *_texts(given)])}"), source, read)


def _texts(settings: dict) -> list[str]:
    return [f"{key}={value}" for key, value in settings.items()]


def _rows(spec: str, name: str, settings: dict) -> list[dict]:
    """Return the entries and their texts; for one that cannot be saved, the problem. The first are tried as for training.

    Raises:
        UsageError: as `load_gym`.
    """
    # not before it is needed: the Space, and evaluations through a server, import this file
    from openrlhf_ebpo.rewards.gym_maker import TRIED, make
    from openrlhf_ebpo.rewards.pool import shared_pool
    from openrlhf_ebpo.rewards.reasoning_gym import GRADER, oracle_problem

    rows, problems = [], []
    for index in range(settings["size"]):
        try:
            entry = make(spec, name, settings, index)
        except gym.EntryError as error:
            rows.append({"problem": str(error)})
            continue
        rows.append({"entry": entry, "text": gym.encode(name, settings, entry)})
        if len(problems) == index < TRIED and (problem := oracle_problem(shared_pool(GRADER), rows[-1]["text"])):
            problems.append(problem)
        if len(problems) == min(TRIED, settings["size"]):
            raise UsageError(f"{problems[-1]}. It cannot be scored: leave {name} out")
    return rows
