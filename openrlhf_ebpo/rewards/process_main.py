"""Calls a reward function for process.py: `python -m openrlhf_ebpo.rewards.process_main PARENT DESCRIPTOR`.

Two processes. This one runs nobody else's code: it forks the one that imports the reward file, waits for its end, and
then ends whatever that one has left behind, as it does when the rollout actor is gone. The other one answers several
calls at a time, each in a thread, until it is killed or the connection closes. It imports the file after the fork, so
that CUDA and threads of the file's are its own.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import json
import os
import pickle
import queue
import resource
import signal
import socket
import sys
import threading
import time

import wrapt

from openrlhf_ebpo.rewards.frames import HEADER, LONGEST_REPLY, OUT_OF_MEMORY, PING, frame

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
GIVE_UP = 10  # seconds of killing what starts new processes all the time


class Stop(BaseException):
    """The rollout actor is gone, or wants an end."""


def main() -> int:
    parent, connection = int(sys.argv[1]), socket.socket(fileno=int(sys.argv[2]))
    signal.signal(signal.SIGTERM, stop)
    prctl(PR_SET_CHILD_SUBREAPER, 1)  # whoever loses its parent below becomes a child of this process
    code = 0
    try:
        die_with(parent, signal.SIGTERM)
        keeper, child = os.getpid(), os.fork()
        if not child:
            serve(connection, keeper)
        code = wait_for(child)
    except Stop:
        pass
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        end_children()
    return code if code >= 0 else 128 - code


def stop(*_) -> None:
    raise Stop


def prctl(*arguments: int) -> None:
    ctypes.CDLL(None).prctl(*arguments, *[0] * (5 - len(arguments)))


def die_with(parent: int, number: int) -> None:
    """Have the kernel send a signal when the parent is gone; also if it was gone before."""
    prctl(PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        raise Stop


def wait_for(child: int) -> int:
    """Its exit code, or the negative of the signal that ended it. Orphans that end meanwhile are collected."""
    while True:
        process, status = os.wait()
        if process == child:
            return os.waitstatus_to_exitcode(status)


def end_children() -> None:
    """Kill until none is left; children of the killed ones come here (PR_SET_CHILD_SUBREAPER)."""
    deadline = time.monotonic() + GIVE_UP
    with contextlib.suppress(ChildProcessError):
        while time.monotonic() < deadline:
            for child in children():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
            time.sleep(0.001)


def children() -> list[int]:
    with open(f"/proc/self/task/{os.getpid()}/children") as file:
        return [int(process) for process in file.read().split()]


def serve(connection: socket.socket, keeper: int) -> None:
    """The process of the reward function. Never returns."""
    code = 1
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the trainer, which then ends its actors
        die_with(keeper, signal.SIGKILL)
        incoming = connection.makefile("rb")
        settings = pickle.loads(receive(incoming)[1])
        function = loaded(connection, settings)
        calls: queue.SimpleQueue = queue.SimpleQueue()
        sending = threading.Lock()
        for _ in range(settings["threads"]):
            threading.Thread(target=work, args=(function, calls, connection, sending), daemon=True).start()
        limit_memory(settings["memory_mb"])  # beyond the threads' stacks too
        answer(incoming, calls, connection, sending)
        code = 0
    except MemoryError:
        code = OUT_OF_MEMORY
    finally:
        os._exit(code)


def receive(incoming) -> tuple[int, bytes] | None:
    """The next message; None when the connection is closed."""
    header = incoming.read(HEADER.size)
    if len(header) < HEADER.size:
        return None
    size, number = HEADER.unpack(header)
    return number, incoming.read(size)


def loaded(connection: socket.socket, settings: dict):
    """The reward function; says to the other side whether there is one, and whether it may be there only once."""
    from openrlhf_ebpo.rewards.returned import describe

    try:
        sys.path[:] = settings["sys_path"]
        function = import_function(settings["path"], settings["hook"])
        first = {"on_gpu": on_gpu()}
    except BaseException as error:
        first = {"error": describe(error)}
    connection.sendall(frame(PING, json.dumps(first).encode()))
    if "error" in first:
        os._exit(0)
    return function


def import_function(path: str, hook: str):
    """As OpenRLHF loads it. What Ray calls first in each worker, `hook`, takes seconds: it is called where it is needed."""
    from openrlhf_ebpo.rewards.returned import RewardError

    module, _, name = hook.rpartition(".")
    for package in ("openrlhf", "transformers"):
        wrapt.register_post_import_hook(lambda _: getattr(importlib.import_module(module), name)(), package)
    spec = importlib.util.spec_from_file_location("reward_func", path)
    file = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(file)
    if not callable(getattr(file, "reward_func", None)):
        raise RewardError("reward_func is not callable, or not there")
    return file.reward_func


def on_gpu() -> bool:
    """Whether the file has put something on a GPU while it was imported."""
    torch = sys.modules.get("torch")
    return torch is not None and torch.cuda.is_initialized()


def limit_memory(mebibytes: int) -> None:
    """What may be written, beyond what the imports take. Not address space: threads and CUDA reserve much of it."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if mebibytes:
        with open("/proc/self/statm") as statm:
            used = int(statm.read().split()[5]) * resource.getpagesize()
        most, hard = used + (mebibytes << 20), resource.getrlimit(resource.RLIMIT_DATA)[1]
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def answer(incoming, calls: queue.SimpleQueue, connection: socket.socket, sending: threading.Lock) -> None:
    """Hand calls to the threads until the connection closes. Whoever sends a ping learns that Python's lock is free."""
    while message := receive(incoming):
        if message[0] == PING:
            send(connection, sending, frame(PING, b""))
        else:
            calls.put(message)


def work(function, calls: queue.SimpleQueue, connection: socket.socket, sending: threading.Lock) -> None:
    while True:
        number, payload = calls.get()
        try:
            send(connection, sending, frame(number, outcome(function, payload)))
        except MemoryError:  # perhaps not this call's fault: all of them are asked again, one at a time
            os._exit(OUT_OF_MEMORY)
        except BaseException:  # the connection is closed: by the other side, or by the function
            os._exit(1)


def send(connection: socket.socket, sending: threading.Lock, message: bytes) -> None:
    with sending:
        connection.sendall(message)


def outcome(function, payload: bytes) -> bytes:
    """What the function says, or why it says nothing, as JSON."""
    from openrlhf_ebpo.rewards.returned import check_reward, describe, plain

    try:
        reply = json.dumps(plain(check_reward(function(*pickle.loads(payload))))).encode()
        if len(reply) <= LONGEST_REPLY:
            return reply
        error = f"reward_func returned {len(reply)} bytes for one response; 'extra_logs' is for numbers"
    except MemoryError:
        raise
    except BaseException as caught:
        error = describe(caught)
    return json.dumps({"error": error}).encode()


if __name__ == "__main__":
    sys.exit(main())
