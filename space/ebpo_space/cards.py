"""HTML of groups and answers."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

import numpy as np

from openrlhf_ebpo.estimator.registry import title
from openrlhf_ebpo.record.score_text import whole_percent

from .figures import number
from .groups import Groups
from .sides import asked_with
from .tables import setting
from .text import HTML, SHOWN, attribute, harmless, html, joined, preview, readable, snippet

EBPO, GRPO = title("ebpo"), title("group_norm")
PER_PAGE = 40  # groups in the list at a time
ANSWERS = 64  # answers of a group on the page
BUDGET = 240_000  # characters of all answers on the page together
_NAME = 24  # characters of an estimator's name


def group_list(
    groups: Groups, positions: np.ndarray, prompts: dict[int, str], current: int | None, shown: int, failed, passed
) -> HTML:
    """One page of groups as buttons.

    Args:
        prompts: position -> prompt, of those on this page.
        shown: number of the page, from 1.
        failed, passed: (K,) bool, all-fail and all-pass groups.
    """
    pages = max(math.ceil(len(positions) / PER_PAGE), 1)
    shown = min(shown, pages)
    items = joined(
        _item(groups, int(p), prompts.get(int(p), ""), int(p) == current, failed, passed)
        for p in positions[(shown - 1) * PER_PAGE : shown * PER_PAGE]
    )
    count = html("<b>{:,}</b> group{}", len(positions), "" if len(positions) == 1 else "s")
    return html(
        '<nav class="groups" aria-label="Groups"><header><span>{}</span>{}</header><ol>{}</ol></nav>',
        *(count, _pager(shown, pages), items),
    )


def _pager(shown: int, pages: int) -> HTML:
    if pages == 1:
        return HTML()
    back = "disabled" if shown <= 1 else setting(shown=shown - 1)
    on = "disabled" if shown >= pages else setting(shown=shown + 1)
    return html(
        '<span class="pager"><button type="button" {} aria-label="Previous page of groups">‹</button>'
        '<span>{} / {}</span><button type="button" {} aria-label="Next page of groups">›</button></span>',
        *(back, shown, pages, on),
    )


def _item(groups: Groups, p: int, prompt: str, current: bool, failed, passed) -> HTML:
    step, group = groups.step[p], groups.group[p]
    cluster = html("<small>{}</small>", snippet(groups.cluster[p], 40)) if groups.cluster[p] else ""
    return html(
        '<li><button type="button" {}{}><span class="top"><small>step {} · group {}</small>{}</span>'
        '<span class="words">{}</span><span class="top">{}{}</span></button></li>',
        *(setting(at=f"{step}.{group}"), current_mark(current), step, group, _badge(groups, p, failed, passed)),
        *(preview(prompt, 110), _meter(groups.success[p]), cluster),
    )


def current_mark(yes: bool) -> HTML:
    return HTML(' aria-current="true"') if yes else HTML()


def _badge(groups: Groups, p: int, failed, passed) -> HTML:
    if failed[p]:
        return HTML('<em class="good">rescued</em>') if groups.rescued[p] else HTML('<em class="bad">all fail</em>')
    if passed[p]:
        return HTML("<em>all pass</em>")
    errors = groups.errors[p]
    return html('<em class="bad">{} error{}</em>', errors, "s" if errors > 1 else "") if errors else HTML()


def _meter(rate: float) -> HTML:
    if not math.isfinite(rate):
        return HTML('<small class="rate">no valid answer</small>')
    return html(
        '<span class="meter"><i style="width:{0:.0f}%"></i></span><small class="rate">{1}</small>',
        *(100 * rate, whole_percent(rate)),
    )


def detail(rows: Sequence[dict], *, about: dict, picture: str, history: str, raw: bool, every: str) -> HTML:
    """One group: prompt, numbers, picture, the same prompt at other steps, its answers.

    Args:
        about: run, step, group, mean, baseline, shrinkage, kind, estimator (title of the run's).
        every: the group under every estimator.
    """
    first = rows[0]
    write = harmless if raw else readable
    facts = [("group mean μ", about["mean"]), ("baseline V", about["baseline"]), ("shrinkage S", about["shrinkage"])]
    facts = [(name, value) for name, value in facts if value is not None and math.isfinite(value)]
    numbers = joined(_fact(*fact) for fact in facts)
    return html(
        '<article class="group">{}<div class="split"><section class="prompt" aria-label="Prompt"><pre tabindex="0">{}</pre>{}'
        '</section><section class="why" aria-label="Baseline"><dl>{}</dl>{}</section></div>{}{}{}</article>',
        *(_heading(first, about, raw), write(first.get("prompt")), _label(first), numbers, picture, history),
        *(_answers(rows, write, about["estimator"]), every),
    )


def _fact(name: str, value: float) -> HTML:
    return html("<div><dt>{}</dt><dd>{}</dd></div>", name, number(value))


def _label(row: dict) -> HTML:
    label = row.get("label")
    if label in (None, ""):
        return HTML()
    return html('<p class="label"><small>expected</small> <code>{}</code></p>', harmless(label, 400))


def _heading(row: dict, about: dict, raw: bool) -> HTML:
    cluster = f" · {str(row['cluster'])[:60]}" if row.get("cluster") else ""
    place = attribute(json.dumps({name: about[name] for name in ("run", "step", "group")}))
    return html(
        '<header class="bar"><h2>Step {}, group {}<small>{}</small> {}</h2><span class="tools"><button type="button" {} '
        'aria-pressed="{}" title="Texts as they were written, formulas not drawn">Source</button>'
        '<button type="button" {}>Compare</button><button type="button" data-export="{}">Export</button><button type="button" data-copy-link>Copy link</button></span></header>',
        *(
            about["step"],
            about["group"],
            cluster,
            about["kind"],
            setting(raw=not raw),
            "true" if raw else "false",
            setting(**asked_with(about["run"], about["step"], about["group"])),
            place,
        ),
    )


def history_bar(groups: Groups, positions: np.ndarray, current: int) -> HTML:
    """The same prompt at other steps, as a row of small bars that are buttons."""
    if len(positions) < 2:
        return HTML()
    shown = positions[-60:]
    items = joined(_visit(groups, int(p), int(p) == current) for p in shown)
    note = (
        f"the latest {len(shown)} of its {len(positions)} groups"
        if len(positions) > len(shown)
        else "in all its groups"
    )
    return html(
        '<section class="history" aria-label="The same prompt at other steps"><small>Share of right answers to this prompt, '
        "{}, by step</small><div>{}</div></section>",
        *(note, items),
    )


def _visit(groups: Groups, p: int, current: bool) -> HTML:
    rate = groups.success[p] if math.isfinite(groups.success[p]) else 0.0
    return html(
        '<button type="button" {}{} aria-label="Step {}: {} right"><i style="height:{:.0f}%"></i><small>{}</small></button>',
        *(setting(at=f"{groups.step[p]}.{groups.group[p]}"), current_mark(current)),
        *(groups.step[p], whole_percent(rate), max(100 * rate, 4), groups.step[p]),
    )


def _answers(rows: Sequence[dict], write, estimator: str) -> HTML:
    shown = rows[:ANSWERS]
    widest = max((abs(a) for row in shown if (a := _finite(row.get("advantage"))) is not None), default=0.0)
    limit = max(BUDGET // max(len(shown), 1), 400)
    limit = min(limit, SHOWN)
    cards = joined(_answer(row, widest, write, limit, estimator) for row in shown)
    left = f"{len(rows) - len(shown)} more answers. " if len(rows) > len(shown) else ""
    cut = "Answers are cut here. " if any(len(str(row.get("response") or "")) > limit for row in shown) else ""
    more = html('<p class="more">{}{}The export has everything.</p>', left, cut) if left or cut else ""
    return html(
        '<section class="answers"><header><h3>Answers</h3><p>{}</p></header><ol>{}</ol>{}</section>',
        *(harmless(_legend(estimator), 300), cards, more),
    )


def _legend(estimator: str) -> str:
    """What the two numbers of an answer are."""
    grpo = "(r − μ) divided by the group’s standard deviation"
    if estimator == GRPO:
        return (
            f"The number is the advantage that training used: {grpo}, less a KL penalty in the reward if there is one."
        )
    used = f"{estimator[:_NAME]}: the advantage that training used"
    used += ", r − V standardised over the batch" if estimator == EBPO else ""
    return f"{used}. GRPO: what it would have given, {grpo}."


def _answer(row: dict, widest: float, write, limit: int, estimator: str) -> HTML:
    advantage, grpo, reward = (_finite(row.get(name)) for name in ("advantage", "grpo_advantage", "reward"))
    strength = round(100 * (abs(advantage) / widest)) if advantage else 0
    side = "plus" if (advantage or 0) > 0 else "minus" if advantage else "none"
    name = f"Answer {_whole(row.get('sample')) + 1}"
    gains = _gain(estimator, advantage) + (_gain(GRPO, grpo) if estimator != GRPO else "")
    error = html('<p class="error">{}</p>', harmless(row["error"], 600)) if row.get("error") else ""
    return html(
        '<li class="answer {}" style="--strength:{}%"><header><h3>{}</h3>{}{}</header><div class="gains">{}</div>'
        '{}<pre tabindex="0" aria-label="{}">{}</pre></li>',
        *(side, strength, name, _reward(reward), _flags(row), gains, error, name, write(row.get("response"), limit)),
    )


def _flags(row: dict) -> HTML:
    cut = HTML('<em class="bad">truncated</em>') if row.get("truncated") else ""
    out = "" if row.get("valid", True) else HTML('<em class="bad">excluded</em>')
    return joined([cut, out, tokens(row.get("response_length"))])


def tokens(length) -> HTML:
    return html("<small>{:,} tokens</small>", length) if isinstance(length, int) else HTML()


def _gain(name: str, value: float | None) -> HTML:
    return html("<span><small>{}</small><b>{}</b></span>", harmless(name, _NAME), signed(value))


def _reward(reward: float | None) -> HTML:
    if reward is None:
        return HTML('<em class="bad">no reward</em>')
    return html('<em class="{}">reward {}</em>', "good" if reward > 0 else "", number(reward))


def signed(value: float | None) -> str:
    """With its sign; a true minus, which has the width of a plus."""
    if value is None:
        return "–"
    if value and not 0.005 <= abs(value) < 1e5:
        return f"{value:+.0e}".replace("-", "−").replace("e−0", "e−")
    return "0" if value == 0 else f"{value:+.2f}".replace("-", "−")


def _finite(value) -> float | None:
    return float(value) if isinstance(value, (int, float)) and math.isfinite(value) else None


def _whole(value) -> int:
    return value if isinstance(value, int) else 0
