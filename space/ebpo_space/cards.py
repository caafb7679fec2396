"""HTML of groups and answers. All text of a run goes through `harmless` or `readable`."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

import numpy as np

from .figures import number
from .groups import Groups
from .tables import setting
from .text import SHOWN, attribute, harmless, preview, readable, snippet

EBPO, GRPO = "EBPO", "GRPO"
ESTIMATORS = {"ebpo": EBPO, "group_norm": GRPO, "dr_grpo": "Dr. GRPO", "rloo": "RLOO"}  # upstream's name: the field's
PAGE = 40  # groups in the list at a time
ANSWERS = 64  # answers of a group on the page
BUDGET = 240_000  # characters of all answers on the page together


def group_list(
    groups: Groups, positions: np.ndarray, prompts: dict[int, str], current: int | None, shown: int, failed, passed
) -> str:
    """One page of groups as buttons.

    Args:
        prompts: position -> prompt, of those on this page.
        shown: number of the page, from 1.
        failed, passed: (K,) bool, all-fail and all-pass groups.
    """
    pages = max(math.ceil(len(positions) / PAGE), 1)
    shown = min(shown, pages)
    items = "".join(
        _item(groups, int(p), prompts.get(int(p), ""), int(p) == current, failed, passed)
        for p in positions[(shown - 1) * PAGE : shown * PAGE]
    )
    count = f"<b>{len(positions):,}</b> group{'' if len(positions) == 1 else 's'}"
    return (
        f'<nav class="groups" aria-label="Groups"><header><span>{count}</span>{_pager(shown, pages)}</header>'
        f"<ol>{items}</ol></nav>"
    )


def _pager(shown: int, pages: int) -> str:
    if pages == 1:
        return ""
    back = "disabled" if shown <= 1 else setting(shown=shown - 1)
    on = "disabled" if shown >= pages else setting(shown=shown + 1)
    return (
        f'<span class="pager"><button type="button" {back} aria-label="Previous page of groups">‹</button>'
        f"<span>{shown} / {pages}</span>"
        f'<button type="button" {on} aria-label="Next page of groups">›</button></span>'
    )


def _item(groups: Groups, p: int, prompt: str, current: bool, failed, passed) -> str:
    place = f"{groups.step[p]}.{groups.group[p]}"
    mark = ' aria-current="true"' if current else ""
    cluster = f"<small>{snippet(groups.cluster[p], 40)}</small>" if groups.cluster[p] else ""
    return (
        f'<li><button type="button" {setting(at=place)}{mark}><span class="top"><small>step {groups.step[p]} · '
        f'group {groups.group[p]}</small>{_badge(groups, p, failed, passed)}</span><span class="words">{preview(prompt, 110)}</span>'
        f'<span class="top">{_meter(groups.success[p])}{cluster}</span></button></li>'
    )


def _badge(groups: Groups, p: int, failed, passed) -> str:
    if failed[p]:
        return '<em class="good">rescued</em>' if groups.rescued[p] else '<em class="bad">all fail</em>'
    if passed[p]:
        return "<em>all pass</em>"
    return (
        f'<em class="bad">{groups.errors[p]} error{"s" if groups.errors[p] > 1 else ""}</em>'
        if groups.errors[p]
        else ""
    )


def _meter(rate: float) -> str:
    if not math.isfinite(rate):
        return '<small class="rate">no valid answer</small>'
    return f'<span class="meter"><i style="width:{100 * rate:.0f}%"></i></span><small class="rate">{100 * rate:.0f} %</small>'


def detail(rows: Sequence[dict], *, about: dict, picture: str, history: str, raw: bool) -> str:
    """One group: prompt, numbers, picture, the same prompt at other steps, its answers.

    Args:
        about: run, step, group, mean, baseline, shrinkage, kind (HTML), estimator (name of the run's).
    """
    first = rows[0]
    write = harmless if raw else readable
    facts = [("group mean μ", about["mean"]), ("baseline V", about["baseline"]), ("shrinkage S", about["shrinkage"])]
    facts = [(name, value) for name, value in facts if value is not None and math.isfinite(value)]
    return (
        f'<article class="group">{_heading(first, about, raw)}'
        f'<div class="split"><section class="prompt" aria-label="Prompt"><pre tabindex="0">{write(first.get("prompt"))}</pre>'
        f"{_label(first)}</section>"
        f'<section class="why" aria-label="Baseline"><dl>{"".join(_fact(*fact) for fact in facts)}</dl>{picture}</section></div>'
        f"{history}{_answers(rows, write, about['estimator'])}</article>"
    )


def _fact(name: str, value: float) -> str:
    return f"<div><dt>{name}</dt><dd>{number(value)}</dd></div>"


def _label(row: dict) -> str:
    label = row.get("label")
    return (
        f'<p class="label"><small>expected</small> <code>{harmless(label, 400)}</code></p>'
        if label not in (None, "")
        else ""
    )


def _heading(row: dict, about: dict, raw: bool) -> str:
    cluster = f" · {harmless(row.get('cluster'), 60)}" if row.get("cluster") else ""
    place = attribute(json.dumps({name: about[name] for name in ("run", "step", "group")}))
    return (
        f'<header class="bar"><h2>Step {about["step"]}, group {about["group"]}<small>{cluster}</small> {about["kind"]}</h2>'
        f'<span class="tools"><button type="button" {setting(raw=not raw)} aria-pressed="{"true" if raw else "false"}" title="Texts as they were written, formulas not drawn">Source</button>'
        f'<button type="button" data-export="{place}">Export</button>'
        f'<button type="button" data-copy-link>Copy link</button></span></header>'
    )


def history_bar(groups: Groups, positions: np.ndarray, current: int) -> str:
    """The same prompt at other steps, as a row of small bars that are buttons."""
    if len(positions) < 2:
        return ""
    shown = positions[-60:]
    items = "".join(_visit(groups, int(p), int(p) == current) for p in shown)
    note = (
        f"the latest {len(shown)} of its {len(positions)} groups"
        if len(positions) > len(shown)
        else "in all its groups"
    )
    said = f"Share of right answers to this prompt, {note}, by step"
    return f'<section class="history" aria-label="The same prompt at other steps"><small>{said}</small><div>{items}</div></section>'


def _visit(groups: Groups, p: int, current: bool) -> str:
    rate = groups.success[p] if math.isfinite(groups.success[p]) else 0.0
    mark = ' aria-current="true"' if current else ""
    return (
        f'<button type="button" {setting(at=f"{groups.step[p]}.{groups.group[p]}")}{mark} '
        f'aria-label="Step {groups.step[p]}: {100 * rate:.0f} % right"><i style="height:{max(100 * rate, 4):.0f}%"></i>'
        f"<small>{groups.step[p]}</small></button>"
    )


def _answers(rows: Sequence[dict], write, estimator: str) -> str:
    shown = rows[:ANSWERS]
    widest = max((abs(a) for row in shown if (a := _finite(row.get("advantage"))) is not None), default=0.0)
    limit = max(BUDGET // max(len(shown), 1), 400)
    limit = min(limit, SHOWN)
    cards = "".join(_answer(row, widest, write, limit, estimator) for row in shown)
    left = f"{len(rows) - len(shown)} more answers. " if len(rows) > len(shown) else ""
    cut = "Answers are cut here. " if any(len(str(row.get("response") or "")) > limit for row in shown) else ""
    more = f"<p class='more'>{left}{cut}The export has everything.</p>" if left or cut else ""
    return f'<section class="answers"><header><h3>Answers</h3><p>{_legend(estimator)}</p></header><ol>{cards}</ol>{more}</section>'


def _legend(estimator: str) -> str:
    """What the two numbers of an answer are."""
    grpo = "(r − μ) divided by the group’s standard deviation"
    if estimator == GRPO:
        return (
            f"The number is the advantage that training used: {grpo}, less a KL penalty in the reward if there is one."
        )
    used = f"{estimator}: the advantage that training used"
    used += ", r − V standardised over the batch" if estimator == EBPO else ""
    return f"{used}. GRPO: what it would have given, {grpo}."


def _answer(row: dict, widest: float, write, limit: int, estimator: str) -> str:
    advantage, grpo, reward = (_finite(row.get(name)) for name in ("advantage", "grpo_advantage", "reward"))
    strength = round(100 * abs(advantage) / widest) if advantage else 0
    side = "plus" if (advantage or 0) > 0 else "minus" if advantage else "none"
    flags = '<em class="bad">truncated</em>' if row.get("truncated") else ""
    flags += "" if row.get("valid", True) else '<em class="bad">excluded</em>'
    length = row.get("response_length")
    tokens = f"<small>{length:,} tokens</small>" if isinstance(length, int) else ""
    error = f'<p class="error">{harmless(row["error"], 600)}</p>' if row.get("error") else ""
    name = f"Answer {_whole(row.get('sample')) + 1}"
    return (
        f'<li class="answer {side}" style="--strength:{strength}%"><header><h3>{name}</h3>{_reward(reward)}{flags}{tokens}</header>'
        f'<div class="gains">{_gain(estimator, advantage)}{_gain(GRPO, grpo) if estimator != GRPO else ""}</div>'
        f'{error}<pre tabindex="0" aria-label="{name}">{write(row.get("response"), limit)}</pre></li>'
    )


def _gain(name: str, value: float | None) -> str:
    return f"<span><small>{harmless(name, 24)}</small><b>{signed(value)}</b></span>"


def _reward(reward: float | None) -> str:
    if reward is None:
        return '<em class="bad">no reward</em>'
    return f'<em class="{"good" if reward > 0 else ""}">reward {number(reward)}</em>'


def signed(value: float | None) -> str:
    """With its sign; a true minus, which has the width of a plus."""
    if value is None:
        return "–"
    if value and abs(value) < 0.005:
        return f"{value:+.0e}".replace("-", "−").replace("e−0", "e−")
    return "0" if value == 0 else f"{value:+.2f}".replace("-", "−")


def _finite(value) -> float | None:
    return float(value) if isinstance(value, (int, float)) and math.isfinite(value) else None


def _whole(value) -> int:
    return value if isinstance(value, int) else 0
