"""The catalogue of metrics: title and meaning of each number in metrics.jsonl, and when to look closer.

A metric is one line of catalogue.json, with the fields of `Metric`. The Space (sections, titles, order, notes), the
cards, the picture of a run and the table in docs/runs.md are made from it. A run's own
code may log others, which have a name only.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

NOT_METRICS = ("step", "time")  # of metrics.jsonl, and not metrics
KL_PER_STEP = "policy/kl_per_step"  # the policy actors measure it, the controller reads it


class Shown(Enum):
    """The place that shows a metric by default."""

    SPACE = "space"  # a panel of the page Dynamics
    PICTURE = "picture"  # comparison.png of the quickstart
    CARD = "card"  # the picture of a model card


@dataclass(frozen=True)
class Metric:
    """One number per step.

    Attributes:
        name: as in metrics.jsonl. `<k>` stands for a whole number, another `<...>` for any text.
        title: of a panel.
        unit: "" for a plain number.
        description: what it is; plain text that fits under a panel.
        warning: when to look closer, "" if it never says so by itself.
        shown: where it is shown by default.
        stand_in: the fallback that a panel shows for a run without this metric.
    """

    name: str
    title: str
    unit: str = ""
    description: str = ""
    warning: str = ""
    shown: tuple[Shown, ...] = ()
    stand_in: str = ""

    def matches(self, name: str) -> bool:
        return name == self.name or ("<" in self.name and _pattern(self.name).fullmatch(name) is not None)


@dataclass(frozen=True)
class Group:
    title: str
    note: str
    metrics: tuple[Metric, ...]


@functools.cache
def _pattern(name: str) -> re.Pattern:
    parts = (
        r"\d+" if part == "<k>" else ".+" if part[0] == "<" else re.escape(part)
        for part in re.findall("<.*?>|[^<]+", name)
    )
    return re.compile("".join(parts))


REWARD = "rollout/reward_mean"
HELD_OUT = "eval_<data set>_pass1"
ESTIMATOR = "Estimator"


def _read() -> Iterator[Group]:
    for group in json.loads(Path(__file__).with_name("catalogue.json").read_text(encoding="utf-8")):
        rows = ({**row, "shown": tuple(map(Shown, row.get("shown", ())))} for row in group["metrics"])
        yield Group(group["title"], group["note"], tuple(Metric(**row) for row in rows))


GROUPS = tuple(_read())
METRICS = tuple(metric for group in GROUPS for metric in group.metrics)
_BY_NAME = {metric.name: metric for metric in METRICS}


def find(name: str) -> Metric | None:
    """The entry of a name in metrics.jsonl, None if the catalogue has none."""
    return _BY_NAME.get(name) or next((metric for metric in METRICS if metric.matches(name)), None)


def metrics_for(place: Shown) -> Iterator[Metric]:
    return (metric for metric in METRICS if place in metric.shown)
