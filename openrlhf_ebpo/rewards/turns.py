"""An agent's turns, which run in the rollout actor's event loop, beside the engine that they talk to: a limit for each,
and words about one that stops all."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import threading
import time
import traceback
from collections.abc import Awaitable, Callable
from types import FrameType

from openrlhf_ebpo.rewards.processes import took_longer
from openrlhf_ebpo.rewards.returned import RewardError, describe

logger = logging.getLogger(__name__)
STALL_SECONDS = 30.0


async def await_turn(what: str, turn: Callable[..., Awaitable], *args, seconds: float, **kwargs):
    """What a coroutine function returns. One that takes too long is cancelled, and not waited for if it will not end.

    Raises:
        RewardError: whatever it raised (SystemExit too), in words; or it took too long.
    """
    task = asyncio.ensure_future(_settled(turn, args, kwargs))
    try:
        done, _ = await asyncio.wait({task}, timeout=seconds)
    finally:
        task.cancel()
    if not done:
        raise RewardError(f"{what} {took_longer(seconds, '--reward.timeout')}")
    returned, error = (None, f"{what} was cancelled") if task.cancelled() else task.result()
    if error is not None:
        raise RewardError(error)
    return returned


async def _settled(turn: Callable[..., Awaitable], args: tuple, kwargs: dict) -> tuple:
    """(what was returned, None) or (None, the error). A SystemExit that left the task would end the event loop."""
    try:
        return await turn(*args, **kwargs), None
    except asyncio.CancelledError:
        raise
    except BaseException as error:
        return None, describe(error)


def watch_turns(seconds: float = STALL_SECONDS) -> None:
    """Have a thread say, with the line that is at work, when a turn keeps the running event loop from turning: code that
    blocks instead of awaiting stops generation and every limit here. Ends with the loop."""
    arguments = (asyncio.get_running_loop(), threading.get_ident(), seconds)
    threading.Thread(target=_watch, args=arguments, name="watch_turns", daemon=True).start()


def _watch(loop: asyncio.AbstractEventLoop, its_thread: int, seconds: float) -> None:
    while not loop.is_closed():
        turned, since = threading.Event(), time.monotonic()
        with contextlib.suppress(RuntimeError):  # it has just been closed
            loop.call_soon_threadsafe(turned.set)
        while not turned.wait(seconds) and not loop.is_closed():
            if where := blocking_line(sys._current_frames().get(its_thread)):
                logger.warning(stalled(time.monotonic() - since, where))
        time.sleep(seconds / 10)


def blocking_line(frame: FrameType | None) -> str | None:
    """Where a thread is, if that is in an agent's turn."""
    if not any(each.f_code is _settled.__code__ for each, _ in traceback.walk_stack(frame)):
        return None
    return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"


def stalled(seconds: float, where: str) -> str:
    return (
        f"the rollout actor has stood still for {seconds:.0f} s, in an agent's turn, at {where}: nothing is generated, and no "
        "limit is kept. An agent must not block: `await asyncio.to_thread(...)` what takes long"
    )
