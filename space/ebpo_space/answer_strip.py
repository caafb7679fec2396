"""HTML of a group's answers: all of them as a strip, with reward and advantage, and one at full width."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from openrlhf_ebpo.estimator.registry import title

from . import reading
from .cards import current_mark, tokens
from .components import choice, setting
from .figures import finite, number, signed
from .text import HTML, harmless, html, join

EBPO, GRPO = title("ebpo"), title("group_norm")
MAX_TILES = 64  # answers of a group in the strip
_NAME = 24  # characters of an estimator's name


def answers(
    rows: Sequence[Mapping],
    chosen: int,
    options: reading.Options,
    estimator: str,
    longest: bool = False,
    scale: tuple[float, float] | None = None,
    name: str = "answer",
) -> HTML:
    """Lay out all answers of a group, and one of them at full width, with its reward and advantages.

    Args:
        chosen: which of rows that is.
        options: of the group's texts.
        estimator: title of the run's.
        longest: tiles in order of length, the longest first.
        scale: the batch's mean and deviation of r − V (`search.batch_scale`).
        name: of the parameter that says which answer is shown.
    """
    row, more = rows[chosen], len(rows) - MAX_TILES
    left = html('<p class="more">{} more answers; the Parquet file has them.</p>', more) if more > 0 else ""
    order = html('<div class="choices order">{}</div>', choice({"longest": not longest}, "longest first", longest))
    options = replace(
        options,
        source={**options.source, "sample": chosen},
        truncated=bool(row.get("truncated")),
        gold=row.get("label"),
        name=f"Answer {chosen + 1}",
    )
    text = reading.answer(row.get("response"), options)
    return html(
        '<section class="answers" aria-label="Answers">{}{}{}{}<p class="more">{}</p></section>',
        *(order if len(rows) > 1 else "", strip(rows, chosen, options.find, longest, name), left),
        *(_answer(rows, chosen, estimator, _arithmetic(row, scale), text), harmless(_legend(estimator), 300)),
    )


def strip(rows: Sequence[Mapping], chosen: int, find: str, longest: bool, name: str) -> HTML:
    """Lay out the answers as buttons."""
    widest = _widest(rows)
    order = list(range(min(len(rows), MAX_TILES)))
    if longest:
        order.sort(key=lambda i: -(finite(rows[i].get("response_length")) or 0))
    return html('<ol class="strip">{}</ol>', join(_tile(i, rows[i], widest, i == chosen, find, name) for i in order))


def _widest(rows: Sequence[Mapping]) -> float:
    return max((abs(a) for row in rows[:MAX_TILES] if (a := finite(row.get("advantage"))) is not None), default=0.0)


def first_with(rows: Sequence[Mapping], find: str) -> int:
    """Find the first answer that holds what is searched for, else the first."""
    searched = enumerate(rows[:MAX_TILES]) if find else ()
    return next((i for i, row in searched if reading.hits(row.get("response"), find)), 0)


def _tile(i: int, row: Mapping, widest: float, current: bool, find: str, name: str) -> HTML:
    advantage, reward = finite(row.get("advantage")), finite(row.get("reward"))
    found = reading.hits(row.get("response"), find)
    marks = [
        html('<i class="found" title="{0} hits">{0}</i>', found) if found else "",
        HTML('<i class="cut" title="cut off at the length limit">…</i>') if row.get("truncated") else "",
        HTML('<i class="out" title="excluded">!</i>') if not row.get("valid", True) else "",
        HTML('<i class="again" title="repeats itself">↻</i>') if _repeats(row) else "",
    ]
    tip = f"Answer {i + 1}: reward {number(reward)}, advantage {signed(advantage)}"
    return html(
        '<li><button type="button" class="tile {}" style="--strength:{}%" {}{} title="{}"><span>{}{}</span>'
        "<small>r = {}</small><b>{}</b></button></li>",
        *(_side(advantage), _strength(advantage, widest), setting(**{name: i + 1}), current_mark(current), tip),
        *(i + 1, join(marks), number(reward), signed(advantage)),
    )


def _repeats(row: Mapping) -> bool:
    return reading.repetition(row.get("response")) >= reading.REPETITIVE


def _answer(rows: Sequence[Mapping], chosen: int, estimator: str, arithmetic: HTML, text: HTML) -> HTML:
    row = rows[chosen]
    advantage, grpo = finite(row.get("advantage")), finite(row.get("grpo_advantage"))
    gains = _gain(estimator, advantage) + (_gain(GRPO, grpo) if estimator != GRPO else "")
    error = html('<p class="error">{}</p>', harmless(row["error"], 600)) if row.get("error") else ""
    flags = [
        HTML('<em class="bad">truncated</em>') if row.get("truncated") else "",
        HTML('<em class="bad">excluded</em>') if not row.get("valid", True) else "",
        HTML('<em class="bad">repeats itself</em>') if _repeats(row) else "",
        tokens(row.get("response_length")),
    ]
    earned = HTML('<em class="bad">no reward</em>')
    if (reward := finite(row.get("reward"))) is not None:
        earned = html('<em class="{}">reward {}</em>', "good" if reward > 0 else "", number(reward))
    return html(
        '<article class="answer {}" style="--strength:{}%"><header><h2>Answer {} <small>of {}</small></h2>{}{}'
        '<div class="gains">{}</div></header>{}{}{}</article>',
        *(_side(advantage), _strength(advantage, _widest(rows)), chosen + 1, len(rows)),
        *(earned, join(flags), gains, arithmetic, error, text),
    )


def _arithmetic(row: Mapping, scale: tuple[float, float] | None) -> HTML:
    """Write the arithmetic: r − V = 0 − 0.349 = −0.349, less the batch’s mean 0.012, over its deviation 0.23 = −1.56"""
    reward, baseline, advantage = (finite(row.get(name)) for name in ("reward", "baseline", "advantage"))
    if scale is None or None in (reward, baseline, advantage) or not row.get("valid", True):
        return HTML()
    mean, deviation = scale
    mean = 0.0 if abs(mean) < 1e-9 * deviation else mean  # what rounding leaves of 0
    minus = lambda value: number(value).replace("-", "−")  # noqa: E731
    steps = f"r − V = {minus(reward)} − {minus(baseline)} = {minus(reward - baseline)}"
    if abs(mean) > 1e-6 or abs(deviation - 1) > 1e-6:
        steps += f", less the batch’s mean {minus(mean)}, over its deviation {minus(deviation)} = {signed(advantage)}"
    return html('<p class="arithmetic">{}</p>', steps)


def _legend(estimator: str) -> str:
    """Label the numbers of an answer."""
    grpo = "(r − μ) divided by the group’s standard deviation"
    if estimator == GRPO:
        return f"The number is the advantage in training: {grpo}, less a KL penalty in the reward if there is one."
    used = "r − V standardised over the batch" if estimator == EBPO else "the advantage in training"
    return f"{estimator[:_NAME]}: {used}. GRPO: what it would have given, {grpo}."


def _side(advantage: float | None) -> str:
    return "plus" if (advantage or 0) > 0 else "minus" if advantage else "none"


def _strength(advantage: float | None, widest: float) -> int:
    return round(100 * (abs(advantage) / widest)) if advantage else 0


def _gain(name: str, value: float | None) -> HTML:
    return html("<span><small>{}</small><b>{}</b></span>", harmless(name, _NAME), signed(value))
