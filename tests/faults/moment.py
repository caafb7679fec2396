"""When to strike."""

from __future__ import annotations

import random
import re
from typing import NamedTuple

SPAN = {"start": 40.0, "step": 1.5, "saving": 0.1}  # seconds


class Moment(NamedTuple):
    """So many seconds after: the start of the command, a step is trained, a save has begun; of that step, or the next."""

    when: str
    step: int | None = None
    seconds: float = 0.0

    @classmethod
    def parse(cls, text: str) -> Moment:
        """ "saving:2+0.1", "step", "start+12": raises ValueError where it is none."""
        when, step, seconds = re.fullmatch(r"(start|step|saving)(?::(\d+))?(?:\+([\d.]+))?", text).groups()
        return cls(when, int(step) if step else None, float(seconds or 0))

    def __str__(self) -> str:
        return f"{self.when}{'' if self.step is None else f':{self.step}'}+{self.seconds:.2f}"


def at_random(rng: random.Random) -> Moment:
    when = rng.choice(["start", "step", "step", "saving"])
    return Moment(when, seconds=rng.uniform(0, SPAN[when]))
