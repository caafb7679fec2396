"""Runs of one configuration together, with the spread of their seeds; and every configuration against GRPO, in one sentence each: the difference, its interval, and what it is over.

With two seeds each or more, the runs' ends are compared by seed, and the interval says what another training would give.
With one seed each, the last checkpoint that both have is compared question by question, or else the training reward; how far
another training would differ is then unknown, and the sentence says so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from openrlhf_ebpo.estimator.registry import title
from openrlhf_ebpo.run.run_log import dig

from . import results, seeds
from .errors import RunError
from .outcome import Outcome, half_width, part
from .paired import GRPO, change
from .tables import dot, table
from .text import HTML, harmless, html, joined, run_name
from .workspace import Opened

ONE_SEED = "One seed each: another training may differ by more."
MAX_COMPARISONS = 6

Found = tuple[Opened, Outcome | None]


@dataclass(frozen=True)
class Comparison:
    """difference, interval: in words; low, high: its ends; over: what the interval is taken over; what: what was measured;
    least: the smallest difference that could have been seen; seeds: runs of each configuration that are compared."""

    difference: str
    low: float
    high: float
    interval: str
    what: str
    over: str
    least: str = ""
    seeds: int = 1

    @property
    def verdict(self) -> str:
        if self.seeds == 2:
            return "unsure"
        return "better" if self.low > 0 else "worse" if self.high < 0 else "open"


def headline(found: Sequence[Found]) -> HTML:
    """Nothing unless two configurations start from the same model and train on the same data."""
    each = configurations(found)
    if len(each) < 2:
        return HTML()
    base = next((one for one in each if one.runs[0].estimator == GRPO), each[0])
    others = [one for one in each if one is not base and start_of(one.runs[0]) == start_of(base.runs[0])]
    named = _names(each)
    made = [(one, found) for one in others[:MAX_COMPARISONS] if (found := compare(one, base))]
    items = joined(_sentence(found, named[id(one)], named[id(base)]) for one, found in made)
    return html('<section class="headline" aria-label="Comparison">{}</section>', items) if made else HTML()


def start_of(run: Opened) -> tuple[str, ...]:
    """Model and data that a run starts from."""
    places = ("actor", "model_name_or_path"), ("data", "prompt_dataset")
    return tuple(str(dig(run.about, "args", *place)) for place in places)


def _names(each: Sequence[Configuration]) -> dict[int, HTML]:
    """The estimator's name if it is one configuration's alone, else the shared part of the runs' names."""
    count = Counter(one.runs[0].estimator for one in each)
    return {
        id(one): harmless(title(one.runs[0].estimator), 40)
        if count[one.runs[0].estimator] == 1
        else run_name(one.name, 40)
        for one in each
    }


def _sentence(found: Comparison, one: HTML, base: HTML) -> HTML:
    said = {
        "better": html("{} did better than {}", one, base),
        "worse": html("{} did worse than {}", one, base),
        "open": html("No difference shown between {} and {}", one, base),
        "unsure": html("{} against {}", one, base),
    }[found.verdict]
    limits = {1: ONE_SEED, 2: "Two seeds give a range, not an interval."}
    unseen = f" Less than {found.least} could not be seen." if found.verdict == "open" and found.least else ""
    return html(
        '<div class="{}"><p class="big">{} <b>{}</b></p><p>{}, {} {}.{} {}</p></div>',
        *(found.verdict, said, found.difference, found.what, found.interval, found.over, unseen),
        limits.get(found.seeds, ""),
    )


def compare(one: Configuration, base: Configuration) -> Comparison | None:
    """One configuration against another; None if nothing measures both."""
    both = [seed for seed in one.alike if seed in base.alike]
    if one.what == base.what and len(both) > 1:
        return _by_seed(one, base, both)
    pair = next(
        ((a, b) for a in one.runs for b in base.runs if seeds.seed_of(a.about) == seeds.seed_of(b.about)),
        (one.runs[0], base.runs[0]),
    )
    return _by_question(*pair) or _by_step(*pair)


def _by_seed(one: Configuration, base: Configuration, both: Sequence) -> Comparison:
    """Ends of runs of the same seed, paired."""
    found = np.array([one.alike[seed].last - base.alike[seed].last for seed in both])
    mean, ends = float(found.mean()), [float(end) for end in seeds.spread(found)]
    write = one.alike[both[0]].written
    low, high = (write(end, signed=True).removesuffix(" points") for end in ends)
    kind = "range" if len(both) == 2 else "95% CI"
    over = f"over {len(both)} seeds" + (", paired by seed" if len(both) > 2 else "")
    half = ends[1] - mean
    least = f"about {write(half, signed=True).removeprefix('+')}" if half else ""
    what = one.what.rpartition(", ")[0]
    return Comparison(write(mean, True), *ends, f"{kind} {low} to {high}", what, over, least, len(both))


