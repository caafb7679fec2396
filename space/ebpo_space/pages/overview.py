"""The first page: whether each training goes well, and what its estimator changed."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence

from openrlhf_ebpo.run.heartbeat import FILE as HEARTBEAT
from openrlhf_ebpo.run.run_log import LOCK

from ..headline import headline
from ..page import Page
from ..parts import Parts
from ..run_card import Looked, card, look
from ..seed_table import seed_table
from ..tables import NO_RUNS, STATE, notices
from ..text import HTML, html, joined
from ..warnings import RULES
from ..workspace import Workspace

READS = ("metrics.jsonl", "run.json", "rollouts", "eval", HEARTBEAT, LOCK)


def lay_out(parts: Parts, workspace: Workspace) -> None:
    parts.html("notes")
    parts.html("sum")
    parts.html("headline")
    parts.html("seeds")
    parts.html("cards")


def render(view: dict, workspace: Workspace) -> dict:
    """notes: problems; sum: states of all runs; headline: who won; seeds: runs of one configuration; cards: each run."""
    if not workspace.runs.listed() and not view["runs"]:
        return {"notes": NO_RUNS, "sum": "", "headline": "", "seeds": "", "cards": ""}
    opened, problems = workspace.open_all(view)
    now = time.time()
    looked = [look(run, now) for run in opened]
    problems += [f"{each.run.run.key}: {problem}" for each in looked for problem in each.problems]
    came = [(each.run, each.outcome) for each in looked]
    cards = joined(card(each) for each in looked)
    return {
        "notes": notices(problems),
        "sum": summary(looked) if looked else "",
        "headline": headline(came),
        "seeds": seed_table(came),
        "cards": html('<div class="cards">{}</div>', cards),
    }


SEVERITY = ("failed", "silent", "stalled", "interrupted", "unknown", "paused", "training", "complete")  # worst first


def summary(looked: Sequence[Looked]) -> HTML:
    """3 runs: 1 failed, 2 complete · 3 warnings. The worst state comes first, and no bold "no warnings" hides it."""
    states = Counter(each.condition.kind for each in looked)
    kinds = sorted(states, key=SEVERITY.index)
    words = ", ".join(f"{states[kind]} {STATE[kind]}" for kind in kinds) if len(looked) > 1 else STATE[kinds[0]]
    bad = kinds[0] in SEVERITY[:3]
    warned = sum(len(each.warnings) for each in looked)
    count = f"{warned} warning{'' if warned == 1 else 's'}" if warned else f"No warnings ({len(RULES)} checks)"
    return html(
        '<p class="sum">{} run{}: <b class="{}">{}</b> · <span class="{}">{}</span></p>',
        *(len(looked), "" if len(looked) == 1 else "s", "bad" if bad else "", words),
        *("bad" if warned else "", count),
    )


PAGE = Page("overview", {}, lay_out, render, reads=READS)
