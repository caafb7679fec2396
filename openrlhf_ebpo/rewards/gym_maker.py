"""Entries of reasoning-gym, made in a process with a fixed PYTHONHASHSEED (processes.py), so the same settings give the same
tasks everywhere: some generators iterate over sets of texts, and some run code that draws from Python's or numpy's own
random numbers.
"""

from __future__ import annotations

import atexit
import functools
import json
import random
import sys
from collections.abc import Callable

from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.rewards import gym
from openrlhf_ebpo.rewards.processes import Lost, Processes, StartError

TRIED = 3  # entries whose own answer does not pass, before the first that does: the kind is refused
MAKE_SECONDS = 600.0  # for one entry; some kinds make their data set first


@functools.cache
def maker() -> Processes:
    """Return the process that makes tasks; it starts at the first one, and ends with this process."""
    processes = Processes(f"{__name__}:load_maker", (), flags=("the limit for a task", ""))
    atexit.register(processes.close)
    return processes


def make(spec: str, name: str, settings: dict, index: int) -> dict:
    """Make entry number `index` of the data set of a kind with these settings. spec: what was asked for, for messages.

    Raises:
        UsageError: there is no such data set, or reasoning-gym fails to make the entry.
        EntryError: the entry cannot be saved; others of the data set may.
    """
    try:
        reply = maker().call((name, settings, index), MAKE_SECONDS)
    except (Lost, StartError) as error:
        reply = {"error": f"its process {error}"}
    if "entry" in reply:
        return gym.decode(reply["entry"])["entry"]
    if "unsaved" in reply:
        raise gym.EntryError(reply["unsaved"])
    if "refused" in reply:
        raise UsageError(reply["refused"])
    raise UsageError(f"{spec}: reasoning-gym cannot make a task of these settings: {reply['error']}")


def load_maker() -> Callable[..., dict]:
    """Return the function that makes an entry; called in the process."""
    last_data_set = functools.lru_cache(maxsize=1)(_data_set)

    def make_entry(name: str, settings: dict, index: int) -> dict:
        try:
            data = last_data_set(name, json.dumps(settings))
        except gym.EntryError as error:
            return {"refused": str(error)}
        _seed(index)
        made = data[index]
        try:
            return {"entry": gym.encode(name, {}, made)}
        except gym.EntryError as error:
            return {"unsaved": str(error)}

    return make_entry


def _data_set(name: str, settings: str):
    _seed(0)
    return gym.create(name, json.loads(settings))


def _seed(number: int) -> None:
    random.seed(number)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(number)
