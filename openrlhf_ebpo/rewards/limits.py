"""Limits of the rewards of one rollout actor, and their flags."""

from __future__ import annotations

import argparse
import math
import os
from dataclasses import dataclass

from openrlhf_ebpo.errors import UsageError

TIMEOUT = 60.0  # seconds for one call
SERVER_TIMEOUT = 180.0  # one of OpenRLHF's tries
MEMORY_MB = 8192
PREFIX = "reward."  # of training's flags


@dataclass(frozen=True)
class Limits:
    """timeout: seconds for one call. memory_mb: MiB that a process of a reward function may take beyond its imports; 0:
    no limit. workers: such processes, at most; None: `default_calls`.
    """

    timeout: float = TIMEOUT
    memory_mb: int = MEMORY_MB
    workers: int | None = None


def add_flags(parser: argparse.ArgumentParser, prefix: str = PREFIX) -> None:
    add = parser.add_argument_group("limits of rewards").add_argument
    add(
        f"--{prefix}timeout",
        type=float,
        metavar="SECONDS",
        help="limit for one call of reward_func, of an agent's reset or step, or of a reward server with all its "
        "tries; a "
        f"longer one is a failed reward. Default {TIMEOUT:g}, for servers {SERVER_TIMEOUT:g}. The packaged "
        f"rewards limit themselves",
    )
    add(
        f"--{prefix}memory",
        type=int,
        default=MEMORY_MB,
        metavar="MB",
        help="memory that each process of a reward_func may take beyond its imports; a call that needs more is a "
        "failed reward; "
        "0: no limit",
    )
    add(
        f"--{prefix}workers",
        type=int,
        metavar="N",
        help="most processes in which each engine calls reward_func, one call at a time in each. Each imports the "
        "file and has its "
        "own module state. Default: cores + 4, at most 32; 1 for files that load a model onto a GPU",
    )


def default_workers() -> int:
    """Return the number of grading processes: several rollout actors share a node."""
    return max(2, min(8, len(os.sched_getaffinity(0)) // 8))


def default_calls() -> int:
    """Return how many calls of a reward function run at a time: as many as in asyncio.to_thread, through which upstream
    calls."""
    return min(32, len(os.sched_getaffinity(0)) + 4)


def resolve(values: dict, reward: str = "reward.remote_url", prefix: str = PREFIX) -> None:
    """Fill in the default timeout. reward: the name of the flag that names the reward."""
    if values[f"{prefix}timeout"] is None:
        is_server = (values[reward] or "").startswith(("http://", "https://"))
        values[f"{prefix}timeout"] = SERVER_TIMEOUT if is_server else TIMEOUT


def check_flags(values: dict, prefix: str = PREFIX) -> None:
    """Raises UsageError if a limit makes no sense."""
    timeout, memory, workers = (values[f"{prefix}{name}"] for name in ("timeout", "memory", "workers"))
    if not 0 < timeout < math.inf:
        raise UsageError(f"--{prefix}timeout is {timeout}; give a number of seconds above 0")
    if memory < 0:
        raise UsageError(f"--{prefix}memory is {memory}; give megabytes, or 0 for no limit")
    if workers is not None and workers < 1:
        raise UsageError(f"--{prefix}workers is {workers}; give 1 or more, or leave it out")
