"""Decide after which steps a training saves: every --ckpt.save_steps, and so many minutes after the last save."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace

from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.run.manifest import step_of
from openrlhf_ebpo.run.resume import BEST

MINUTES = "ckpt.save_minutes"


def add_flag(group) -> None:
    group.add_argument(
        f"--{MINUTES}",
        type=float,
        default=0.0,
        metavar="MINUTES",
        help="also save a checkpoint after the first step that ends MINUTES after the last save (or the start); "
        "models are exported only every --ckpt.save_steps. 0: off",
    )


@dataclass(frozen=True)
class SaveSettings:
    """minutes: after the last save, when the next is due; 0: never. disable_ds: what a resume needs is not saved."""

    minutes: float
    disable_ds: bool

    @classmethod
    def from_args(cls, args) -> SaveSettings:
        """From upstream's nested arguments."""
        return cls(args.ckpt.save_minutes, args.ckpt.disable_ds)

    def check(self) -> None:
        """Raises UsageError if the minutes are negative, infinite or NaN, or nothing would be saved."""
        if not 0 <= self.minutes < math.inf:
            raise UsageError(f"--{MINUTES} is {self.minutes}; give minutes, or 0 to save by --ckpt.save_steps alone")
        if self.minutes and self.disable_ds:
            raise UsageError(
                f"--{MINUTES} saves what a resume needs, and --ckpt.disable_ds saves none of it: leave one out"
            )


class SaveTimes:
    """Decides when to save.

    Args:
        ckpt: the section of the settings; `save_steps` may be infinite, as upstream makes of -1.
        clock: seconds, of a clock that is never set back.
    """

    def __init__(self, ckpt: SimpleNamespace, clock: Callable[[], float] = time.monotonic):
        self.ckpt, self.clock = ckpt, clock
        self.restart()

    def restart(self) -> None:
        """Count the minutes from now: training begins, or a save has ended."""
        self.began = self.clock()

    def is_due(self, step: int) -> bool:
        seconds = 60 * self.ckpt.save_minutes
        return step % self.ckpt.save_steps == 0 or 0 < seconds <= self.clock() - self.began


def is_exported(ckpt: SimpleNamespace, tag: str) -> bool:
    """True if saving `tag` also exports a model (--ckpt.save_hf). Exported models are never deleted, so what is saved
    by time or on request, to resume from, has none."""
    by_steps = ckpt.save_steps > 0 and step_of(tag) % ckpt.save_steps == 0
    return ckpt.save_hf and (by_steps or tag.startswith(BEST))


@contextlib.contextmanager
def force_save(ckpt: SimpleNamespace, saves: bool) -> Iterator[None]:
    """Make upstream, which asks `step % save_steps == 0` alone, save inside or not, whatever the step."""
    steps, ckpt.save_steps = ckpt.save_steps, 1 if saves else math.inf
    try:
        yield
    finally:
        ckpt.save_steps = steps
