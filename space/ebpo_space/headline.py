"""Runs of one configuration together, with the spread of their seeds; and every configuration against GRPO, in one
sentence each: the difference, its interval, and what it is over.

With two seeds each or more, the runs' ends are compared by seed, and the interval says what another training would
give. With one seed each, the last checkpoint that both have is compared question by question, or else the training
reward; how far another training would differ is then unknown, and the sentence says so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from openrlhf_ebpo.estimator.registry import title
from openrlhf_ebpo.eval.differences import of_steps, spread
from openrlhf_ebpo.run.run_log import get_nested

from . import results, seeds
from .change import Change, over_questions, over_seeds, window
from .components import dot, table
from .errors import RunError
from .improvement import TRAINING_REWARD, Outcome, shares
from .text import HTML, harmless, html, join, run_name
from .warnings import Warned
from .workspace import LoadedRun

GRPO = "group_norm"
SEEDS = {1: "One seed each: another training may differ by more.", 2: "Two seeds give a range, not an interval."}
MAX_COMPARISONS = 6

Measured = tuple[LoadedRun, Outcome | None]


@dataclass(frozen=True)
class Configuration:
    """Runs that differ only in their seed. alike: by seed, the outcomes that measure what most of them do; what:
    that."""

    name: str
    runs: Sequence[LoadedRun]
    alike: dict[int | None, Outcome]

    @property
    def what(self) -> str:
        return next(iter(self.alike.values())).what if self.alike else ""

    @property
    def start(self) -> tuple[str, ...]:
        """Model and data that its runs start from."""
        places = ("actor", "model_name_or_path"), ("data", "prompt_dataset")
        return tuple(str(get_nested(self.runs[0].about, "args", *place)) for place in places)


def configurations(measured: Sequence[Measured]) -> list[Configuration]:
    outcomes = {run.run.key: outcome for run, outcome in measured}
    found = []
    for runs in seeds.group_by_configuration([run for run, _ in measured]):
        known = [(seeds.seed_of(run.about), outcome) for run in runs if (outcome := outcomes[run.run.key])]
        most = Counter(outcome.what for _, outcome in known).most_common(1)  # a seed may have stopped early
        alike = {seed: outcome for seed, outcome in known if outcome.what == most[0][0]}
        found.append(Configuration(seeds.name([run.run.key for run in runs]), runs, alike))
    return found


def headline(measured: Sequence[Measured], warned: Mapping[str, Sequence[Warned]] = MappingProxyType({})) -> HTML:
    """Compare configurations that start from the same model and train on the same data; "" unless there are two.
    warned: warnings by run."""
    every = configurations(measured)
    base = next((one for one in every if one.runs[0].estimator == GRPO), every[0] if every else None)
    others = [one for one in every if one is not base and one.start == base.start][:MAX_COMPARISONS]
    count = Counter(one.runs[0].estimator for one in every)

    def sentence(one: Configuration) -> HTML:
        found = compare(one, base)
        if not found:
            return HTML()
        named = {_name(each, count): each for each in (one, base)}
        titles = {
            name: dict.fromkeys(each.rule.title for run in of.runs for each in warned.get(run.run.key, ()))
            for name, of in named.items()
        }
        doubts = HTML("; ").join(html("{}: {}", name, ", ".join(each)) for name, each in titles.items() if each)
        return _sentence(*found, *named, doubts)

    items = join(map(sentence, others))
    return html('<section class="headline" aria-label="Comparison">{}</section>', items) if items else HTML()


def _name(one: Configuration, count: Counter) -> HTML:
    """Return the estimator's name if it is one configuration's alone, else the shared part of the runs' names."""
    estimator = one.runs[0].estimator
    return harmless(title(estimator), 40) if count[estimator] == 1 else run_name(one.name, 40)


def _sentence(found: Change, what: str, paired: int, one: HTML, base: HTML, doubts: HTML) -> HTML:
    """paired: seeds of each that are compared. doubts: warnings, which a comparison of training rewards names."""
    verdict = "unsure" if paired == 2 else found.verdict
    by_reward = what.startswith(TRAINING_REWARD)
    sentence = {
        "better": html("{} earned more training reward than {}", one, base),
        "worse": html("{} earned less training reward than {}", one, base),
    }.get(verdict if by_reward else "") or {
        "better": html("{} did better than {}", one, base),
        "worse": html("{} did worse than {}", one, base),
        "open": html("No difference shown between {} and {}", one, base),
        "unsure": html("{} against {}", one, base),
    }[verdict]
    unseen = f" Less than {found.least} could not be seen." if verdict == "open" and found.high > found.low else ""
    doubted = html('<p class="doubts">Warnings: {}.</p>', doubts) if by_reward and doubts else ""
    return html(
        '<div class="{}"><p class="big">{} <b>{}</b></p><p>{}, {} over {}.{} {}</p>{}</div>',
        *("doubted" if doubted else verdict, sentence, found.text),
        *("By training reward: no held-out answers" if by_reward else what, found.interval, found.over, unseen),
        *(SEEDS.get(paired, ""), doubted),
    )


