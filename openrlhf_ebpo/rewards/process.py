"""One process of a reward function, as the rollout actor sees it (the other side is process_main.py)."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

from openrlhf_ebpo.rewards.frames import HEADER, LONGEST_REPLY, OUT_OF_MEMORY, PING, frame
from openrlhf_ebpo.rewards.returned import RewardError

PACKAGE = Path(__file__).parents[2]
MAIN = "openrlhf_ebpo.rewards.process_main"
START_SECONDS = 600.0  # for importing the reward file, which may load a model
END_SECONDS = 15  # a process ends all that the reward function has started


class Lost(Exception):
    """The process has ended, or is stuck. `shared`: others were called there too, and it may be their fault. The text
    goes on from "reward_func"."""

    def __init__(self, why: str, shared: bool):
        super().__init__(why)
        self.shared = shared


class KilledAtStart(RewardError):
    """By somebody, or for its memory, while the reward file was imported: not by the file, so it is worth another try."""


class TooLong(Exception):
    """The call has used up its time, in a process that is well otherwise."""


def took_longer(seconds: float) -> str:
    return f"took longer than {seconds:g} s (--reward.timeout)"


class RewardProcess:
    """Used from one event loop.

    Attributes:
        ready: the reward file is imported.
        retired: a call hangs in it; it gets no more, and ends once the others have come back.
        alone: one call has it to itself.
        load: calls that have a place in it.
    """

    def __init__(self, path: str, hook: str, memory_mb: int, threads: int):
        self._settings = {"path": path, "hook": hook, "memory_mb": memory_mb, "threads": threads, "sys_path": sys.path}
        self._memory_mb = memory_mb
        self._answers: dict[int, asyncio.Future] = {}
        self._numbers = itertools.count(PING + 1)
        self._pong = asyncio.Event()
        self.ready = self.retired = self.alone = False
        self.load = 0
        self._popen: subprocess.Popen | None = None
        self._outgoing: asyncio.StreamWriter | None = None

    async def start(self) -> bool:
        """Wait until the reward file is imported. Returns whether it has put something on a GPU.

        Raises:
            RewardError: it cannot be imported.
            KilledAtStart: by SIGKILL, on its way.
        """
        name = self._settings["path"]
        self._incoming, self._outgoing = await asyncio.open_connection(sock=self._spawn())
        self._send(PING, pickle.dumps(self._settings))
        try:
            first = json.loads((await asyncio.wait_for(self._receive(), START_SECONDS))[1])
        except asyncio.TimeoutError:
            raise RewardError(f"{name} was not imported within {START_SECONDS:g} s") from None
        except (EOFError, OSError, ValueError):
            why = f"{name}, while it was imported, {await self._how_it_ended()}"
            raise (KilledAtStart if _signal(self._popen.returncode) == signal.SIGKILL else RewardError)(why) from None
        if "error" in first:
            raise RewardError(f"{name} fails when imported: {first['error']}")
        self.ready = True
        return first["on_gpu"]

    def _spawn(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        path = filter(None, [str(PACKAGE), os.environ.get("PYTHONPATH")])
        with theirs:
            self._popen = subprocess.Popen(
                [sys.executable, "-u", "-m", MAIN, str(os.getpid()), str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
            )
        return ours

    async def tend(self) -> None:
        """Hand replies to those who wait for them, until the process ends."""
        try:
            while True:
                number, payload = await self._receive()
                if number == PING:
                    self._pong.set()
                elif (answer := self._answers.get(number)) and not answer.done():
                    answer.set_result(json.loads(payload))
        except ValueError:
            self._lose("wrote into its process's connection")
        except (EOFError, OSError):
            self.ready = False  # it takes no more calls while it is asked how it ended
            self._lose(await self._how_it_ended())

    def _send(self, number: int, payload: bytes) -> None:
        """Where the process has ended, `tend` tells those who wait. Of a connection that is closed asyncio's own loop says
        nothing here, and uvloop, which Ray's actors have, raises."""
        with contextlib.suppress(RuntimeError, OSError):
            self._outgoing.write(frame(number, payload))

    async def call(self, arguments: tuple, seconds: float) -> dict:
        """The reply to one call.

        Raises:
            Lost, TooLong: as they say.
        """
        if not self.ready:  # it has ended since the call was given its place
            raise Lost("ended its process", shared=True)
        number = next(self._numbers)
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        try:
            self._send(number, pickle.dumps(arguments))
            if not (await asyncio.wait({answer}, timeout=seconds))[0] and await self._is_well(seconds):
                raise TooLong
            if not answer.done():
                self._lose(f"{took_longer(seconds)}, and nothing else could run in its process")
            return answer.result()
        finally:
            del self._answers[number]

    async def _is_well(self, seconds: float) -> bool:
        """Whether another thread of it can run."""
        self._pong.clear()
        self._send(PING, b"")
        try:
            return await asyncio.wait_for(self._pong.wait(), max(1.0, min(5.0, seconds / 2)))
        except asyncio.TimeoutError:
            return False

    def _lose(self, why: str) -> None:
        """All calls in it end here; it takes no more."""
        waiting = [answer for answer in self._answers.values() if not answer.done()]
        self.ready = False
        for answer in waiting:
            answer.set_exception(Lost(why, shared=self.retired or len(waiting) > 1))
        self.kill()

    async def _receive(self) -> tuple[int, bytes]:
        size, number = HEADER.unpack(await self._incoming.readexactly(HEADER.size))
        if size > LONGEST_REPLY * 2:
            raise ValueError(size)
        return number, await self._incoming.readexactly(size)

    async def _how_it_ended(self) -> str:
        try:
            code = await asyncio.to_thread(self._popen.wait, END_SECONDS)
        except subprocess.TimeoutExpired:
            return "closed its process's connection"
        if code == OUT_OF_MEMORY:
            return f"needed more memory than {self._memory_mb} MB (--reward.memory)"
        if not (ended_by := _signal(code)):
            return f"ended its process (exit code {code})"
        killed = "; somebody killed it, or the machine is short of memory" if ended_by == signal.SIGKILL else ""
        return f"ended its process (signal {ended_by:d}, {ended_by.name}{killed})"

    def kill(self) -> None:
        """End it with all that the reward function has started; twice is once."""
        self.ready = False
        if self._popen and self._popen.poll() is None:
            self._popen.terminate()
            threading.Thread(target=_collect, args=(self._popen,), daemon=True).start()
        if self._outgoing:
            self._outgoing.close()


def _signal(code: int | None) -> signal.Signals | None:
    """That ended the process, or the one in it that calls the function, as an exit code says it."""
    number = 0 if code is None else code - 128 if code > 128 else -code
    return signal.Signals(number) if number in {*signal.Signals} else None


def _collect(popen: subprocess.Popen) -> None:
    try:
        popen.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(popen.pid, signal.SIGKILL)
        popen.wait()