def _by_question(one: Opened, base: Opened) -> Comparison | None:
    """pass@1 of the last checkpoint that both have, question by question."""
    try:
        (here, _), (there, _) = results.find(one.run), results.find(base.run)
        protocol = results.largest_protocol([*here, *there])
        mine, theirs = (
            {(each.step, each.task): each for each in side if each.protocol == protocol and "pass@1" in each.metrics}
            for side in (here, there)
        )
        shared = mine.keys() & theirs.keys()
        step = max((step for step, _ in shared), default=0)
        if not step:
            return None
        tasks = sorted(task for at, task in shared if at == step)
        found = change((base.run, theirs[step, task], one.run, mine[step, task]) for task in tasks)
    except RunError:
        return None
    if found is None:
        return None
    named = tasks[0][:40] if len(tasks) == 1 else f"mean of {len(tasks)} tasks"
    what = f"held-out pass@1, {named}, step {step:,}"
    over = f"over {found.asked}"
    return Comparison(found.written, found.low, found.high, found.interval, what, over, found.least)


def _by_step(one: Opened, base: Opened) -> Comparison | None:
    """Mean reward of the last steps that both have, step by step."""
    if one.rewards != base.rewards:
        return None
    (x, mine), (y, theirs) = one.metrics.rewards(), base.metrics.rewards()
    steps, i, j = np.intersect1d(x, y, assume_unique=True, return_indices=True)
    size = part(len(steps)) if len(steps) > 1 else 0
    half = half_width(mine[i] - theirs[j], size) if size else None
    if half is None:
        return None
    half /= 2**0.5  # of one mean rather than of the difference of two
    value = float((mine[i] - theirs[j])[-size:].mean())
    write = "{:+.3g}".format
    said, low, high = (write(each).replace("-", "−") for each in (value, value - half, value + half))
    over = f"over steps {int(steps[-size]):,} to {int(steps[-1]):,}, allowing for autocorrelation"
    least = f"about {half:.2g}"
    return Comparison(said, value - half, value + half, f"95% CI {low} to {high}", "training reward", over, least)


@dataclass(frozen=True)
class Configuration:
    """Runs that differ only in their seed. alike: by seed, the outcomes that measure what most of them do; what: that."""

    name: str
    runs: Sequence[Opened]
    alike: dict[int | None, Outcome]

    @property
    def what(self) -> str:
        return next(iter(self.alike.values())).what if self.alike else ""


def seed_table(found: Sequence[Found]) -> HTML:
    """One row for each configuration of several runs; nothing without one."""
    rows = [_row(one) for one in configurations(found) if len(one.runs) > 1]
    if not rows:
        return HTML()
    note = "Runs whose arguments differ only in seed, names and paths. 95 % t-interval of the mean; for two runs their range."
    shown = table(["configuration", "seeds", "start to end", "change"], rows, "Seeds of one configuration", "seeds")
    return html('<section class="passage spread"><h2>Seeds</h2><p>{}</p>{}</section>', note, shown)


def _row(one: Configuration) -> list[HTML | str]:
    estimator, what = title(one.runs[0].estimator)[:40], one.what.rpartition(", ")[0]
    about = ", ".join(filter(None, (estimator, what)))
    name = html("{}{}<small>{}</small>", dot(one.runs[0].run.number), run_name(one.name, 40), about)
    count = f"{len(one.alike)} of {len(one.runs)}" if len(one.alike) < len(one.runs) else str(len(one.runs))
    if len(one.alike) < 2:
        return [name, count, "–", "not at the same step yet"]
    say = next(iter(one.alike.values())).written
    firsts, lasts = (np.array([getattr(each, end) for each in one.alike.values()]) for end in ("first", "last"))
    low, high = seeds.spread(lasts)
    least, most = (say(end, True).removesuffix(" points") for end in seeds.spread(lasts - firsts))
    return [
        name,
        count,
        html("{} → <b>{}</b><small>{} to {}</small>", say(firsts.mean()), say(lasts.mean()), *map(say, (low, high))),
        html("<b>{}</b><small>{} to {}</small>", say((lasts - firsts).mean(), True), least, most),
    ]


def configurations(found: Sequence[Found]) -> list[Configuration]:
    came = {run.run.key: outcome for run, outcome in found}
    return [_configuration(runs, came) for runs in seeds.grouped([run for run, _ in found])]


def _configuration(runs: Sequence[Opened], came: dict[str, Outcome | None]) -> Configuration:
    known = [(seeds.seed_of(run.about), came[run.run.key]) for run in runs if came[run.run.key]]
    most = Counter(outcome.what for _, outcome in known).most_common(1)  # a seed may have stopped early
    alike = {seed: outcome for seed, outcome in known if outcome.what == most[0][0]}
    return Configuration(seeds.name([run.run.key for run in runs]), runs, alike)
