"""A pool of processes that can be killed, for graders (pool.py) and other people's reward functions (calls.py).

Python cannot end a thread, and a crash, `os._exit`, C code that keeps Python's lock or a request for all memory ends or
stops a whole process. A caller's thread takes a place in a process, which is a connection to a thread of it, sends a call
and waits for the reply. process_main.py is the other side.

- A call that overruns its time in a process that is well has failed. The process gets no more calls, and ends when its
  others have returned.
- Where a process ends or is stuck, any of its calls may be why. Each is made again, alone: what ends a process then is the
  guilty one. A call whose process was killed is made again too: somebody else may have done it.

No library does this: concurrent.futures breaks the whole pool with one killed process, Pebble takes one call at a time in
a process and leaves its children behind, and multiprocessing's start methods import Ray's worker script again or fork CUDA.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path

from openrlhf_ebpo.rewards.process_main import MAX_REPLY_BYTES, OUT_OF_MEMORY
from openrlhf_ebpo.rewards.under_way import under_way

PACKAGE = Path(__file__).parents[2]
MAIN = "openrlhf_ebpo.rewards.process_main"
# `python -m`, but for the working directory, which it puts first: a random.py there would stand for Python's
RUN_MODULE = "import sys; sys.path.remove(''); import runpy; runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
START_SECONDS = 600.0  # for loading the function, which may load a model
END_SECONDS = 5.0  # from a closed connection to the report how the process ended
TIMEOUT_SIGNALS = {signal.SIGPROF, signal.SIGALRM}  # of the kernel's timer, and what stands for ours


class Lost(Exception):
    """The process has ended, or is stuck. The text continues "reward_func".

    Attributes:
        shared: other calls were made there too, and it may be their fault.
        signal: that ended it, SIGALRM for a timeout; None for none.
    """

    def __init__(self, why: str, shared: bool, signal: signal.Signals | None = None):
        super().__init__(why)
        self.shared, self.signal = shared, signal


class TooLong(Exception):
    """The call has used up its time, in a process that is well otherwise."""


class StartError(RuntimeError):
    """A process did not start. The text continues the name of what it was to load."""


def took_longer(seconds: float, flag: str) -> str:
    return f"took longer than {seconds:g} s ({flag})"


class Processes:
    """Every method is thread-safe.

    Args:
        loader: "module:function" of this package, called with `arguments`: returns the function that takes the calls.
        warm: load it once for all processes, before they are forked; otherwise each loads its own.
        most: processes, each started when calls have waited for `grow_seconds`.
        places: calls at a time in each process; in a process with something on a GPU there are `all_places`, and no other.
        memory_mb: MiB that each may take beyond what is loaded; 0: no limit.
        cpu_seconds: of processor time for a call, with one place; 0: no limit.
        flags: that set the limits of time and memory, for messages.
        environment: variables of the processes, beyond those that are set here.
    """

    def __init__(
        self,
        loader: str,
        arguments: tuple,
        *,
        warm: bool,
        most: int,
        places: int = 1,
        all_places: int = 1,
        memory_mb: int = 0,
        cpu_seconds: float = 0,
        grow_seconds: float = 0,
        flags: tuple[str, str] = ("", ""),
        **environment: str,
    ):
        self._settings = {
            "loader": loader,
            "arguments": arguments,
            "warm": warm,
            "memory_mb": memory_mb,
            "cpu_seconds": cpu_seconds,
        }
        self._most, self._places, self._all_places = most, places, all_places
        self._grow_seconds, self._flags, self._environment = grow_seconds, flags, environment
        self._processes: list[_Process] = []
        self._starting = self._suspects = 0  # at most one starts at a time
        self._template: _Template | None = None
        self._start_error: StartError | None = None  # the newest
        self._changed = threading.Condition()

    def prepare(self) -> None:
        """Start the first process. Raises StartError."""
        self._release(self._acquire(alone=False), well=True)

    def call(self, arguments: tuple, seconds: float) -> dict:
        """The reply to one call. Waiting for a place does not count.

        Raises:
            StartError, Lost, TooLong.
        """
        try:
            return self._call(arguments, seconds, alone=False)
        except Lost as lost:
            if not lost.shared and lost.signal != signal.SIGKILL:
                raise
        return self._call(arguments, seconds, alone=True)

    def close(self) -> None:
        """End all processes, and with them the calls that they are at."""
        with self._changed:
            ending, self._processes = self._processes, []
        for process in ending:
            process.end()
        if self._template:
            self._template.close()
            self._template = None

    def _call(self, arguments: tuple, seconds: float, alone: bool) -> dict:
        process, well = self._acquire(alone), False
        try:
            with under_way.running():
                reply = process.ask(arguments, seconds)
            well = True
            return reply
        finally:
            self._release(process, well)

    def _acquire(self, alone: bool) -> _Process:
        """A process with a free place; an empty one, which gets no other call, if `alone`."""
        began = time.monotonic()
        with self._changed:
            known = self._start_error
            self._suspects += alone
            try:
                while not (process := self._find(alone)):
                    if self._start_error is not known:  # found by another call meanwhile
                        raise StartError(*self._start_error.args)
                    left = began + self._grow_seconds - time.monotonic()
                    may_grow = not self._starting and len(self._processes) < self._most
                    if may_grow and (left <= 0 or not self._processes):
                        self._start()
                    else:
                        self._changed.wait(left if may_grow else None)
            finally:
                self._suspects -= alone
            process.load += 1
            process.alone = alone
            return process

    def _find(self, alone: bool) -> _Process | None:
        """One process is kept free of new calls while suspects wait for an empty one."""
        if alone:
            return next((process for process in self._processes if not process.load), None)
        kept = self._processes[-1:] if self._suspects else []
        free = [each for each in self._processes if not each.alone and each.load < self._places and each not in kept]
        return min(free, key=lambda each: each.load, default=None)

    def _release(self, process: _Process, well: bool) -> None:
        with self._changed:
            process.load -= 1
            process.alone = False
            process.retired |= not well
            if process.retired and process in self._processes:
                self._processes.remove(process)
            ended = process.retired and not process.load
            if self._suspects or not well:
                self._changed.notify_all()
            else:
                self._changed.notify()
        if ended:
            process.end()

    def _start(self) -> None:
        """Start a process without holding the lock. Where one does not start, those that are there do."""
        self._starting += 1
        self._changed.release()
        process = error = None
        try:
            process = self._start_one()
        except StartError as failed:
            error = failed
        finally:
            self._changed.acquire()
            self._starting -= 1
            self._changed.notify_all()
        if process:
            self._processes.append(process)
            if process.on_gpu:  # a model is there once
                self._most, self._places = 1, self._all_places
        elif self._processes:
            self._most = len(self._processes)
        else:
            self._start_error = error
            raise error

    def _start_one(self, again: bool = True) -> _Process:
        if not self._template or self._template.has_ended():
            self._template = _Template(self._settings, self._environment)
        process = _Process(self._template.fork(1 + self._all_places), self._settings["memory_mb"], self._flags)
        try:
            process.wait_until_ready(self._template)
        except Lost as lost:
            if again and lost.signal == signal.SIGKILL:  # by somebody, or by the kernel short of memory
                return self._start_one(again=False)
            raise StartError(f", while it was imported, {lost}") from None
        return process


class _Template:
    """The process that forks the others."""

    def __init__(self, settings: dict, environment: dict[str, str]):
        self._control, theirs = socket.socketpair()
        path = os.pathsep.join(filter(None, [str(PACKAGE), os.environ.get("PYTHONPATH")]))
        with theirs:
            self._popen = subprocess.Popen(
                [sys.executable, "-u", "-c", RUN_MODULE, MAIN, str(os.getpid()), str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": path, **environment},
            )
        with contextlib.suppress(OSError), Connection(os.dup(self._control.fileno())) as connection:
            connection.send_bytes(pickle.dumps(settings))

    def fork(self, count: int) -> list[Connection]:
        """Connections to a new process. They are closed where the template has ended."""
        pairs = [Pipe() for _ in range(count)]
        with contextlib.suppress(OSError):
            socket.send_fds(self._control, [b"+"], [theirs.fileno() for _, theirs in pairs])
        for _, theirs in pairs:
            theirs.close()
        return [ours for ours, _ in pairs]

    def has_ended(self) -> bool:
        return self._popen.poll() is not None

    def exit_code(self) -> int | None:
        """None if it runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._popen.wait(1.0)
        return None

    def close(self) -> None:
        self._control.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._popen.wait(END_SECONDS)


