"""Whether a training is started again after a failure, how, and when. Pure, but for two environment variables."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import NamedTuple

CHANNEL, RESTART = "OPENRLHF_EBPO_SUPERVISOR", "OPENRLHF_EBPO_RESTART"
PAUSE = "OPENRLHF_EBPO_RESTART_PAUSE"  # seconds before the first restart
FIRST_PAUSE, LONGEST_PAUSE = 10.0, 600.0


class Start(NamedTuple):
    """tag: the checkpoint that a driver begins with, None for step 0. saved_by: which driver of this command has saved it,
    None for none: with --ckpt.load_step a tag may be saved again."""

    tag: str | None
    saved_by: str | None = None


@dataclass
class Restarts:
    """How many there were since the last progress, which is a checkpoint that was saved since the restart before."""

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
        first = float(os.environ.get(PAUSE, FIRST_PAUSE))
        return min(first * 2 ** (self.in_a_row - 1), LONGEST_PAUSE)

    def environment(self, fd: int) -> dict[str, str]:
        """For the driver that is started again."""
        own = {"saved": self.last.saved_by is not None}
        return {**os.environ, CHANNEL: str(fd), RESTART: json.dumps(own)}


def as_restarted(values: dict) -> None:
    """Of a restarted command's flags, in place: those that were for its first start alone."""
    if RESTART not in os.environ:
        return
    saved = json.loads(os.environ.pop(RESTART))["saved"]
    values["ckpt.load_enable"], values["force"] = True, False
    if saved:  # the run's own newest checkpoint, and the prior in it, are the ones to go on with
        values["algo.advantage.ebpo.reset_prior"], values["ckpt.load_step"] = False, None
