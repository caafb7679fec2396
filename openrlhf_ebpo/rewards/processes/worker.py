"""Run the other side of killable.py: `main`, with the parent's process and the connection's descriptor as arguments.

Two processes. The *keeper* runs no foreign code: it waits for the other, then kills everything that it left behind and
exits with its code; the same when the parent is gone. The *server* loads a function and answers calls, one at a time,
in its main thread.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import pickle
import pkgutil
import resource
import signal
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import NoReturn, TextIO

import psutil

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
CHECK_SECONDS = 1.0  # between two checks of the parent
KILL_SECONDS = 10.0  # for killing processes that keep starting others
MAX_REPLY_BYTES = 1 << 20  # a reward is a few numbers
MAX_PRINTED_CHARS = 4000  # of a call, to each of stdout and stderr: Ray brings them to the terminal of the training
OUT_OF_MEMORY = 77  # exit code
SIGNALLED = 128  # and the signal's number: exit code of the keeper


def main() -> NoReturn:
    """Run the keeper."""
    parent, connection = int(sys.argv[1]), Connection(int(sys.argv[2]))
    signal.pthread_sigmask(signal.SIG_SETMASK, [])  # whatever the thread that started this had blocked
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which then closes the connection
    _prctl(PR_SET_CHILD_SUBREAPER, 1)  # whoever loses its parent below becomes a child of this process
    if not (server := os.fork()):
        _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        os.dup2(2, 1)
        _serve(connection)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    code = 0
    try:
        connection.close()
        code = _wait(server, parent)
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        _kill_descendants()
        os._exit(code)


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _wait(server: int, parent: int) -> int:
    """Return the server's exit code, or 0 if the parent is gone first. Collects orphans meanwhile."""
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
    while os.getppid() == parent:
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if ended[0] == server:
                code = os.waitstatus_to_exitcode(ended[1])
                return code if code >= 0 else SIGNALLED - code
        signal.sigtimedwait([signal.SIGCHLD], CHECK_SECONDS)
    return 0


def _kill_descendants() -> None:
    """Kill until none is left: children of killed processes become children of this one."""
    deadline = time.monotonic() + KILL_SECONDS
    while (found := psutil.Process().children(recursive=True)) and time.monotonic() < deadline:
        for process in found:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


class _BoundedOutput:
    """stdout or stderr of the server: drops what a call prints beyond MAX_PRINTED_CHARS, with a notice."""

    def __init__(self, stream: TextIO):
        self._stream = stream
        self.begin_call()

    def begin_call(self) -> None:
        self._room = MAX_PRINTED_CHARS

    def write(self, text: str) -> int:
        if self._room > 0:
            self._stream.write(text[: self._room])
            self._room -= len(text)
            if self._room <= 0:
                self._stream.write(f" … (only {MAX_PRINTED_CHARS} characters of what a call prints are shown)\n")
        return len(text)

    def __getattr__(self, name: str):
        return getattr(self._stream, name)


def _serve(connection: Connection) -> NoReturn:
    """Run the server: load the function, then answer calls until the connection is closed."""
    code = 1
    try:
        outputs = sys.stdout, sys.stderr = _BoundedOutput(sys.stdout), _BoundedOutput(sys.stderr)
        settings = pickle.loads(connection.recv_bytes())
        try:
            function = pkgutil.resolve_name(settings["loader"])(*settings["arguments"])
        except BaseException as error:
            connection.send_bytes(_failure(error))
            return
        torch = sys.modules.get("torch")  # the function may have put something on a GPU while it was loaded
        _limit_memory(settings["memory_mb"])
        connection.send_bytes(json.dumps({"on_gpu": torch is not None and torch.cuda.is_initialized()}).encode())
        server = os.getpid()
        while True:
            payload = connection.recv_bytes()
            for output in outputs:
                output.begin_call()
            _limit_cpu(settings["cpu_seconds"])
            reply = _reply(function, payload)
            _limit_cpu(0)
            if os.getpid() != server:  # a fork of the function's that returned here too
                return
            connection.send_bytes(reply)
    except MemoryError:
        code = OUT_OF_MEMORY
    finally:
        os._exit(code)


def _limit_memory(mebibytes: int) -> None:
    """Limit what may be written, beyond what is loaded. Not address space: threads and CUDA reserve much of it."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if mebibytes:
        with open("/proc/self/statm") as statm:
            used = int(statm.read().split()[5]) * resource.getpagesize()
        most, hard = used + (mebibytes << 20), resource.getrlimit(resource.RLIMIT_DATA)[1]
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def _limit_cpu(seconds: float) -> None:
    """Have the kernel end this process after so much processor time, also inside C code; 0: no limit."""
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_PROF, seconds)


def _reply(function: Callable, payload: bytes) -> bytes:
    """Return the function's result as JSON, or {"error": cause}."""
    try:
        reply = json.dumps(function(*pickle.loads(payload))).encode()
        if len(reply) > MAX_REPLY_BYTES:
            raise ValueError(f"reward_func returned {len(reply)} bytes for one response; 'extra_logs' is for numbers")
        return reply
    except MemoryError:
        raise
    except BaseException as caught:
        return _failure(caught)


def _failure(error: BaseException) -> bytes:
    from openrlhf_ebpo.rewards.processes.reward_values import describe  # imports numpy, which a grader need not have

    return json.dumps({"error": describe(error)}).encode()
