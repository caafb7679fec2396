"""Sources of rewards that are not packaged: a user's reward file, called in processes that can be killed
(killable.py), and reward servers (servers.py).

OpenRLHF logs what fails at INFO and continues without a reward. Here the cause reaches the sample. A source that gives
no reward for long enough ends the run, instead of letting every sample wait for it.
"""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import wrapt

from openrlhf_ebpo.rewards.processes.killable import CallFailed, Processes, StartError
from openrlhf_ebpo.rewards.processes.reward_values import RewardError, check_reward
from openrlhf_ebpo.rewards.reward_settings import MEMORY_FLAG, TIMEOUT_FLAG, RewardSettings

MIN_FAILED = 16  # in a row, before a source is given up
GROW_SECONDS = 1.0  # calls that wait so long get another process


class NoReplyError(RewardError):
    """A failure of the source, not of one reward."""


@dataclass
class Failures:
    """Failures in a row: their count, when the first call of them began, and when the last one ended."""

    count: int = 0
    since: float = 0.0
    last: float = 0.0

    def add(self, began: float) -> None:
        self.since = min(self.since, began) if self.count else began
        self.count += 1
        self.last = time.monotonic()

    def lasted(self, count: int, seconds: float) -> bool:
        """Return True for so many failures over so long."""
        return self.count >= count and self.last - self.since >= seconds


class RewardSource:
    """Base of the sources, which gives up after failures in a row.

    Attributes:
        failure: the reason why the source is no longer called; None while it is.
    """

    def __init__(self, concurrent: int, max_failed: int, seconds: float):
        self._room = asyncio.Semaphore(concurrent)
        self._max_failed, self._seconds = max_failed, seconds
        self._failures = Failures()
        self.failure: str | None = None

    async def prepare(self) -> None:
        """Raises RewardError if no reward can come from it."""

    async def ask(self, queries: list, prompts: list, labels: list) -> dict:
        """Return the reward of one response. Waiting for a free place does not count.

        Raises:
            RewardError: the source failed; with the cause.
        """
        async with self._room:
            if self.failure:
                raise RewardError(self.failure)
            began = time.monotonic()
            try:
                reply = await self._reply(queries, prompts, labels)
            except NoReplyError as error:
                self._failures.add(began)
                if not self.failure and (found := self._find_failure()):
                    self.failure = f"{found}; the last: {error}"
                raise
            self._failures = Failures()
            return reply

    async def _reply(self, *arguments) -> dict:
        raise NotImplementedError

    def _find_failure(self) -> str | None:
        """Describe the failures if they are enough to give up."""
        raise NotImplementedError


def default_calls() -> int:
    """Return the number of concurrent calls of a reward function: that of asyncio.to_thread, which upstream uses."""
    return min(32, len(os.sched_getaffinity(0)) + 4)


class RewardFile(RewardSource):
    """The reward_func of a .py file, the first of the sources.

    hook: what is called in a process first, by name.
    """

    def __init__(self, settings: RewardSettings, hook: str):
        most = settings.workers or default_calls()
        waiting = max(most, default_calls())  # calls that are made, or wait for a process
        super().__init__(waiting, max(MIN_FAILED, 4 * most), settings.timeout)
        self._path = settings.sources[0]
        self._processes = Processes(
            f"{__name__}:load",
            (self._path, hook, sys.path),
            (TIMEOUT_FLAG, MEMORY_FLAG),
            memory_mb=settings.memory_mb,
            most=most,
            grow_seconds=GROW_SECONDS,
        )
        self._threads = ThreadPoolExecutor(waiting, thread_name_prefix="reward")

    async def prepare(self) -> None:
        await self._run(self._processes.prepare)

    def close(self) -> None:
        self._processes.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _reply(self, *arguments) -> dict:
        reply = await self._run(self._processes.call, arguments, self._seconds)
        if "error" in reply:
            raise RewardError(reply["error"])
        return reply

    def _find_failure(self) -> str | None:
        if not self._failures.lasted(self._max_failed, self._seconds):
            return None
        return f"reward_func is no longer called: its last {self._failures.count} calls hung or ended their process"

    async def _run(self, function: Callable, *arguments):
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, function, *arguments)
        except StartError as error:
            raise NoReplyError(f"{self._path} {error}") from None
        except CallFailed as lost:
            raise NoReplyError(f"reward_func {lost}") from None


def check_callable(function: object) -> None:
    """Raises RewardError: a reward_func that cannot be called as OpenRLHF does."""
    if not callable(function):
        raise RewardError("reward_func is not callable, or not there")
    if any(map(inspect.iscoroutinefunction, (function, type(function).__call__))):
        raise RewardError("reward_func is an `async def`, which nothing awaits: write `def reward_func`")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # of C code
        return
    try:
        signature.bind("queries", "prompts", "labels")
    except TypeError as error:
        raise RewardError(
            f"reward_func{signature} cannot be called with queries, prompts, labels ({error}): write "
            "`def reward_func(queries, prompts, labels)`"
        ) from None


def load(path: str, hook: str, sys_path: list[str]) -> Callable[..., dict]:
    """Return the file's reward_func, loaded as by OpenRLHF, with a checked return; called in a process
    of the pool. `hook`, which Ray calls first in each worker, takes seconds: it is called when what it changes is
    imported."""
    sys.path[:] = sys_path
    module, _, name = hook.rpartition(".")
    for package in ("openrlhf", "transformers"):
        wrapt.register_post_import_hook(lambda _: getattr(importlib.import_module(module), name)(), package)
    spec = importlib.util.spec_from_file_location("reward_func", path)
    file = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(file)
    function = getattr(file, "reward_func", None)
    check_callable(function)
    return lambda *arguments: check_reward(function(*arguments))
