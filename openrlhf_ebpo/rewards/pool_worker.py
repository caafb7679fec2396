"""Grades answers for pool.py: `python -m openrlhf_ebpo.rewards.pool_worker SECONDS MEBIBYTES GRADER [ARGUMENT …]`, a
line of JSON each way. GRADER is a module as grading.py is one: `warm_up(ARGUMENT, …)`, `parse_gold(gold)`,
`grade(gold, answer, …)`.

Two processes: this one imports the grader, then forks the one that grades and watches it. When the kernel ends the grading
process (time, memory, a crash), a new one is there in milliseconds, without importing anything again. The time limit is
two timers of the kernel's: they run from the start of an answer, end a process that hangs inside C code, and work when
nobody is left to watch. A grader may run somebody's code, which may take those timers for its own: a process that is
over its wall time all the same is killed, and with it whatever it has started (its process group). Both processes end
when the other side of the pipe is gone.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import mmap
import os
import resource
import signal
import struct
import sys
import time

from openrlhf_ebpo.rewards.grading import GoldError

GRADED, GOLD, ANSWER = 0, 1, 2  # what the grading process is at
WALL_PER_CPU = 20  # processor time is limited, so that a busy machine costs no answer; so much wall time ends it too
WATCH = 1.0  # seconds between looks at the clock
DEADLINE = struct.Struct("=d")  # of time.monotonic
TIMERS = {signal.SIGPROF: signal.ITIMER_PROF, signal.SIGALRM: signal.ITIMER_REAL}


def main() -> int:
    seconds, mebibytes = float(sys.argv[1]), int(sys.argv[2])
    requests, replies = private_pipes()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the trainer, which then closes the pipe
    grader = importlib.import_module(sys.argv[3])
    grader.warm_up(*sys.argv[4:])
    state = mmap.mmap(-1, 1 + DEADLINE.size)  # shared with the grading process: what it is at, and until when
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})  # for `ended`
    replies.write("ready\n")
    while True:
        child = os.fork()
        if not child:
            serve(grader, requests, replies, state, seconds, mebibytes)
        status = ended(child, state)
        if state[0] == GRADED:  # the pipe is closed; or it was killed, perhaps with a request just read: start over
            return os.WEXITSTATUS(status) if os.WIFEXITED(status) else 1
        replies.write(json.dumps(death(status, state[0])) + "\n")
        state[0] = GRADED


def private_pipes():
    """Requests and replies, out of reach of what reads from standard input or prints."""
    requests, replies = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w", buffering=1)
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    return requests, replies


def ended(child: int, state: mmap.mmap) -> int:
    """How the grading process ended, killed here if its wall time did not end it; what it has started ends with it."""
    status, overran = None, False
    while status is None:
        signal.sigtimedwait({signal.SIGCHLD}, WATCH)
        busy = state[0] != GRADED  # read before the deadline, which is written before it
        if busy and not overran and DEADLINE.unpack(state[1:])[0] + WATCH < time.monotonic():
            overran = True
            os.kill(child, signal.SIGKILL)
        found, how = os.waitpid(child, os.WNOHANG)
        status = how if found else None
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child, signal.SIGKILL)
    return signal.SIGALRM if overran else status


def death(status: int, at: int) -> dict:
    """What to say of a request that ended its process."""
    number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    return {"died": "timeout" if number in TIMERS else "crash", "signal": number, "at_gold": at == GOLD}


def serve(grader, requests, replies, state: mmap.mmap, seconds: float, mebibytes: int) -> None:
    """The grading process: answer requests until the pipe closes."""
    os.setpgid(0, 0)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
    limit_memory(mebibytes)
    code, process = 1, os.getpid()
    try:
        for line in iter(requests.readline, ""):
            state[1:] = DEADLINE.pack(time.monotonic() + seconds * WALL_PER_CPU)
            state[0] = GOLD
            for number, timer in TIMERS.items():
                signal.signal(number, signal.SIG_DFL)
                signal.setitimer(timer, seconds * (WALL_PER_CPU if timer == signal.ITIMER_REAL else 1))
            reply = graded(grader, json.loads(line), state)
            if os.getpid() != process:  # a fork of the grader's that came back here too
                os._exit(0)
            for timer in TIMERS.values():
                signal.setitimer(timer, 0)
            state[0] = GRADED
            replies.write(json.dumps(reply) + "\n")
        code = 0
    finally:
        os._exit(code)


def limit_memory(mebibytes: int) -> None:
    """Address space beyond what the imports take: an allocation over it fails in the answer, not on the machine."""
    with open("/proc/self/statm") as statm:
        used = int(statm.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (mebibytes << 20),) * 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def graded(grader, request: list, state: mmap.mmap) -> dict:
    try:
        grader.parse_gold(request[0])
        state[0] = ANSWER
        return {"correct": grader.grade(*request)}
    except GoldError as error:
        return {"gold_error": str(error)}
    except (MemoryError, RecursionError) as error:
        return {"died": "crash", "signal": type(error).__name__, "at_gold": state[0] == GOLD}


if __name__ == "__main__":
    sys.exit(main())
