"""Calls of other people's reward functions, in processes that can be killed (process.py).

Python cannot end a thread, and a crash, `os._exit`, C code that keeps Python's lock or a request for all memory ends or
stops a whole process. So no reward function runs in the rollout actor. Each process answers several calls at a time,
because most that take long wait for somebody else:

- A call that overruns its time in a process that is well has failed. The process gets no more calls, another one
  is started, and it ends when the others have come back.
- Where a process ends or is stuck, any of its calls may be why. Each is asked again, alone: what ends a process then is
  the guilty one.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque

from openrlhf_ebpo.rewards.limits import Limits
from openrlhf_ebpo.rewards.pool import default_workers
from openrlhf_ebpo.rewards.process import KilledAtStart, Lost, RewardProcess, TooLong, took_longer
from openrlhf_ebpo.rewards.returned import RewardError, describe
from openrlhf_ebpo.rewards.under_way import under_way

MAX_CONCURRENT_CALLS = min(32, (os.cpu_count() or 1) + 4)  # as many as asyncio.to_thread, through which upstream calls
HOPELESS = 4 * MAX_CONCURRENT_CALLS  # calls that hang or end their process before one comes back
GROW_SECONDS = 1.0  # calls that wait so long get another process


class Calls:
    """The calls of one reward function. All of its state is changed in the event loop's thread only.

    path: its .py file. hook: what is called in a process first, by name.
    """

    def __init__(self, path: str, limits: Limits, hook: str):
        self._path, self._limits, self._hook = path, limits, hook
        self._most = limits.workers or default_workers()
        self._places = -(-MAX_CONCURRENT_CALLS // self._most)  # in each
        self._processes: list[RewardProcess] = []
        self._waiting: deque[asyncio.Future] = deque()
        self._suspects: deque[asyncio.Future] = deque()  # wait for a process of their own
        self._tasks: set[asyncio.Task] = set()
        self._growing: asyncio.TimerHandle | None = None
        self._failed_in_a_row = self._killed_in_a_row = 0

    async def prepare(self) -> None:
        """Import the reward file.

        Raises:
            RewardError: it cannot be imported.
        """
        self._release(await self._place(self._waiting))

    async def run(self, *arguments) -> dict:
        """What the function returns, checked (returned.py). Waiting for a free place does not count.

        Raises:
            RewardError: whatever it raised (SystemExit too), in words; it took too long, too much memory, ended its
                process, or would only do so again.
        """
        try:
            reply = await self._ask(arguments)
        except (TooLong, Lost) as failed:
            self._count_failure()
            why = took_longer(self._limits.timeout) if isinstance(failed, TooLong) else str(failed)
            raise RewardError(f"reward_func {why}") from None
        self._failed_in_a_row = 0
        if "error" in reply:
            raise RewardError(reply["error"])
        return reply

    async def _ask(self, arguments: tuple) -> dict:
        try:
            return await self._ask_in(self._waiting, arguments)
        except Lost as lost:
            if not lost.shared:
                raise
        return await self._ask_in(self._suspects, arguments)

    async def _ask_in(self, line: deque, arguments: tuple) -> dict:
        process = await self._place(line)
        try:
            with under_way.running():
                return await process.call(arguments, self._limits.timeout)
        except TooLong:
            self._retire(process)
            raise
        finally:
            self._release(process)

    async def _place(self, line: deque) -> RewardProcess:
        """A process with room, in turn; for suspects an empty one, which gets nothing else."""
        turn = asyncio.get_running_loop().create_future()
        line.append(turn)
        self._dispatch()
        try:
            return await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._release(turn.result())
            raise

    def _release(self, process: RewardProcess) -> None:
        process.load -= 1
        process.alone = False
        if process.retired and not process.load:
            process.kill()
        self._dispatch()

    def _retire(self, process: RewardProcess) -> None:
        process.retired = True
        if process in self._processes:
            self._processes.remove(process)

    def _dispatch(self) -> None:
        """Give the free places to those who wait, suspects first, and see that there are processes."""
        while self._first(self._suspects) and (empty := [each for each in self._ready() if not each.load]):
            empty[0].alone = True
            self._grant(self._suspects, empty[0])
        while self._first(self._waiting) and (free := self._free()):
            self._grant(self._waiting, min(free, key=lambda each: each.load))
        if (self._waiting or self._suspects) and not self._processes:
            self._start()
        if self._waiting and self._growing is None:
            self._growing = asyncio.get_running_loop().call_later(GROW_SECONDS, self._grow)

    def _ready(self) -> list[RewardProcess]:
        return [process for process in self._processes if process.ready]

    def _free(self) -> list[RewardProcess]:
        """With room for one more. One is kept free of new calls while suspects wait for it to be empty. Without much hope
        there is one call at a time."""
        if self._failed_in_a_row >= HOPELESS and any(each.load for each in self._processes):
            return []
        kept = self._processes[-1:] if self._suspects else []
        return [each for each in self._ready() if not each.alone and each.load < self._places and each not in kept]

    def _first(self, line: deque) -> bool:
        while line and line[0].done():  # cancelled meanwhile
            line.popleft()
        return bool(line)

    def _grant(self, line: deque, process: RewardProcess) -> None:
        process.load += 1
        line.popleft().set_result(process)

    def _grow(self) -> None:
        self._growing = None
        if self._waiting and len(self._processes) < self._most and len(self._ready()) == len(self._processes):
            self._start()
        self._dispatch()

    def _start(self) -> None:
        process = RewardProcess(self._path, self._hook, self._limits.memory_mb, MAX_CONCURRENT_CALLS)
        self._processes.append(process)
        task = asyncio.ensure_future(self._life_of(process))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _life_of(self, process: RewardProcess) -> None:
        try:
            if await process.start():
                self._most, self._places = 1, MAX_CONCURRENT_CALLS  # a model on the GPU is there once
            self._dispatch()
            self._killed_in_a_row = 0
            await process.tend()
        except Exception as error:  # a process that does not start, too: nobody is to wait for it
            self._killed_in_a_row = self._killed_in_a_row + 1 if isinstance(error, KilledAtStart) else 0
            if not self._ready() and self._killed_in_a_row != 1:  # those who wait wait for another, once
                self._end_all_who_wait(describe(error))
        finally:
            process.kill()
            if process in self._processes:
                self._processes.remove(process)
        self._dispatch()

    def _end_all_who_wait(self, why: str) -> None:
        for turn in (*self._waiting, *self._suspects):
            if not turn.done():
                turn.set_exception(RewardError(why))
        self._waiting.clear()
        self._suspects.clear()

    def _count_failure(self) -> None:
        """Where nothing comes back any more, those who wait need not try. Of those who come later the first one shows
        whether there is hope again."""
        self._failed_in_a_row += 1
        if self._failed_in_a_row >= HOPELESS:
            self._end_all_who_wait(
                f"reward_func is not called any more: its last {self._failed_in_a_row} calls hung or ended their process"
            )


def importing_problem(path: str, hook: str) -> str | None:
    """Why a reward file cannot be imported; None: it can."""
    try:
        asyncio.run(Calls(path, Limits(), hook).prepare())
    except RewardError as error:
        return str(error)
    return None
