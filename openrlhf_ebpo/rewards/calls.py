"""Calls of other people's reward functions, in processes that can be killed (processes.py). Each process answers several
calls at a time, because most that take long wait for somebody else."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import wrapt

from openrlhf_ebpo.rewards.limits import Limits, default_workers
from openrlhf_ebpo.rewards.processes import Lost, Processes, StartError, TooLong
from openrlhf_ebpo.rewards.returned import RewardError, check_reward, plain

MAX_CONCURRENT_CALLS = min(32, (os.cpu_count() or 1) + 4)  # as many as asyncio.to_thread, through which upstream calls
MAX_FAILED_IN_A_ROW = 4 * MAX_CONCURRENT_CALLS  # calls that hang or end their process before one returns
GROW_SECONDS = 1.0  # calls that wait so long get another process


class Calls:
    """The calls of one reward function.

    path: its .py file. hook: what is called in a process first, by name.
    """

    def __init__(self, path: str, limits: Limits, hook: str):
        most = limits.workers or default_workers()
        self._path, self._limits = path, limits
        self._processes = Processes(
            f"{__name__}:load",
            (path, hook, sys.path),
            warm=False,
            most=most,
            places=-(-MAX_CONCURRENT_CALLS // most),
            all_places=MAX_CONCURRENT_CALLS,
            memory_mb=limits.memory_mb,
            grow_seconds=GROW_SECONDS,
            flags=("--reward.timeout", "--reward.memory"),
        )
        self._threads = ThreadPoolExecutor(MAX_CONCURRENT_CALLS, thread_name_prefix="reward")
        self._failed_in_a_row = self._times_given_up = 0
        self._why_given_up, self._one_at_a_time = "", threading.Lock()

    async def prepare(self) -> None:
        """Import the reward file.

        Raises:
            RewardError: it cannot be imported.
        """
        await self._in_thread(self._prepare)

    async def run(self, *arguments) -> dict:
        """The function's return, checked (returned.py). Waiting for a free place does not count.

        Raises:
            RewardError: whatever it raised (SystemExit too), in words; it took too long, too much memory, ended its
                process, or would only do so again.
        """
        reply = await self._in_thread(self._call, self._times_given_up, arguments)
        if "error" in reply:
            raise RewardError(reply["error"])
        return reply

    def close(self) -> None:
        self._processes.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _in_thread(self, function: Callable, *arguments):
        return await asyncio.get_running_loop().run_in_executor(self._threads, function, *arguments)

    def _prepare(self) -> None:
        try:
            self._processes.prepare()
        except StartError as error:
            raise RewardError(f"{self._path}{error}") from None

    def _call(self, times_given_up: int, arguments: tuple) -> dict:
        """times_given_up: when it was asked for. Calls that waited then fail; of later ones the first shows whether there is
        hope again."""
        hopeless = self._failed_in_a_row >= MAX_FAILED_IN_A_ROW
        with self._one_at_a_time if hopeless else contextlib.nullcontext():
            if times_given_up != self._times_given_up:
                raise RewardError(self._why_given_up)
            try:
                reply = self._processes.call(arguments, self._limits.timeout)
            except StartError as error:
                raise self._give_up(f"{self._path}{error}") from None
            except (TooLong, Lost) as failed:
                self._count_failure()
                raise RewardError(f"reward_func {failed}") from None
            self._failed_in_a_row = 0
            return reply

    def _count_failure(self) -> None:
        self._failed_in_a_row += 1
        if self._failed_in_a_row >= MAX_FAILED_IN_A_ROW:
            calls = f"its last {self._failed_in_a_row} calls hung or ended their process"
            self._give_up(f"reward_func is not called any more: {calls}")

    def _give_up(self, why: str) -> RewardError:
        """Calls that wait need not try."""
        self._why_given_up = why
        self._times_given_up += 1
        return RewardError(why)


def importing_problem(path: str, hook: str) -> str | None:
    """Why a reward file cannot be imported; None if it can."""
    with contextlib.closing(Calls(path, Limits(), hook)) as calls:
        try:
            asyncio.run(calls.prepare())
        except RewardError as error:
            return str(error)
    return None


def load(path: str, hook: str, sys_path: list[str]) -> Callable[..., dict]:
    """In a process of the pool: the file's reward_func, which OpenRLHF would load so, with a checked return that JSON holds.
    What Ray calls first in each worker, `hook`, takes seconds: it is called where it is needed."""
    sys.path[:] = sys_path
    module, _, name = hook.rpartition(".")
    for package in ("openrlhf", "transformers"):
        wrapt.register_post_import_hook(lambda _: getattr(importlib.import_module(module), name)(), package)
    spec = importlib.util.spec_from_file_location("reward_func", path)
    file = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(file)
    function = getattr(file, "reward_func", None)
    if not callable(function):
        raise RewardError("reward_func is not callable, or not there")
    return lambda *arguments: plain(check_reward(function(*arguments)))
