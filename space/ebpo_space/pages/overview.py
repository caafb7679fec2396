"""The first page: whether each training goes well, and what its estimator changed."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence

from openrlhf_ebpo.run.heartbeat import FILE as HEARTBEAT
from openrlhf_ebpo.run.run_log import LOCK

from .. import seeds
from ..components import dot, notices, state
from ..headline import headline, seed_table
from ..improvement import shares
from ..overview_card import NO_WARNINGS, RunView, card, examine
from ..page import Page, Parts
from ..picture import scale_of
from ..text import HTML, html, join, run_name
from ..workspace import Workspace

READS = ("metrics.jsonl", "run.json", "rollouts", "eval", HEARTBEAT, LOCK)


def lay_out(parts: Parts, workspace: Workspace) -> None:
    parts.html("notes")
    parts.html("sum")
    parts.html("headline")
    parts.html("seeds")
    parts.html("cards")


def render(view: dict, workspace: Workspace) -> dict:
    """notes: problems; sum: states of all runs; headline: who won; seeds: runs of one configuration; cards: each
    run."""
    opened, problems = workspace.open_all(view)
    now = time.time()
    examined = [examine(run, workspace.index(run).read()[0], now) for run in opened]
    problems += [f"{each.run.run.key}: {problem}" for each in examined for problem in each.problems]
    measured = [(each.run, each.outcome) for each in examined]
    return {
        "notes": notices(problems),
        "sum": html('<p class="sum">{}</p>', counts(examined)) if examined else "",
        "headline": headline(measured, {each.run.run.key: each.warnings for each in examined}),
        "seeds": seed_table(measured),
        "cards": html('<div class="cards">{}</div>', cards(examined)),
    }


def cards(examined: Sequence[RunView]) -> HTML:
    """Lay out a card for each run; those of a configuration with several seeds are folded. Their sparklines share a
    scale."""
    scale = scale_of([shares(one.run.metrics.rewards()[1], one.run.rewards)[0] for one in examined])
    by_key = {one.run.run.key: one for one in examined}
    found = HTML()
    for runs in seeds.group_by_configuration([one.run for one in examined]):
        keys = [run.run.key for run in runs]
        each = join(card(by_key[key], scale) for key in keys)
        if len(keys) > 1:
            name, states = run_name(seeds.name(keys), 60), counts([by_key[key] for key in keys])
            fold = '<details class="seed-cards"><summary>{}<b>{}</b><small>{}</small></summary>{}</details>'
            each = html(fold, dot(runs[0].run.number), name, states, each)
        found += each
    return found


SEVERITY = ("failed", "silent", "stalled", "interrupted", "unknown", "paused", "training", "complete")  # worst first
BAD = SEVERITY[:3]


def counts(examined: Sequence[RunView]) -> HTML:
    """3 runs: 1 failed, 2 complete · 3 warnings. The worst state comes first, and no bold "no warnings" hides it."""
    states = Counter(each.condition.kind for each in examined)
    kinds = sorted(states, key=SEVERITY.index)
    listed = ", ".join(f"{states[kind]} {state(kind)}" for kind in kinds) if len(examined) > 1 else state(kinds[0])
    warned = sum(len(each.warnings) for each in examined)
    begun = any(len(each.run.metrics.steps) for each in examined)
    count = f"{warned} warning{'' if warned == 1 else 's'}" if warned else NO_WARNINGS if begun else "No metrics yet"
    return html(
        '{} run{}: <b class="{}">{}</b> · <span class="{}">{}</span>',
        *(len(examined), "" if len(examined) == 1 else "s", "bad" if kinds[0] in BAD else "", listed),
        *("bad" if warned else "", count),
    )


PAGE = Page("overview", {}, lay_out, render, reads=READS)