class _Process:
    """One serving process. `load`, `alone` and `retired` belong to the pool's lock.

    Attributes:
        load: calls that have a place in it.
        alone: one call has it to itself.
        retired: it gets no more calls, and ends once those that it has have returned.
    """

    def __init__(self, connections: list[Connection], memory_mb: int, flags: tuple[str, str]):
        self._lifeline, *self._free = connections
        self._answers_pings = len(self._free) > 1
        self._memory_mb, self._flags = memory_mb, flags
        self._lock = threading.Lock()  # of the lifeline
        self._lost: Lost | None = None
        self._ended: int | None = None  # exit code
        self.load, self.alone, self.retired, self.on_gpu = 0, False, False, False

    def wait_until_ready(self, template: _Template) -> None:
        """Raises StartError for a function that cannot be loaded, Lost for an end while it was loaded."""
        try:
            if not self._lifeline.poll(START_SECONDS):
                self.end()
                raise StartError(f" was not imported within {START_SECONDS:g} s")
            first = json.loads(self._lifeline.recv_bytes(MAX_REPLY_BYTES))
        except (EOFError, OSError, ValueError):
            self._ended = template.exit_code()
            raise self.lose(self._describe_end()) from None
        if "error" in first:
            raise StartError(f" fails when imported: {first['error']}")
        if "ended" in first:
            self._ended = first["ended"]
            raise self.lose(self._describe_end())
        self.on_gpu = first["on_gpu"]

    def ask(self, arguments: tuple, seconds: float) -> dict:
        """The reply to one call.

        Raises:
            Lost, TooLong.
        """
        place = self._free.pop()
        try:
            place.send_bytes(pickle.dumps(arguments))
            if not _can_read(place, seconds):
                if self._is_well(seconds):
                    raise TooLong(took_longer(seconds, self._flags[0]))
                stuck = ", and nothing else could run in its process" if self._answers_pings else ""
                raise self.lose(took_longer(seconds, self._flags[0]) + stuck, signal.SIGALRM)
            reply = json.loads(place.recv_bytes(2 * MAX_REPLY_BYTES))
        except (EOFError, OSError):
            raise self.lose() from None
        except ValueError:
            raise self.lose("wrote into its process's connection") from None
        self._free.append(place)
        return reply

    def _is_well(self, seconds: float) -> bool:
        """Another thread of it can run."""
        if not self._answers_pings:
            return False
        with self._lock, contextlib.suppress(OSError):
            self._lifeline.send_bytes(b"")
            return self._hear(max(1.0, min(5.0, seconds / 2))) == b""
        return False

    def _hear(self, seconds: float) -> bytes | None:
        """The next message on the lifeline; None if there is none in time."""
        try:
            message = self._lifeline.recv_bytes(MAX_REPLY_BYTES) if self._lifeline.poll(seconds) else None
            if message:
                self._ended = json.loads(message)["ended"]
            return message
        except (EOFError, OSError):  # the keeper was killed
            self._ended = -signal.SIGKILL
        except (ValueError, KeyError, TypeError):  # the function wrote into it
            pass
        return None

    def lose(self, why: str | None = None, number: signal.Signals | None = None) -> Lost:
        """All calls in it end here. The first cause that is found holds for all of them; without `why`, how it ended."""
        with self._lock:
            if self._lost is None:
                if why is None:
                    while self._hear(END_SECONDS) == b"":
                        pass
                    why = self._describe_end()
                self._lost = Lost(why, self.load > 1 or self.retired, number or _signal(self._ended))
                self._lifeline.close()
            return Lost(*self._lost.args, self._lost.shared, self._lost.signal)

    def end(self) -> None:
        """Its keeper kills it, with all that the function has started; twice is once."""
        self.lose("was ended")

    def _describe_end(self) -> str:
        if self._ended is None:
            return "closed its process's connection"
        if self._ended == OUT_OF_MEMORY:
            return f"needed more memory than {self._memory_mb} MB ({self._flags[1]})"
        if not (number := _signal(self._ended)):
            return f"ended its process (exit code {self._ended})"
        killed = "; somebody killed it, or the machine is short of memory" if number == signal.SIGKILL else ""
        return f"ended its process (signal {number:d}, {number.name}{killed})"


def _can_read(place: Connection, seconds: float) -> bool:
    """As `place.poll(seconds)`, which takes as long as all the rest of a call."""
    events = select.poll()
    events.register(place, select.POLLIN)
    return bool(events.poll(seconds * 1000))


def _signal(code: int | None) -> signal.Signals | None:
    """The signal that an exit code stands for."""
    return signal.Signals(-code) if code is not None and -code in {*signal.Signals} else None
