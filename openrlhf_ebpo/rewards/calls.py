"""Calls of other people's code that may never come back, with a limit on how long anybody waits for them.

Python cannot end a thread. So each call of a reward function has a thread of its own, which is left behind when its time
is up: it takes no place from the calls after it (in a pool of threads it would), and being a daemon it does not hold up
the end of the process. What holds Python's lock for ever, such as a regular expression that backtracks without end,
stops everything else in its process too; only a reward in a process of its own is safe from that (pool.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import os
import threading
import traceback
from collections.abc import Awaitable, Callable

from openrlhf_ebpo.redact import redacted_text
from openrlhf_ebpo.rewards.under_way import under_way

TIMEOUT = 60.0  # seconds, --reward.timeout
MAX_CONCURRENT_CALLS = min(32, (os.cpu_count() or 1) + 4)  # as many as asyncio.to_thread, through which upstream calls
LEFT_BEHIND = 1000  # threads that may hang at the same time; each costs memory
NO_PROGRESS = 2 * MAX_CONCURRENT_CALLS  # calls that time out before one comes back


class RewardError(RuntimeError):
    """A reward that cannot be used, in words for the person who wrote the reward function."""


def describe(error: BaseException) -> str:
    """One line without secrets: the error, and where it was raised unless it is our own verdict."""
    if isinstance(error, RewardError):
        return redacted_text(str(error))
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({frames[-1].filename}:{frames[-1].lineno} in {frames[-1].name})" if frames else ""
    return redacted_text(f"{type(error).__name__}: {' '.join(str(error).split())}") + where


def too_long(what: str, seconds: float) -> str:
    return f"{what} took longer than {seconds:g} s (--reward.timeout)"


class Calls:
    """The calls of one reward function. All of its state is changed in the event loop's thread only."""

    def __init__(self):
        self._room = asyncio.Semaphore(MAX_CONCURRENT_CALLS)
        self._hanging = 0  # left behind, not come back yet
        self._in_a_row = 0  # timed out since one came back

    async def run(self, function: Callable, *args, seconds: float | None):
        """What `function` returns. Waiting for a free place does not count; seconds None: no limit.

        Raises:
            RewardError: whatever it raised (SystemExit too), in words; or it took too long, or would never come back.
        """
        async with self._room:
            self._refuse_if_hopeless()
            outcome = _in_a_thread(function, args)
            with under_way.running():
                done, _ = await asyncio.wait({outcome}, timeout=seconds)
            if not done:
                self._hanging += 1
                self._in_a_row += 1
                outcome.add_done_callback(self._came_back)
                raise RewardError(too_long("reward_func", seconds))
        self._in_a_row = 0
        returned, error = outcome.result()
        if error is not None:
            raise RewardError(error)
        return returned

    def _came_back(self, _outcome: asyncio.Future) -> None:
        self._hanging -= 1
        self._in_a_row = 0

    def _refuse_if_hopeless(self) -> None:
        if self._in_a_row >= NO_PROGRESS:
            raise RewardError(
                f"reward_func is not called any more: its last {self._in_a_row} calls took longer than --reward.timeout"
            )
        if self._hanging >= LEFT_BEHIND:
            raise RewardError(
                f"reward_func is not called any more: {self._hanging} calls that took longer than --reward.timeout still run"
            )


def _in_a_thread(function: Callable, args: tuple) -> asyncio.Future:
    """A future of (what was returned, None) or (None, the error's description)."""
    loop, context = asyncio.get_running_loop(), contextvars.copy_context()
    outcome = loop.create_future()

    def call() -> None:
        try:
            result = context.run(function, *args), None
        except BaseException as error:
            result = None, describe(error)
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(_settle, outcome, result)

    threading.Thread(target=call, name="reward", daemon=True).start()
    return outcome


def _settle(outcome: asyncio.Future, result: tuple) -> None:
    if not outcome.done():
        outcome.set_result(result)


async def await_turn(what: str, turn: Callable[..., Awaitable], *args, seconds: float, **kwargs):
    """What a coroutine function returns. One that takes too long is cancelled, and not waited for if it will not end.

    Raises:
        RewardError: as `Calls.run`.
    """
    task = asyncio.ensure_future(_settled(turn, args, kwargs))
    try:
        done, _ = await asyncio.wait({task}, timeout=seconds)
    finally:
        task.cancel()
    if not done:
        raise RewardError(too_long(what, seconds))
    returned, error = (None, f"{what} was cancelled") if task.cancelled() else task.result()
    if error is not None:
        raise RewardError(error)
    return returned


async def _settled(turn: Callable[..., Awaitable], args: tuple, kwargs: dict) -> tuple:
    """As `_in_a_thread`. A SystemExit that left the task would end the event loop, and the process."""
    try:
        return await turn(*args, **kwargs), None
    except asyncio.CancelledError:
        raise
    except BaseException as error:
        return None, describe(error)
