"""A pool of processes that can be killed, for graders (pool.py) and for users' reward files (sources.py).

Python cannot end a thread, and a crash, `os._exit`, C code that keeps Python's lock or a request for all memory ends or
stops a complete process. So each call has a process to itself, for as long as it takes; worker.py is the other side.
Processes are reused, and one that had to be killed is replaced when it is needed.

No library does this: concurrent.futures breaks the whole pool with one killed process, Pebble leaves the children of a
process behind, and multiprocessing's start methods import Ray's worker script again or fork CUDA.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from multiprocessing import Pipe
from pathlib import Path

from openrlhf_ebpo.rewards.processes.worker import MAX_REPLY_BYTES, OUT_OF_MEMORY, SIGNALLED

PACKAGE = Path(__file__).parents[3]
# not `python -m`, which puts the working directory on the path: a random.py there would replace Python's
RUN = "import sys; sys.path.remove(''); from openrlhf_ebpo.rewards.processes.worker import main; main()"
HASH_SEED = "0"  # some generators of reasoning-gym iterate over sets of texts
START_SECONDS = 600.0  # for loading the function, which may load a model
WAIT_SECONDS = 1.0  # between two checks whether another process can be started
END_SECONDS = 5.0  # from a closed connection to the end of the process


class CallFailed(RuntimeError):
    """A call without a reply. The text continues the name of the function.

    Attributes:
        number: the signal that ended the process, None without one. SIGALRM: the call took too long; SIGPROF: it took
            too much processor time.
    """

    def __init__(self, why: str, number: signal.Signals | None = None):
        super().__init__(why)
        self.number = number

    @property
    def outcome(self) -> str:
        """Return "timeout" or "crash"."""
        return "timeout" if self.number in (signal.SIGALRM, signal.SIGPROF) else "crash"


class StartError(RuntimeError):
    """A process did not start. The text continues the name of what it was to load."""


class Processes:
    """Every method is thread-safe.

    Args:
        loader: "module:function" of this package, called with `arguments`: returns the function that takes the calls.
        flags: that set the limits of time and memory, for messages.
        memory_mb: MiB that a process may take beyond what is loaded. cpu_seconds: of processor time for a call. Both: 0
            for no limit.
        most: processes, each started when a call has waited for `grow_seconds`; one if it puts something on a GPU.
    """

    def __init__(
        self,
        loader: str,
        arguments: tuple,
        flags: tuple[str, str],
        *,
        memory_mb: int = 0,
        cpu_seconds: float = 0,
        most: int = 1,
        grow_seconds: float = 0,
    ):
        limits = {"memory_mb": memory_mb, "cpu_seconds": cpu_seconds}
        self._settings, self._flags = {"loader": loader, "arguments": arguments, **limits}, flags
        self._most, self._grow_seconds = most, grow_seconds
        self._workers: list[_Worker] = []
        self._idle: list[_Worker] = []
        self._ready_at = math.inf  # the first process, which may show that there can be only one
        self._closed = False
        self._changed = threading.Condition()

    def prepare(self) -> None:
        """Start the first process. Raises StartError."""
        self._release(self._acquire(), reuse=True)

    def call(self, arguments: tuple, seconds: float) -> dict:
        """Return the reply to one call. Waiting for a process does not count. If its process was killed, the call is
        repeated.

        Raises:
            StartError, CallFailed.
        """
        try:
            return self._call(arguments, seconds)
        except CallFailed as lost:
            if lost.number != signal.SIGKILL:
                raise
        return self._call(arguments, seconds)

    def close(self) -> None:
        """End all processes, and with them the calls that they are at."""
        with self._changed:
            ending, self._workers, self._idle, self._closed = self._workers, [], [], True
            self._changed.notify_all()
        for worker in ending:
            worker.kill()
        for worker in ending:
            worker.wait()

    def _call(self, arguments: tuple, seconds: float) -> dict:
        worker, reply = self._acquire(), None
        try:
            reply = worker.ask(arguments, seconds)
            return reply
        finally:
            self._release(worker, reuse=reply is not None)

    def _acquire(self) -> _Worker:
        """Return an idle process, perhaps a new one."""
        began = time.monotonic()
        with self._changed:
            while not self._idle:
                if self._closed:
                    raise CallFailed("was not called: its processes are closed")
                left = max(began, self._ready_at) + self._grow_seconds - time.monotonic()
                may_grow = len(self._workers) < self._most
                if not self._workers or (may_grow and left <= 0):
                    worker = _Worker(self._settings, self._flags)
                    self._workers.append(worker)
                    break
                self._changed.wait(min(left, WAIT_SECONDS) if may_grow else None)
            else:
                return self._idle.pop()
        try:
            worker.wait_until_ready()
        except StartError:
            self._release(worker, reuse=False)
            if not self._workers:
                raise  # else others have started: wait for one of those
            self._most = len(self._workers)
            return self._acquire()
        self._ready_at = min(self._ready_at, time.monotonic())
        if worker.on_gpu:  # one copy of a model on the GPU
            self._most = 1
        return worker

    def _release(self, worker: _Worker, reuse: bool) -> None:
        with self._changed:
            if not reuse and worker in self._workers:
                self._workers.remove(worker)
            if reuse and worker in self._workers:
                self._idle.append(worker)
            self._changed.notify()
        if not reuse:
            worker.kill()


class _Worker:
    """One process, with those that it starts.

    Attributes:
        on_gpu: it has put something on a GPU while it was loading.
    """

    def __init__(self, settings: dict, flags: tuple[str, str]):
        self._settings, self._flags = settings, flags
        self.on_gpu = False
        self._connection, theirs = Pipe()
        path = os.pathsep.join(filter(None, [str(PACKAGE), os.environ.get("PYTHONPATH")]))
        with theirs:
            self._popen = subprocess.Popen(
                [sys.executable, "-u", "-c", RUN, str(os.getpid()), str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": HASH_SEED},
            )

    def wait_until_ready(self) -> None:
        """Have it load its function. Raises StartError."""
        try:
            self._connection.send_bytes(pickle.dumps(self._settings))
            if not self._connection.poll(START_SECONDS):
                raise StartError(f"was not imported within {START_SECONDS:g} s")
            first = json.loads(self._connection.recv_bytes(2 * MAX_REPLY_BYTES))
        except (EOFError, OSError, ValueError):
            raise StartError(f"{self._ended()} while it was imported") from None
        if "error" in first:
            raise StartError(f"fails when imported: {first['error']}")
        self.on_gpu = first["on_gpu"]

    def ask(self, arguments: tuple, seconds: float) -> dict:
        """Return the reply to one call. After an error it is of no further use.

        Raises:
            CallFailed.
        """
        try:
            self._connection.send_bytes(pickle.dumps(arguments))
            if not self._connection.poll(seconds):
                raise CallFailed(f"took longer than {seconds:g} s ({self._flags[0]})", signal.SIGALRM)
            return json.loads(self._connection.recv_bytes(2 * MAX_REPLY_BYTES))
        except (EOFError, OSError, ValueError):  # ended, or the function has written into the connection
            raise self._ended() from None

    def kill(self) -> None:
        """Have its keeper kill everything."""
        self._popen.terminate()

    def wait(self) -> int | None:
        """Return its exit code; None if it does not end."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._popen.wait(END_SECONDS)
        return None

    def _ended(self) -> CallFailed:
        code = self.wait()
        if code is None:
            return CallFailed("closed its process's connection")
        if code == OUT_OF_MEMORY:
            return CallFailed(f"needed more memory than {self._settings['memory_mb']} MB ({self._flags[1]})")
        number = code - SIGNALLED if code > SIGNALLED else -code
        if number not in {*signal.Signals}:
            return CallFailed(f"ended its process (exit code {code})")
        number = signal.Signals(number)
        killed = "; another process killed it, or the machine is short of memory" if number == signal.SIGKILL else ""
        return CallFailed(f"ended its process (signal {number:d}, {number.name}{killed})", number)
