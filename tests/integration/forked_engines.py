"""vLLM's EngineCore forked, instead of spawned and importing vLLM again: most of a training's processor time.

A worker with threads must not fork, so each is given a process in reserve before it has any. The first process that
multiprocessing spawns in the worker is that one, with the same files, arguments and environment, where FORKED is set in
the worker; further ones are spawned.
"""

import ctypes
import fcntl
import json
import os
import socket
import sys
from multiprocessing import util
from pathlib import Path

FORKED = "OPENRLHF_EBPO_TESTS_FORK_ENGINES"  # not "": it may be forked. The driver hands it to its workers
ARGUMENTS, ENVIRONMENT = 45, 47  # arg_start and env_start in /proc/self/stat, after the name
SPAWNED = "--multiprocessing-fork"  # the last word of what multiprocessing spawns


def keep_one_in_reserve() -> None:
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if not pid:
        ours.close()
        wait_for_work(theirs)
    theirs.close()
    reserve, spawn = [(pid, ours)], util.spawnv_passfds

    def spawnv_passfds(path, arguments, files):
        if not (reserve and os.environ.get(FORKED) and arguments[-1] == SPAWNED):
            return spawn(path, arguments, files)
        pid, connection = reserve.pop()
        with connection:
            socket.send_fds(connection, [b"."], [0, 1, 2, *files])
            numbers = [0, 1, 2, *map(int, files)]
            connection.sendall(
                json.dumps([[*map(os.fsdecode, arguments)], numbers, dict(os.environ), os.getcwd()]).encode()
            )
            connection.shutdown(socket.SHUT_WR)
        return pid

    util.spawnv_passfds = spawnv_passfds


def wait_for_work(connection: socket.socket) -> None:
    """Become the spawned process, or end with the worker. Does not return."""
    sent, files, _, _ = socket.recv_fds(connection, 1, 64)
    if not sent:
        os._exit(0)
    with connection, connection.makefile("rb") as rest:
        arguments, numbers, environment, folder = json.loads(rest.read())
    place(files, numbers)
    os.setpriority(os.PRIO_PROCESS, 0, os.getpriority(os.PRIO_PROCESS, os.getppid()))  # Ray makes its workers nicer
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    show_environment()
    run_and_exit(spawned, arguments)


def place(files: list[int], numbers: list[int]) -> None:
    """Give open files the numbers that they have in the worker."""
    above = max(*files, *numbers) + 1
    moved = [fcntl.fcntl(file, fcntl.F_DUPFD, above) for file in files]
    for file in files:
        os.close(file)
    for file, number in zip(moved, numbers, strict=True):
        os.dup2(file, number)
        os.close(file)


def show_environment() -> None:
    """Have /proc say what it says of a spawned process: engines are told by a variable that they were started with."""
    told = (b"OPENRLHF_EBPO_", b"RAY_ADDRESS=")  # first: there may not be room for all
    words = sorted((f"{k}={v}".encode() for k, v in os.environ.items()), key=lambda word: not word.startswith(told))
    show(b"\0".join(words), ENVIRONMENT)


def show_title(title: str) -> None:
    """Do what setproctitle does where it finds argv; it looks next to the environment, which has moved."""
    show(title.encode(), ARGUMENTS)
    Path("/proc/self/comm").write_bytes(title.encode())  # cut at 15 bytes


def show(text: bytes, where: int) -> None:
    """Write what /proc shows, into memory that nothing points to after os.environ.clear()."""
    fields = Path("/proc/self/stat").read_text().rpartition(") ")[2].split()
    start, end = map(int, fields[where : where + 2])
    ctypes.memmove(start, text[: end - start - 1].ljust(end - start, b"\0"), end - start)


def spawned(arguments: list[str]) -> None:
    """Do what `python -c … --multiprocessing-fork` does."""
    import setproctitle

    setproctitle.setproctitle = show_title
    sys.modules.pop("vllm.env_override", None)  # a stand-in in Ray's workers (upstream/cpu); engines read the real one
    sys.argv = arguments[-3::2]
    exec(arguments[-2], {"__name__": "__main__"})


def run_and_exit(function, *arguments) -> None:
    code = 1
    try:
        function(*arguments)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
