"""HTML of the list of groups, and of one group: its prompt and what was decided about it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from openrlhf_ebpo.run.score_text import whole_percent

from . import reading
from .components import page_of, setting
from .figures import number
from .groups import Groups
from .runs import Run
from .search import PUSHED_DOWN, prompts_of
from .text import HTML, harmless, html, join, run_name
from .turns import last_user_turn

PER_PAGE = 40  # groups in the list at a time


def group_list(run: Run, groups: Groups, positions: np.ndarray, current: int | None, page: int, failed, passed) -> HTML:
    """Lay out page `page` (from 1) of groups as buttons; failed, passed: (K,) bool, all-fail and all-pass groups."""
    here, page, pages = page_of(positions, page, PER_PAGE)
    prompts = prompts_of(run, groups, here)
    items = join(
        _item(groups, int(p), prompts.get(int(p), ""), int(p) == current, badge(groups, p, failed, passed))
        for p in here
    )
    count = html("<b>{:,}</b> group{}", len(positions), "" if len(positions) == 1 else "s")
    return html(
        '<nav class="groups" aria-label="Groups"><header><span>{}</span>{}</header><ol>{}</ol></nav>',
        *(count, pager("shown", page, pages, "groups"), items),
    )


def pager(name: str, page: int, pages: int, of: str) -> HTML:
    """Buttons to the page before and after; nothing for a single page. name: of the view's parameter."""
    if pages == 1:
        return HTML()
    back = "disabled" if page <= 1 else setting(**{name: page - 1})
    on = "disabled" if page >= pages else setting(**{name: page + 1})
    return html(
        '<span class="pager"><button type="button" {} aria-label="Previous page of {}">‹</button>'
        '<span>{} / {}</span><button type="button" {} aria-label="Next page of {}">›</button></span>',
        *(back, of, page, pages, on, of),
    )


def _item(groups: Groups, p: int, prompt: str, current: bool, kind: HTML) -> HTML:
    step, group = groups.step[p], groups.group[p]
    cluster = html("<small>{}</small>", run_name(groups.cluster[p], 40)) if groups.cluster[p] else ""
    meter, rate = HTML('<small class="rate">no valid answer</small>'), groups.success[p]
    if math.isfinite(rate):
        bar = '<span class="meter"><i style="width:{:.0f}%"></i></span><small class="rate">{}</small>'
        meter = html(bar, 100 * rate, whole_percent(rate))
    return html(
        '<li><button type="button" {}{}><span class="top"><small>step {} · group {}</small></span>'
        '<span class="words">{}</span><span class="top">{}{}</span>{}</button></li>',
        *(setting(at=f"{step}.{group}", answer=0), current_mark(current), step, group),
        *(reading.line(last_user_turn(prompt), 110), meter, cluster, kind),
    )


def current_mark(yes: bool) -> HTML:
    return HTML(' aria-current="true"') if yes else HTML()


def badge(groups: Groups, p: int, failed, passed) -> HTML:
    """Mark a group. Penalised: all answers are wrong, and get a negative advantage that GRPO would not have given;
    that is not a success, so its colour is that of negative advantages."""
    if failed[p]:
        penalised = html('<em class="down">{}</em>', PUSHED_DOWN)
        return penalised if groups.pushed_down[p] else HTML('<em class="bad">all fail</em>')
    if passed[p]:
        return HTML("<em>all pass</em>")
    errors = groups.errors[p]
    return html('<em class="bad">{} error{}</em>', errors, "s" if errors > 1 else "") if errors else HTML()


def decision(row: Mapping, about: Mapping, options: reading.Options, picture: HTML, history: HTML) -> HTML:
    """Lay out one group without its answers: prompt, numbers, picture, the same prompt at other steps.

    Args:
        row: one of its answers, for the prompt.
        about: run, step, group, mean, baseline, shrinkage, kind.
        options: of the group's texts.
    """
    facts = [("group mean μ", about["mean"]), ("baseline V", about["baseline"]), ("shrinkage S", about["shrinkage"])]
    numbers = join(
        html("<div><dt>{}</dt><dd>{}</dd></div>", name, number(value)) for name, value in facts if math.isfinite(value)
    )
    source = {**options.source, "field": "prompt"}
    prompt = reading.answer(row.get("prompt"), replace(options, source=source, is_answer=False, name="Prompt"))
    if row.get("label") not in (None, ""):
        prompt += html('<p class="label"><small>expected</small> <code>{}</code></p>', harmless(row["label"], 400))
    cluster = html("<small>{}</small>", str(row["cluster"])[:60]) if row.get("cluster") else ""
    raw = options.raw
    heading = html(
        '<header class="bar"><h2>Step {}, group {} {}</h2>{}<span class="tools"><button type="button" {} '
        'aria-pressed="{}" title="Texts as they were written, nothing drawn or folded">Source</button></span></header>',
        *(about["step"], about["group"], about["kind"], cluster, setting(raw=not raw), "true" if raw else "false"),
    )
    return html(
        '<article class="group">{}<section class="prompt" aria-label="Prompt">{}</section><section class="why" '
        'aria-label="Baseline"><dl>{}</dl>{}{}</section></article>',
        *(heading, prompt, numbers, picture, history),
    )


def history_bar(groups: Groups, positions: np.ndarray, current: int) -> HTML:
    """Draw the same prompt at other steps, as a row of small bars that are buttons."""
    if len(positions) < 2:
        return HTML()
    latest = positions[-60:]
    items = HTML()
    for p in latest.tolist():
        rate = float(np.nan_to_num(groups.success[p]))
        said = f"{whole_percent(rate)} right" if math.isfinite(groups.success[p]) else "no valid answer"
        items += html(
            '<button type="button" {0}{1} title="{2}" aria-label="{2}"><span class="column"><i '
            'style="height:{3:.0f}%"></i></span><small>{4}</small></button>',
            *(setting(at=f"{groups.step[p]}.{groups.group[p]}", answer=0), current_mark(p == current)),
            *(f"Step {groups.step[p]}: {said}", 100 * rate, groups.step[p]),
        )
    note = f"the latest {len(latest)} of its {len(positions)}" if len(positions) > len(latest) else "in all its"
    return html(
        '<section class="history" aria-label="The same prompt at other steps"><small>Share of right answers to this '
        "prompt, {} groups, by step</small><div>{}</div></section>",
        *(note, items),
    )


def tokens(length) -> HTML:
    return html("<small>{:,} tokens</small>", length) if isinstance(length, int) else HTML()
