"""Tokens, time, GPU-hours and cost of an evaluation.

A pass is one go of generation, over all tasks of a model. Every question that it answers is stamped with it in the progress
file, so that a kill loses no more than the time since the last answer, and a repeated command adds up all passes.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from time import monotonic

from openrlhf_ebpo.run.results import SERVER

HOUR = 3600
HARDWARE = ("engines", "gpus", "gpu", "price_per_hour")


@dataclass
class Pass:
    """A pass under way; hardware: HARDWARE by name, None where it is not known."""

    hardware: Mapping
    began: str = field(default_factory=lambda: datetime.now(timezone.utc).isoformat(timespec="milliseconds"))
    _start: float = field(default_factory=lambda: monotonic())

    def now(self) -> dict:
        """Return the pass as JSON; `began` tells passes apart."""
        return {"began": self.began, "seconds": round(monotonic() - self._start, 1), **self.hardware}


def hardware(model: str | None, num_engines: int, gpus_per_engine: int, cuda: bool, price: float | None) -> dict:
    if model and model.startswith(SERVER):
        return dict(zip(HARDWARE, (None, None, None, price), strict=True))
    gpus = num_engines * gpus_per_engine if cuda else 0
    return dict(zip(HARDWARE, (num_engines, gpus, gpu_name() if gpus else None, price), strict=True))


def gpu_name() -> str | None:
    """Return the name of this machine's first GPU; not from torch, which would take memory of it."""
    command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.splitlines()[0]
    except (OSError, subprocess.SubprocessError, IndexError):
        return None


def merged(passes: Iterable[Mapping]) -> list[dict]:
    """Return each pass once, as its latest stamp has it, in the order in which they began."""
    found: dict[str, dict] = {}
    for each in passes:
        if each["seconds"] >= found.get(each["began"], each)["seconds"]:
            found[each["began"]] = dict(each)
    return sorted(found.values(), key=lambda each: each["began"])


def seconds_of(passes: Iterable[Mapping]) -> float:
    return sum(each["seconds"] for each in passes)


def cost(passes: Sequence[Mapping]) -> dict:
    """gpu_hours and total, None where a pass does not say its GPUs or its price.

    The price is of an hour of one GPU; without GPUs, of an hour of the machine.
    """
    gpus, prices = ([each.get(name) for each in passes] for name in ("gpus", "price_per_hour"))
    found: dict = {"gpu_hours": None, "total": None}
    if passes and None not in gpus:
        found["gpu_hours"] = sum(n * each["seconds"] for n, each in zip(gpus, passes, strict=True)) / HOUR
    if passes and None not in prices:
        paid = (price * (n or 1) * each["seconds"] for price, n, each in zip(prices, gpus, passes, strict=True))
        found["total"] = sum(paid) / HOUR
    return found


def tokens(records: Iterable[Mapping]) -> dict:
    """Count tokens. prompt: of each question once, None where it was not counted; generated: of all responses."""
    records = list(records)
    prompts = [record.get("prompt_tokens") for record in records]
    return {
        "prompt": None if None in prompts else sum(prompts),
        "generated": sum(sum(record["lengths"]) for record in records),
    }
