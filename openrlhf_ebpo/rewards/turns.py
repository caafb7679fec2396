"""An agent's turns, which run in the rollout actor's event loop, since they talk to the engine: a limit for each, and a
warning about one that stops all."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import threading
import time
import traceback
from collections.abc import Awaitable, Callable

from openrlhf_ebpo.rewards.returned import RewardError, describe

logger = logging.getLogger(__name__)
STALL_SECONDS = 30.0


async def await_turn(name: str, turn: Callable[..., Awaitable], *args, seconds: float, **kwargs):
    """Return what a coroutine function returns. One that takes too long is cancelled, and not awaited if it does not end.

    Raises:
        RewardError: the error that it raised (SystemExit too); or it took too long.
    """
    task = asyncio.ensure_future(_settle(turn, args, kwargs))
    try:
        done, _ = await asyncio.wait({task}, timeout=seconds)
    finally:
        task.cancel()
    if not done:
        raise RewardError(f"{name} took longer than {seconds:g} s (--reward.timeout)")
    returned, error = (None, f"{name} was cancelled") if task.cancelled() else task.result()
    if error is not None:
        raise RewardError(error)
    return returned


async def _settle(turn: Callable[..., Awaitable], args: tuple, kwargs: dict) -> tuple:
    """Return (result, None) or (None, error). A SystemExit that left the task would end the event loop."""
    try:
        return await turn(*args, **kwargs), None
    except asyncio.CancelledError:
        raise
    except BaseException as error:
        return None, describe(error)


def watch_turns(seconds: float = STALL_SECONDS) -> None:
    """Start a thread that warns, with the line, when a turn blocks the running event loop instead of awaiting: that stops
    generation and every limit here. It ends with the loop."""
    arguments = (asyncio.get_running_loop(), threading.get_ident(), seconds)
    threading.Thread(target=_watch, args=arguments, name="watch_turns", daemon=True).start()


def _watch(loop: asyncio.AbstractEventLoop, its_thread: int, seconds: float) -> None:
    while not loop.is_closed():
        turned, since = threading.Event(), time.monotonic()
        with contextlib.suppress(RuntimeError):  # it has just been closed
            loop.call_soon_threadsafe(turned.set)
        while not turned.wait(seconds) and not loop.is_closed():
            frame = sys._current_frames().get(its_thread)
            if any(each.f_code is _settle.__code__ for each, _ in traceback.walk_stack(frame)):
                place = f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"
                logger.warning(
                    f"the rollout actor has stood still for {time.monotonic() - since:.0f} s, in an agent's turn, at {place}: "
                    "nothing is generated, and no limit is kept. An agent must not block: `await asyncio.to_thread(...)` what "
                    "takes long"
                )
        time.sleep(seconds / 10)
