"""The other side of processes.py: `python -m openrlhf_ebpo.rewards.process_main PARENT DESCRIPTOR`. Three kinds of process:

- The *template* loads what may be shared, such as a grader, and forks a keeper for each process that is asked for. So a
  process that had to be killed is replaced in milliseconds.
- A *keeper* runs nobody else's code. It forks the process that serves calls, passes on what that one prints, up to a limit,
  reports how it ended, and kills whatever it left behind.
- The *serving process* answers calls, each on a connection of its own, until it is killed. Reward functions are imported
  there, after the fork, so that CUDA and the file's threads are its own.

All end when the process that asked is gone.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import json
import os
import pickle
import pkgutil
import resource
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import NoReturn

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
CHECK_SECONDS = 1.0  # between looks at whether the parent is still there
KILL_SECONDS = 10  # of killing what starts new processes all the time
MAX_DESCRIPTORS = 253  # that one message may carry (SCM_MAX_FD)
MAX_REPLY_BYTES = 1 << 20  # a reward is a few numbers
MAX_PRINTED_BYTES = 4 << 20  # of each process
CUT = f"\n[printed {MAX_PRINTED_BYTES} bytes; what else this process prints is dropped]\n"
OUT_OF_MEMORY = 77  # exit code of a process in which a call met its memory limit


class Stop(BaseException):
    """SIGTERM."""


def main() -> NoReturn:
    """The template."""
    parent, control = int(sys.argv[1]), socket.socket(fileno=int(sys.argv[2]))
    os.dup2(2, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the trainer, which then closes the connection
    settings = pickle.loads(Connection(os.dup(control.fileno())).recv_bytes())
    load = functools.cache(lambda: pkgutil.resolve_name(settings["loader"])(*settings["arguments"]))
    if settings["warm"]:
        load()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel collects keepers
    while descriptors := _next_request(control, parent):
        if not os.fork():
            control.close()
            _keep(*map(Connection, descriptors), settings=settings, load=load)
        for descriptor in descriptors:
            os.close(descriptor)
    os._exit(0)


def _next_request(control: socket.socket, parent: int) -> list[int]:
    """Descriptors of the connections for one process; none when the parent is gone."""
    while os.getppid() == parent:
        if select.select([control], [], [], CHECK_SECONDS)[0]:
            return socket.recv_fds(control, 1, MAX_DESCRIPTORS)[1]
    return []


def _keep(lifeline: Connection, *places: Connection, settings: dict, load: Callable) -> NoReturn:
    """The keeper. lifeline: tells the other side how the serving process ended, and is closed by it to have all end."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, _stop)
    _prctl(PR_SET_CHILD_SUBREAPER, 1)  # whoever loses its parent below becomes a child of this process
    try:
        template, keeper = os.getppid(), os.getpid()
        printed, output = os.pipe()
        child = os.fork()
        if not child:
            _serve(lifeline, places, output, keeper, settings, load)
        os.close(output)
        for place in places:
            place.close()
        code = _watch(child, lifeline, printed, template)
        lifeline.send_bytes(json.dumps({"ended": code}).encode())
    except (Stop, OSError):
        pass
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        _kill_children()
        os._exit(0)


def _stop(*_) -> NoReturn:
    raise Stop


def _prctl(*arguments: int) -> None:
    ctypes.CDLL(None).prctl(*arguments, *[0] * (5 - len(arguments)))


def _watch(child: int, lifeline: Connection, printed: int, template: int) -> int:
    """Exit code of the serving process, or the negative of the signal that ended it. Passes on what it prints meanwhile.

    Raises:
        Stop: nobody waits for it any more.
    """
    events, room = select.poll(), MAX_PRINTED_BYTES
    events.register(os.pidfd_open(child), select.POLLIN)
    events.register(printed, select.POLLIN)
    events.register(lifeline, 0)  # only its end: the serving process reads it
    os.set_blocking(printed, False)
    while os.getppid() == template:
        found = dict(events.poll(CHECK_SECONDS * 1000))
        room = _pass_on(printed, room)
        if found.get(printed, 0) & select.POLLHUP:  # nobody can print any more
            events.unregister(printed)
        if lifeline.fileno() in found:
            break
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:  # orphans too
            if ended[0] == child:
                _pass_on(printed, room)
                return os.waitstatus_to_exitcode(ended[1])
    raise Stop


