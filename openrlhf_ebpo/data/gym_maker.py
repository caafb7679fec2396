"""reasoning-gym's tasks, made in a process with a fixed PYTHONHASHSEED, so that the same settings give the same tasks everywhere.

Some generators go through sets of texts, whose order is another in every process unless it is fixed, which only the start
of a process can do; some run code that draws from Python's or numpy's own random numbers.
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

HASH_SEED = "0"
MAKE_SECONDS = 600.0  # for one task; some kinds make their data set first


@functools.cache
def shared() -> Maker:
    """This process's, which ends with it."""
    maker = Maker()
    atexit.register(maker.close)
    return maker


class Maker:
    """The process, started when it is first asked, and again where it has ended."""

    def __init__(self):
        self._processes = Processes(
            f"{__name__}:load", (), warm=False, most=1, flags=("the limit for a task", ""), PYTHONHASHSEED=HASH_SEED
        )

    def __enter__(self) -> Maker:
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def close(self) -> None:
        """End the process, whatever it is at."""
        self._processes.close()

    def entry(self, spec: str, name: str, settings: dict, index: int) -> dict:
        """Entry number `index` of the data set of a kind with these settings. spec: what was asked for, for messages.

        Raises:
            UsageError: there is no such data set, or reasoning-gym fails to make the entry.
            EntryError: the entry cannot be saved; others of the data set may.
        """
        try:
            reply = self._processes.call((name, settings, index), MAKE_SECONDS)
        except (Lost, StartError) as error:
            raise UsageError(f"{spec}: reasoning-gym cannot make a task of these settings: it {error}") from None
        if "entry" in reply:
            return gym.decode(reply["entry"])["entry"]
        if "unsaved" in reply:
            raise gym.EntryError(reply["unsaved"])
        if "refused" in reply:
            raise UsageError(reply["refused"])
        raise UsageError(f"{spec}: reasoning-gym cannot make a task of these settings: {reply['error']}")


def load() -> Callable[..., dict]:
    """In the process: the function that makes an entry."""
    make = functools.lru_cache(maxsize=1)(_data_set)

    def entry(name: str, settings: dict, index: int) -> dict:
        try:
            data = make(name, json.dumps(settings))
        except gym.EntryError as error:
            return {"refused": str(error)}
        _seed(index)
        made = data[index]
        try:
            return {"entry": gym.encode(name, {}, made)}
        except gym.EntryError as error:
            return {"unsaved": str(error)}

    return entry


def _data_set(name: str, settings: str):
    _seed(0)
    return gym.create(name, json.loads(settings))


def _seed(number: int) -> None:
    random.seed(number)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(number)
