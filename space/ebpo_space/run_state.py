"""The state of a run: at work, stalled, silent, or ended and how. From run.json, heartbeat and lock; the time comes
from the caller."""

from __future__ import annotations

import contextlib
import math
from datetime import datetime, timezone
from typing import NamedTuple

import numpy as np

from openrlhf_ebpo.run.heartbeat import FILE, Beat, read_beat
from openrlhf_ebpo.run.run_lock import BEAT_SECONDS
from openrlhf_ebpo.run.run_log import LOCK

from .errors import RunError
from .metrics import Metrics
from .runs import Run, inside

SILENCE = 12 * BEAT_SECONDS  # of a lock that its holder touches, before it counts as left
PATIENCE, USUAL = 600.0, 5.0  # seconds; usual steps: without either, a step is late
MAX_ERROR_CHARS = 400
_EARLIEST, _LATEST = 1e9, 1e11  # seconds since the epoch


class Signs(NamedTuple):
    """Signs of a running training. lock: when its holder last touched it; None if absent."""

    beat: Beat | None
    lock: float | None


class Condition(NamedTuple):
    """kind: training, stalled, silent, complete, interrupted, paused, failed, unknown. detail: more of it, from the
    run's files. step: the last one, at: seconds since the epoch when it was finished. steps: planned, 0 if unknown;
    left: seconds until they are done, None unless it trains."""

    kind: str
    detail: str
    step: int | None
    at: float | None
    steps: int = 0
    left: float | None = None


def signs(run: Run) -> Signs:
    """Read the signs of a run that may hold anything."""
    beat = lock = None
    with contextlib.suppress(OSError, RunError):
        beat = read_beat(inside(run, FILE).parent)
    with contextlib.suppress(OSError, RunError):
        lock = inside(run, LOCK).stat().st_mtime
    return Signs(beat, lock)


def condition(about: dict, metrics: Metrics, seen: Signs, now: float) -> Condition:
    step, at = last_step(metrics)
    ended = str(about.get("status") or "unknown")
    if ended == "running":
        kind, detail = _at_work(about, metrics, seen, now)
        step = max(step or 0, seen.beat.step if seen.beat else 0) or step
    elif ended in ("complete", "interrupted", "paused", "failed"):
        kind, detail = ended, str(about.get("error") or about.get("warning") or "")[:MAX_ERROR_CHARS].strip()
    else:
        kind, detail = "unknown", "run.json is missing, or does not say how it ended."
    steps = seen.beat.steps if seen.beat and (step or 0) <= seen.beat.steps < 2**31 else 0
    each = usual_step(metrics)
    left = (steps - (step or 0)) * each if kind == "training" and steps and each else None
    return Condition(kind, detail, step, at, steps, left)


def last_step(metrics: Metrics) -> tuple[int | None, float | None]:
    if not len(metrics.steps):
        return None, None
    at = metrics.at(int(metrics.steps[-1]), "time")
    return int(metrics.steps[-1]), at if at is not None and _EARLIEST <= at < _LATEST else None


def _at_work(about: dict, metrics: Metrics, seen: Signs, now: float) -> tuple[str, str]:
    if seen.lock is not None and now - seen.lock > SILENCE:
        return "silent", f"No sign of life since {clock(seen.lock)}: it was killed, or its machine is gone."
    stalled = about.get("stalled")
    if isinstance(stalled, dict):
        what = str(stalled.get("what") or "no step comes")[:MAX_ERROR_CHARS]
        return "stalled", f"Since {clock(seconds(stalled.get('time')))}: {what}"
    beat = seen.beat
    latest = max((when for when in (last_step(metrics)[1], beat and beat.time) if when), default=now)
    if now > latest + max(PATIENCE, USUAL * usual_step(metrics)):
        return ("stalled" if seen.lock is not None else "silent"), f"Nothing new since {clock(latest)}."
    return "training", f"{beat.phase}{', ' if beat.detail else ''}{beat.detail}" if beat else ""


def usual_step(metrics: Metrics) -> float:
    """Return the seconds of a step, the median; 0 where unknown."""
    between = np.diff(metrics.series("time")[1])
    return float(np.median(between)) if len(between) else 0.0


def seconds(time) -> float | None:
    """Return seconds since the epoch of the times in run.json, None for anything else."""
    try:
        when = datetime.fromisoformat(time)
        return (when if when.tzinfo else when.replace(tzinfo=timezone.utc)).timestamp()
    except (TypeError, ValueError, OverflowError):
        return None


def lasting(span: float) -> str:
    """Write a time span in one unit: 25 min"""
    units = (("days", 86400), ("h", 3600), ("min", 60))
    unit, length = next((each for each in units if span >= 2 * each[1]), units[-1])
    return f"{span / length:.0f} {unit}" if span >= 30 else "less than a minute"


def ago(when: float, now: float) -> str:
    """Write how long ago something was: 2 min ago; of what is older than two days the time"""
    return clock(when) if not 0 <= now - when < 2 * 86400 else f"{lasting(now - when)} ago"


def clock(when: float | None) -> str:
    if when is None or not math.isfinite(when) or not 0 <= when < _LATEST:
        return "an unknown time"
    return f"{datetime.fromtimestamp(when, timezone.utc):%Y-%m-%d %H:%M} UTC"