def _pass_on(printed: int, room: int) -> int:
    """Copy what was printed to standard error, `room` bytes at most, and report once that more is dropped. Returns the room left."""
    with contextlib.suppress(OSError):  # BlockingIOError: all is read
        while data := os.read(printed, 1 << 16):
            os.write(2, data[:room])
            if 0 < room <= len(data):
                os.write(2, CUT.encode())
            room = max(0, room - len(data))
    return room


def _kill_children() -> None:
    """Kill until none is left; children of the killed ones come here (PR_SET_CHILD_SUBREAPER)."""
    deadline = time.monotonic() + KILL_SECONDS
    with contextlib.suppress(ChildProcessError):
        while time.monotonic() < deadline:
            with open(f"/proc/self/task/{os.getpid()}/children") as children:
                for child in children.read().split():
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(int(child), signal.SIGKILL)
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
            time.sleep(0.001)


def _serve(
    lifeline: Connection, places: tuple[Connection, ...], output: int, keeper: int, settings: dict, load: Callable
) -> NoReturn:
    """The serving process. With one place it works in the main thread, where signals can be handled; otherwise in a
    thread for each, and the main thread answers pings."""
    code = 1
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != keeper:
            return
        _redirect(output)
        function = _loaded(lifeline, load)
        for place in places[1:] and places:
            threading.Thread(target=_work, args=(function, place), daemon=True).start()
        _limit_memory(settings["memory_mb"])  # beyond the threads' stacks too
        lifeline.send_bytes(json.dumps({"on_gpu": _on_gpu()}).encode())
        if not places[1:]:
            _work(function, places[0], settings["cpu_seconds"])
        while not lifeline.recv_bytes():
            lifeline.send_bytes(b"")
    except MemoryError:
        code = OUT_OF_MEMORY
    except (EOFError, OSError):
        code = 0
    finally:
        os._exit(code)


def _redirect(output: int) -> None:
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    for standard in (1, 2):
        os.dup2(output, standard)
    os.close(output)


def _loaded(lifeline: Connection, load: Callable) -> Callable:
    try:
        return load()
    except BaseException as error:
        lifeline.send_bytes(_failure(error))
        os._exit(0)


def _on_gpu() -> bool:
    """True if something was put on a GPU while the function was loaded."""
    torch = sys.modules.get("torch")
    return torch is not None and torch.cuda.is_initialized()


def _limit_memory(mebibytes: int) -> None:
    """Limit what may be written, beyond what is loaded. Not address space: threads and CUDA reserve much of it."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if mebibytes:
        with open("/proc/self/statm") as statm:
            used = int(statm.read().split()[5]) * resource.getpagesize()
        most, hard = used + (mebibytes << 20), resource.getrlimit(resource.RLIMIT_DATA)[1]
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def _work(function: Callable, place: Connection, cpu_seconds: float = 0) -> NoReturn:
    """Answer calls. cpu_seconds: of processor time for one, kept by the kernel, also inside C code; 0: no limit."""
    process = os.getpid()
    try:
        while True:
            payload = place.recv_bytes()
            if cpu_seconds:
                signal.signal(signal.SIGPROF, signal.SIG_DFL)
                signal.setitimer(signal.ITIMER_PROF, cpu_seconds)
            reply = _reply(function, payload)
            if os.getpid() != process:  # a fork of the function's that returned here too
                os._exit(0)
            if cpu_seconds:
                signal.setitimer(signal.ITIMER_PROF, 0)
            place.send_bytes(reply)
    except MemoryError:  # perhaps not this call's fault: all of them are made again, one at a time
        os._exit(OUT_OF_MEMORY)
    except BaseException:  # the connection is closed: by the other side, or by the function
        os._exit(1)


def _reply(function: Callable, payload: bytes) -> bytes:
    """The function's return as JSON, or {"error": why there is none}."""
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
    from openrlhf_ebpo.rewards.returned import describe  # numpy, whose threads no template should have

    return json.dumps({"error": describe(error)}).encode()


if __name__ == "__main__":
    main()
