"""Whether a training is started again after a failure, how, and when. Pure, but for two environment variables."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass

CHANNEL, RESTART = "OPENRLHF_EBPO_SUPERVISOR", "OPENRLHF_EBPO_RESTART"
PAUSE = "OPENRLHF_EBPO_RESTART_PAUSE"  # seconds before the first restart
FIRST_PAUSE, LONGEST_PAUSE = 10.0, 600.0


@dataclass
class Restarts:
    """How many there were since the last progress, which is a checkpoint newer than at the restart before."""

    allowed: int
    started_from: str | None  # the newest whole checkpoint when the command began
    last: str | None = None
    in_a_row: int = 0

    def __post_init__(self):
        self.last = self.started_from

    def is_allowed(self, newest: str | None) -> bool:
        """Asked once after a failure that is not the user's; counts."""
        if newest != self.last:
            self.last, self.in_a_row = newest, 0
        self.in_a_row += 1
        return self.in_a_row <= self.allowed

    def pause(self) -> float:
        first = float(os.environ.get(PAUSE, FIRST_PAUSE))
        return min(first * 2 ** (self.in_a_row - 1), LONGEST_PAUSE)

    def environment(self, fd: int) -> dict[str, str]:
        """For the driver that is started again."""
        own = {"saved": self.last != self.started_from}
        return {**os.environ, CHANNEL: str(fd), RESTART: json.dumps(own)}


def as_restarted(values: dict) -> None:
    """Of a restarted command's flags, in place: those that were for its first start alone."""
    if RESTART not in os.environ:
        return
    saved = json.loads(os.environ.pop(RESTART))["saved"]
    values["ckpt.load_enable"], values["force"] = True, False
    if saved:  # the prior in this run's own checkpoint is the one to go on with
        values["algo.advantage.ebpo.reset_prior"] = False