def compare(one: Configuration, base: Configuration) -> tuple[Change, str, int] | None:
    """Compare one configuration with another: the difference, what was measured, and over how many seeds; None if
    nothing measures both."""
    both = [seed for seed in one.alike if seed in base.alike]
    if one.what == base.what and len(both) > 1:
        differences = np.array([one.alike[seed].last - base.alike[seed].last for seed in both])
        change = over_seeds(differences, one.alike[both[0]].is_share)
        return change, one.what.rpartition(", ")[0], len(both)
    same_seed = ((a, b) for a in one.runs for b in base.runs if seeds.seed_of(a.about) == seeds.seed_of(b.about))
    pair = next(same_seed, (one.runs[0], base.runs[0]))
    found = _by_question(*pair) or _by_step(*pair)
    return (*found, 1) if found else None


def _by_question(one: LoadedRun, base: LoadedRun) -> tuple[Change, str] | None:
    """Compare pass@1 of the last checkpoint that both have, question by question."""
    try:
        sides = [results.find(side.run)[0] for side in (one, base)]
        protocol = results.largest_protocol([result for side in sides for result in side])
        mine, theirs = (results.scores([each for each in side if each.protocol == protocol]) for side in sides)
        shared = mine.keys() & theirs.keys()
        step = max((step for step, _ in shared), default=0)
        if not step:
            return None
        tasks = sorted(task for at, task in shared if at == step)
        found = over_questions((base.run, theirs[step, task], one.run, mine[step, task]) for task in tasks)
    except RunError:
        return None
    named = tasks[0][:40] if len(tasks) == 1 else f"mean of {len(tasks)} tasks"
    return (found, f"held-out pass@1, {named}, step {step:,}") if found else None


def _by_step(one: LoadedRun, base: LoadedRun) -> tuple[Change, str] | None:
    """Compare the mean reward of the last steps that both have, step by step."""
    if one.rewards != base.rewards:
        return None
    (x, mine), (y, theirs) = one.metrics.rewards(), base.metrics.rewards()
    steps, i, j = np.intersect1d(x, y, assume_unique=True, return_indices=True)
    (mine, theirs), is_share = shares(np.stack([mine[i], theirs[j]]), one.rewards)
    size, apart = window(len(steps)), mine - theirs
    half = of_steps(apart, size, means=1)
    if half is None:
        return None
    value, over = float(apart[-size:].mean()), f"steps {int(steps[-size]):,} to {int(steps[-1]):,}"
    low, high = (min(max(end, -1), 1) if is_share else end for end in (value - half, value + half))
    return Change(value, low, high, over, is_share), TRAINING_REWARD


def seed_table(measured: Sequence[Measured]) -> HTML:
    """Lay out one row for each configuration of several runs; nothing without one."""
    rows = [_row(one) for one in configurations(measured) if len(one.runs) > 1]
    if not rows:
        return HTML()
    note = "Runs that differ only in seed, names and paths. 95 % t-interval of the mean; for two runs their range."
    head = ["configuration", "seeds", "start to end", "change"]
    cells = table(head, rows, "Seeds of one configuration", "seeds")
    return html('<section class="passage spread"><h2>Seeds</h2><p>{}</p>{}</section>', note, cells)


def _row(one: Configuration) -> list[HTML | str]:
    about = ", ".join(filter(None, (title(one.runs[0].estimator)[:40], one.what.rpartition(", ")[0])))
    name = html("{}{}<small>{}</small>", dot(one.runs[0].run.number), run_name(one.name, 40), about)
    count = f"{len(one.alike)} of {len(one.runs)}" if len(one.alike) < len(one.runs) else str(len(one.runs))
    if len(one.alike) < 2:
        return [name, count, "–", "not at the same step yet"]
    write = next(iter(one.alike.values())).format
    firsts, lasts = (np.array([getattr(each, end) for each in one.alike.values()]) for end in ("first", "last"))
    low, high = spread(lasts)
    least, most = (write(end, True).removesuffix(" points") for end in spread(lasts - firsts))
    return [
        name,
        count,
        html(
            "{} → <b>{}</b><small>{} to {}</small>", write(firsts.mean()), write(lasts.mean()), *map(write, (low, high))
        ),
        html("<b>{}</b><small>{} to {}</small>", write((lasts - firsts).mean(), True), least, most),
    ]
