"""Ray workers forked from a process that has imported the stack, instead of importing it in each: half of a training's
processor time. A stand-in for `python` hands the start of a worker to that process; what runs in it is Ray's own
worker.
"""

import contextlib
import json
import os
import runpy
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

from forked_driver import forkserver
from forked_engines import keep_one_in_reserve, run_and_exit, show_title

# Runs for every process of a node. -I -S: a worker's start costs 20 ms here, and nothing of the environment is read.
STAND_IN = """#!/bin/sh
exec '{python}' -IS '{script}' "$@"
"""
SCRIPT = """
import json, os, socket, sys
if not sys.argv[1:] or not sys.argv[1].endswith("setup_worker.py"):
    os.execv({python!r}, [{python!r}, *sys.argv[1:]])
with socket.socket(socket.AF_UNIX) as connection:
    connection.connect({address!r})
    socket.send_fds(connection, [b"."], [0, 1, 2])
    connection.sendall(json.dumps([sys.argv[1:], dict(os.environ), os.getcwd()]).encode())
    connection.shutdown(socket.SHUT_WR)
    connection.recv(1)  # returns when the worker has ended
"""


@contextlib.contextmanager
def forked_workers(folder: Path) -> Iterator[str]:
    """The stand-in: nodes that are started with it as sys.executable fork their workers, until the context ends."""
    address = f"\0openrlhf_ebpo-tests-{os.getpid()}"  # no file: a path may be too long for a socket
    stand_in, script = folder / "python", folder / "script.py"
    stand_in.write_text(STAND_IN.format(python=sys.executable, script=script))
    script.write_text(SCRIPT.format(python=sys.executable, address=address))
    stand_in.chmod(0o755)
    server = forkserver().Process(target=serve, args=(address,))
    server.start()
    try:
        yield str(stand_in)
    finally:
        server.kill()
        server.join()


def serve(address: str) -> None:
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen(64)
        while True:
            connection, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                run_worker(connection)
            connection.close()


def run_worker(connection: socket.socket) -> None:
    """Do what `python setup_worker.py …` does, in this process. Keeps the connection, which ends with the process."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    _, files, _, _ = socket.recv_fds(connection, 1, 3)
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    with connection.makefile("rb") as sent:
        argv, environment, folder = json.loads(sent.read())
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    keep_one_in_reserve()
    run_and_exit(start, argv)


def start(argv: list[str]) -> None:
    import ray._raylet
    from ray._private.runtime_env.context import RuntimeEnvContext
    from ray._private.utils import update_envs
    from ray._private.workers.setup_worker import parser
    from ray.core.generated.common_pb2 import Language

    ray._raylet.setproctitle = show_title
    args, worker = parser.parse_known_args(argv[1:])
    context = RuntimeEnvContext.deserialize(args.serialized_runtime_env_context or "{}")
    if context.command_prefix or "PYTHONPATH" in context.env_vars:  # asks for an interpreter of its own
        context.exec_worker(worker, Language.Value(args.language))
    update_envs(context.env_vars)
    sys.argv = worker
    sys.path[0] = os.path.dirname(worker[0])
    runpy.run_path(worker[0], run_name="__main__")
