"""Runs of one configuration together: what came of them, with the spread of their seeds. HTML, pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from openrlhf_ebpo.estimator.registry import title

from . import seeds
from .metrics import smooth
from .outcome import Outcome
from .sparkline import SMOOTHED, sparkline
from .tables import dot, table
from .text import HTML, html, run_name
from .warnings import REWARD
from .workspace import Opened

Found = tuple[Opened, Outcome | None]


class Spread(NamedTuple):
    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Configuration:
    """Runs that differ only in their seed. alike: by seed, the outcomes that measure the same; what: what they measure."""

    name: str
    runs: Sequence[Opened]
    alike: dict[int | None, Outcome]

    @property
    def what(self) -> str:
        return next(iter(self.alike.values())).what if self.alike else ""


def seed_table(found: Sequence[Found]) -> HTML:
    """Nothing where no two runs are of one configuration."""
    each = [one for one in configurations(found) if len(one.runs) > 1]
    if not each:
        return HTML()
    rows = [_row(one) for one in each]
    said = "Runs whose arguments differ only in seed, names and paths. 95 % t-interval of the mean; for two runs their range."
    shown = table(
        ["configuration", "seeds", "start to end", "change", "mean reward"], rows, "Seeds of one configuration", "seeds"
    )
    return html('<section class="passage spread"><h2>Seeds</h2><p>{}</p>{}</section>', said, shown)


def configurations(found: Sequence[Found]) -> list[Configuration]:
    came = {run.run.key: outcome for run, outcome in found}
    return [_configuration(runs, came) for runs in seeds.grouped([run for run, _ in found])]


def _configuration(runs: Sequence[Opened], came: dict[str, Outcome | None]) -> Configuration:
    known = [(seeds.seed_of(run.about), came[run.run.key]) for run in runs if came[run.run.key]]
    alike = {seed: outcome for seed, outcome in known if outcome.what == known[0][1].what}
    return Configuration(seeds.name([run.run.key for run in runs]), runs, alike)


def _row(one: Configuration) -> list[HTML | str]:
    name = html(
        "{}{}<small>{}</small>", dot(one.runs[0].run.number), run_name(one.name, 40), title(one.runs[0].estimator)[:40]
    )
    if len(one.alike) < 2:
        return [name, str(len(one.runs)), "–", "not at the same step yet", _line(one)]
    first, last = (spread([getattr(each, end) for each in one.alike.values()]) for end in ("first", "last"))
    moved = spread([each.last - each.first for each in one.alike.values()])
    say = next(iter(one.alike.values())).written
    return [
        name,
        f"{len(one.alike)} of {len(one.runs)}" if len(one.alike) < len(one.runs) else str(len(one.runs)),
        html("{} → <b>{}</b><small>{} to {}</small>", say(first.mean), say(last.mean), say(last.low), say(last.high)),
        html(
            "<b>{}</b><small>{} to {}</small>",
            say(moved.mean, True),
            *(say(end, True).removesuffix(" points") for end in (moved.low, moved.high)),
        ),
        _line(one),
    ]


def spread(values: Sequence[float]) -> Spread:
    found = np.array(values, float)
    return Spread(float(found.mean()), *map(float, seeds.spread(found)))


def _line(one: Configuration) -> HTML:
    series = [next((s for s in map(run.metrics.series, REWARD) if len(s[0])), None) for run in one.runs]
    band = seeds.band([(steps, smooth(values, SMOOTHED)) for steps, values in filter(None, series)])
    if band is None:
        return HTML("–")
    said = f"Mean reward, {band.words}"
    return sparkline(band.steps, band.mean, said, one.runs[0].run.number, (band.low, band.high))
