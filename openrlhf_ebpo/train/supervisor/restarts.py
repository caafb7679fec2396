"""Flags of the supervisor, and the decision to restart a failed training: if, when, and from which checkpoint."""

from __future__ import annotations

import argparse
import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple

from openrlhf_ebpo.command import positive_number
from openrlhf_ebpo.errors import raise_problems
from openrlhf_ebpo.run.manifest import attempt_of
from openrlhf_ebpo.run.resume import groups, newest_complete
from openrlhf_ebpo.run.run_settings import RunSettings

STALL_MINUTES, STALL_LIMIT = "logger.stall_minutes", "train.stall_limit"
MAX_RESTARTS = "train.max_restarts"
PAUSE = "OPENRLHF_EBPO_RESTART_PAUSE"  # seconds before the first restart
FIRST_PAUSE, MAX_PAUSE = 10.0, 600.0


class Start(NamedTuple):
    """tag: the checkpoint that a driver begins with, None for step 0. saved_by: which driver of this command has saved
    it, None for none: with --ckpt.load_step a tag may be saved again."""

    tag: str | None
    saved_by: str | None = None


def find_start(run: RunSettings, attempts: Collection[str]) -> Start:
    """Find the checkpoint from which a new driver resumes: --ckpt.load_step counts until this command has saved one.

    Args:
        attempts: what the checkpoints of this command's drivers are marked with.
    """
    folders = groups(run.ckpt_path, run.estimator)
    newest = newest_complete(folders).tag
    saved_by = newest and attempt_of(folders[0] / newest)
    if saved_by in attempts:
        return Start(newest, saved_by)
    return Start(newest if run.load_step is None else newest_complete(folders, run.load_step).tag)


def how_to_continue(run: RunSettings, save_steps: float) -> tuple[bool, str]:
    """Return True if a checkpoint can be resumed, and what to do."""
    found = newest_complete(groups(run.ckpt_path, run.estimator))
    if found.lost:
        return False, found.refusal()
    if found.tag is None:
        return False, f"no checkpoint was complete in {run.ckpt_path} (--ckpt.save_steps is {save_steps})"
    without = "" if run.load_step is None else " and without --ckpt.load_step"
    repeat = f"{found.tag} is complete: repeat the command with --ckpt.load_enable{without} to resume from it"
    return True, "\n".join([*found.warnings(), repeat])


@dataclass
class Restarts:
    """Count restarts since the last progress, which is a checkpoint that was saved since the restart before."""

    allowed: int
    last: Start
    in_a_row: int = 0

    def is_allowed(self, start: Start) -> bool:
        """Asked once after a failure that is not the user's; counts."""
        if start != self.last:
            self.last, self.in_a_row = start, 0
        self.in_a_row += 1
        return self.in_a_row <= self.allowed

    def pause(self) -> float:
        return min(positive_number(PAUSE, FIRST_PAUSE) * 2 ** (self.in_a_row - 1), MAX_PAUSE)


@dataclass(frozen=True)
class SupervisionSettings:
    """stall_minutes: without a step, before it is reported. stall_limit: minutes without any change before the run is
    ended, 0 for never. max_restarts: in a row, without a newer checkpoint. save_steps: between two checkpoints; saves:
    False if none can be resumed from."""

    stall_minutes: float
    stall_limit: float
    max_restarts: int
    save_steps: float
    saves: bool

    @classmethod
    def from_args(cls, args) -> SupervisionSettings:
        """From upstream's nested arguments."""
        logger, train, ckpt = args.logger, args.train, args.ckpt
        limits = logger.stall_minutes, train.stall_limit, train.max_restarts
        return cls(*limits, ckpt.save_steps, not ckpt.disable_ds)

    def check(self) -> None:
        """Raises UsageError: a value cannot be used; one a line."""
        positive_number(PAUSE, FIRST_PAUSE)
        problems = []
        if not 0 < self.stall_minutes < math.inf:
            problems.append(f"--{STALL_MINUTES} is {self.stall_minutes}; give minutes above 0")
        if not 0 <= self.stall_limit < math.inf:
            problems.append(f"--{STALL_LIMIT} is {self.stall_limit}; give minutes, or 0 for no limit")
        if self.max_restarts < 0:
            problems.append(f"--{MAX_RESTARTS} is {self.max_restarts}; give 0 or more")
        raise_problems(problems)


def add_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("supervision (docs/train.md)")
    group.add_argument(
        f"--{STALL_MINUTES}",
        type=float,
        default=10.0,
        metavar="MINUTES",
        help="without a finished step for so long, print what the training waits for and record it in run.json; never "
        "before five times the usual duration of a step",
    )
    group.add_argument(
        f"--{STALL_LIMIT}",
        type=float,
        default=120.0,
        metavar="MINUTES",
        help="without any change of step, phase or outstanding work for so long, end the run as failed; 0: never",
    )
    group.add_argument(
        f"--{MAX_RESTARTS}",
        "--max_restarts",
        type=int,
        default=0,
        metavar="N",
        help="after a failure, resume from the newest complete checkpoint, with growing pauses, at most N times in a "
        "row without a newer checkpoint; not after a mistake in flags, files or checkpoints, a step that is not "
        "finite, or a signal",
    )
