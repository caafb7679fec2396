"""Decide when a training has stalled, and say so. Pure: times come from the caller."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from datetime import datetime

from openrlhf_ebpo.run.heartbeat import Beat

USUAL_STEPS = 5  # a step may take so many usual ones before it is called late
WINDOW = 20  # steps that define the usual time


@dataclass
class Stalls:
    """`update` takes each heartbeat; `is_due` and `limit_passed` then decide.

    Attributes:
        warn: seconds without a step before a warning; again after twice as long, and so on.
        limit: seconds without any change of step, phase and detail before the run is ended; 0: never.
    """

    warn: float
    limit: float
    began: float
    stepped: float = 0.0
    changed: float = 0.0
    warned: float = 0.0
    seen: tuple = ()
    durations: list[float] = field(default_factory=list)

    def __post_init__(self):
        self.stepped = self.changed = self.began

    def update(self, beat: Beat | None, now: float) -> bool:
        """True if a step was finished after a warning. A heartbeat that cannot be read (None) changes nothing."""
        if beat is None:
            return False
        what = (beat.step, beat.phase, beat.detail)
        moved = bool(self.seen) and beat.step != self.seen[0]
        again = moved and bool(self.warned)
        if moved:
            if self.stepped > self.began:  # the first is as long as the start
                self.durations = [*self.durations[-WINDOW + 1 :], now - self.stepped]
            self.stepped, self.warned = now, 0.0
        if what != self.seen:
            self.seen, self.changed = what, now
        return again

    def patience(self) -> float:
        usual = statistics.median(self.durations) if self.durations else 0.0
        return max(self.warn, USUAL_STEPS * usual)

    def is_due(self, now: float) -> bool:
        """True if it is time to warn; each warning doubles the time to the next."""
        waited = now - self.stepped
        due = waited >= max(self.patience(), 2 * self.warned)
        if due:
            self.warned = waited
        return due

    def limit_passed(self, now: float) -> bool:
        return self.limit > 0 and now - self.changed >= max(self.limit, self.patience())


def describe_phase(beat: Beat | None) -> str:
    """phase: rewards, 3 of 256 outstanding, since 12:03:10 (for 11 minutes)"""
    if beat is None:
        return "phase: unknown, since the heartbeat is missing"
    since = "" if " since " in beat.detail else f", since {datetime.fromtimestamp(beat.since):%H:%M:%S}"
    return f"phase: {beat.phase}{', ' if beat.detail else ''}{beat.detail}{since}"


def describe_missing_step(beat: Beat | None, seconds: float) -> str:
    done = f" (the last was {beat.step})" if beat and beat.step else ""
    return f"no step for {duration(seconds)}{done}; {describe_phase(beat)}"


def duration(seconds: float) -> str:
    for size, name in ((3600, "hour"), (60, "minute")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {name}s"
    return f"{seconds:.0f} s"
