"""Tokens, time and GPU-hours of an evaluation.

A pass is one go of generation, over all tasks of a model. Every question that it answers is stamped with it in the progress
file, so that a kill loses no more than the time since the last answer, and a repeated command adds up all passes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from time import monotonic


@dataclass
class Pass:
    """A pass under way. engines, gpus: how many it holds."""

    engines: int
    gpus: int
    began: str = field(default_factory=lambda: datetime.now(timezone.utc).isoformat(timespec="milliseconds"))
    _start: float = field(default_factory=lambda: monotonic())

    def now(self) -> dict:
        """Return the pass as JSON; `began` tells passes apart."""
        return {
            "began": self.began,
            "seconds": round(monotonic() - self._start, 1),
            "engines": self.engines,
            "gpus": self.gpus,
        }


def merged(passes: Iterable[Mapping]) -> list[dict]:
    """Return each pass once, as its latest stamp has it, in the order in which they began."""
    found: dict[str, dict] = {}
    for each in passes:
        if each["seconds"] >= found.get(each["began"], each)["seconds"]:
            found[each["began"]] = dict(each)
    return sorted(found.values(), key=lambda each: each["began"])


def seconds_of(passes: Iterable[Mapping]) -> float:
    return sum(each["seconds"] for each in passes)


def gpu_hours(passes: Sequence[Mapping]) -> float | None:
    """Return GPU-hours; None where a pass does not say its GPUs."""
    gpus = [each.get("gpus") for each in passes]
    if not passes or None in gpus:
        return None
    return sum(n * each["seconds"] for n, each in zip(gpus, passes, strict=True)) / 3600


def tokens(records: Iterable[Mapping]) -> dict:
    """Count tokens. prompt: of each question once, None where it was not counted; generated: of all responses."""
    records = list(records)
    prompts = [record.get("prompt_tokens") for record in records]
    return {
        "prompt": None if None in prompts else sum(prompts),
        "generated": sum(sum(record["lengths"]) for record in records),
    }
