"""reasoning-gym's tasks, made in a process of its own, so that the same settings give the same tasks everywhere.

Some generators go through sets of texts, whose order is another in every process unless PYTHONHASHSEED is fixed, which only
the start of a process can do; some run code that draws from Python's or numpy's own random numbers.

Run as a module, this is that process: a line of JSON [name, settings, index] in, one with the entry (or why not) out.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import random
import signal
import sys

from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.rewards import gym
from openrlhf_ebpo.rewards.pool import start_module
from openrlhf_ebpo.rewards.pool_worker import private_pipes

HASH_SEED = "0"


@functools.cache
def shared() -> Maker:
    """This process's, which ends with it."""
    maker = Maker()
    atexit.register(maker.close)
    return maker


class Maker:
    """The process, started when it is first asked, and again where it has ended."""

    def __init__(self):
        self._process = None

    def __enter__(self) -> Maker:
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def close(self) -> None:
        """End the process, whatever it is at."""
        if self._process:
            self._process.kill()
            self._process.wait()
            self._process.stdout.close()
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()

    def entry(self, spec: str, name: str, settings: dict, index: int) -> dict:
        """Entry number `index` of the data set of a kind with these settings. spec: what was asked for, for messages.

        Raises:
            UsageError: there is no such data set, or reasoning-gym fails to make the entry.
            EntryError: the entry cannot be saved; others of the data set may.
        """
        if not self._process or self._process.poll() is not None:
            self._process = start_module(__name__, PYTHONHASHSEED=HASH_SEED)
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps([name, settings, index]) + "\n")
            self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line.endswith("\n"):
            raise UsageError(f"{spec}: the process that makes its tasks ended (exit code {self._process.wait()})")
        reply = json.loads(line)
        if "entry" in reply:
            return gym.decode(reply["entry"])["entry"]
        if "unsaved" in reply:
            raise gym.EntryError(reply["unsaved"])
        if "failed" in reply:
            raise UsageError(f"{spec}: reasoning-gym cannot make a task of these settings: {reply['failed']}")
        raise UsageError(reply["refused"])


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the command, which then ends this process
    requests, replies = private_pipes()
    make = functools.lru_cache(maxsize=1)(_data_set)
    for line in requests:
        name, settings, index = json.loads(line)
        replies.write(json.dumps(_reply(make, name, settings, index)) + "\n")
    os._exit(0)


def _reply(make, name: str, settings: dict, index: int) -> dict:
    try:
        data = make(name, json.dumps(settings))
        _seed(index)
        entry = data[index]
    except gym.EntryError as error:
        return {"refused": str(error)}
    except Exception as error:  # generators raise what they like
        return {"failed": repr(error)}
    try:
        return {"entry": gym.encode(name, {}, entry)}
    except gym.EntryError as error:
        return {"unsaved": str(error)}


def _data_set(name: str, settings: str):
    _seed(0)
    return gym.create(name, json.loads(settings))


def _seed(number: int) -> None:
    random.seed(number)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(number)


if __name__ == "__main__":
    main()
