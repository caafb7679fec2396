"""The supervisor's flags: when a training that stands still is said, ended, and started again."""

from __future__ import annotations

import argparse
import math

from openrlhf_ebpo.errors import UsageError

STALL_MINUTES, STALL_LIMIT = "logger.stall_minutes", "train.stall_limit"
MAX_RESTARTS = "train.max_restarts"


def add_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("supervision (docs/training.md)")
    group.add_argument(
        f"--{STALL_MINUTES}",
        type=float,
        default=10.0,
        metavar="MINUTES",
        help="without a step, after which it is said what the training waits for, on the screen and in run.json; never "
        "before five of this run's usual steps",
    )
    group.add_argument(
        f"--{STALL_LIMIT}",
        type=float,
        default=120.0,
        metavar="MINUTES",
        help="without any change of step, phase or what is outstanding, after which the run is ended as failed; 0: never",
    )
    group.add_argument(
        f"--{MAX_RESTARTS}",
        "--max_restarts",
        type=int,
        default=0,
        metavar="N",
        help="go on from the newest whole checkpoint after a failure that is not yours, with growing pauses, N times in a "
        "row without a newer checkpoint; not after a mistake in flags, files or checkpoints, a step that must not be "
        "repeated, or a signal",
    )


def check_flags(values: dict) -> None:
    """Raises:
    UsageError: a value cannot be used.
    """
    problems = []
    if not 0 < values[STALL_MINUTES] < math.inf:
        problems.append(f"--{STALL_MINUTES} is {values[STALL_MINUTES]}; give minutes above 0")
    if not 0 <= values[STALL_LIMIT] < math.inf:
        problems.append(f"--{STALL_LIMIT} is {values[STALL_LIMIT]}; give minutes, or 0 for no limit")
    if values[MAX_RESTARTS] < 0:
        problems.append(f"--{MAX_RESTARTS} is {values[MAX_RESTARTS]}; give 0 or more")
    if problems:
        raise UsageError("\n".join(problems))
