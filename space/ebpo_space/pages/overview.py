"""The first page: whether each training goes well, and what its estimator changed."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence

from openrlhf_ebpo.run.heartbeat import FILE as HEARTBEAT
from openrlhf_ebpo.run.run_log import LOCK

from ..page import Page
from ..parts import Parts
from ..run_card import Looked, card, look
from ..seed_table import seed_table
from ..tables import NO_RUNS, STATE, notices
from ..text import HTML, html, joined
from ..workspace import Workspace

READS = ("metrics.jsonl", "run.json", "rollouts", "eval", HEARTBEAT, LOCK)


def lay_out(parts: Parts, workspace: Workspace) -> None:
    parts.html("notes")
    parts.html("sum")
    parts.html("seeds")
    parts.html("cards")


def render(view: dict, workspace: Workspace) -> dict:
    """notes: problems; sum: all runs in a line; seeds: those of one configuration together; cards: one for each run."""
    if not workspace.runs.listed() and not view["runs"]:
        return {"notes": NO_RUNS, "sum": "", "seeds": "", "cards": ""}
    opened, problems = workspace.open_all(view)
    now = time.time()
    looked = [look(run, now) for run in opened]
    problems += [f"{each.run.run.key}: {problem}" for each in looked for problem in each.problems]
    cards = joined(card(each) for each in looked)
    return {
        "notes": notices(problems),
        "sum": summary(looked) if looked else "",
        "seeds": seed_table([(each.run, each.outcome) for each in looked]),
        "cards": html('<div class="cards">{}</div>', cards),
    }


def summary(looked: Sequence[Looked]) -> HTML:
    """2 runs: 1 training, 1 failed · 3 warnings"""
    states = Counter(STATE[each.condition.kind] for each in looked)
    said = ", ".join(f"{count} {words}" for words, count in states.items()) if len(looked) > 1 else next(iter(states))
    warned = sum(len(each.warnings) for each in looked)
    return html(
        '<p class="sum"><b>{} run{}</b>: {} · <b class="{}">{} warning{}</b></p>',
        *(len(looked), "" if len(looked) == 1 else "s", said),
        *("bad" if warned else "", warned or "no", "" if warned == 1 else "s"),
    )


PAGE = Page("overview", {}, lay_out, render, reads=READS)
