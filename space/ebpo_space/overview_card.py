"""One run on the first page: its state, what came of it, what its estimator changed, and what asks for a look."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from openrlhf_ebpo.estimator.registry import title
from openrlhf_ebpo.run.catalogue import HELD_OUT, find
from openrlhf_ebpo.run.score_text import whole_percent

from .change import format_value
from .compared_settings import model_of
from .components import dot, setting
from .components import state as state_text
from .figures import colour, number, signed
from .groups import Groups
from .headline import GRPO
from .improvement import TRAINING_REWARD, Outcome, outcome, read_held_out, shares
from .picture import sparkline
from .run_state import Condition, ago, clock, condition, lasting, signs
from .search import one_passing_text
from .text import HTML, attribute, harmless, html, join, run_name
from .warnings import COPIED, PROMPTS, RULES, Warned, find_warnings
from .workspace import LoadedRun

UNFILTERED = {"at": "", "text": "", "cluster": "", "from": 0, "to": 1}
WARNINGS = 6  # of one run that are shown
NO_WARNINGS = f"No warnings ({len(RULES)} checks)"

BADGE = {"training": "good", "complete": "good", "stalled": "bad", "silent": "bad", "failed": "bad"}
VERDICT = {
    "better": "more than chance would explain",
    "worse": "a loss that chance does not explain",
    "open": "no change that these numbers could show",
    "unsure": "interval unknown",
}


@dataclass(frozen=True)
class RunView:
    """One run and what its card says."""

    run: LoadedRun
    condition: Condition
    outcome: Outcome | None
    warnings: Sequence[Warned]
    groups: Groups
    has_evaluations: bool  # several, in eval/
    problems: Sequence[str]
    now: float


def examine(run: LoadedRun, groups: Groups, now: float) -> RunView:
    measured = {COPIED: one_passing_text(run.run, groups, sum(run.rewards) / 2), PROMPTS: run.prompts}
    held_out = read_held_out(run.run)
    if has_evaluations := len(held_out[0]) > 1:
        measured[HELD_OUT] = held_out
    warnings = find_warnings(run.metrics, run.rewards, measured)
    state = condition(run.about, run.metrics, signs(run.run), now)
    measure, problems = outcome(run)
    return RunView(run, state, measure, warnings, groups, has_evaluations, problems, now)


def card(of: RunView, scale: tuple[float, float]) -> HTML:
    """scale: of the sparkline."""
    return html(
        '<article class="run-card" style="--shade:var(--{})" aria-label="{}">{}{}{}{}</article>',
        *(colour(of.run.run.number), attribute(of.run.run.key, 80)),
        *(_head(of), _outcome(of, scale), _changed(of), _warning_list(of)),
    )


def _head(of: RunView) -> HTML:
    state, badge = of.condition, BADGE.get(of.condition.kind, "")
    total = f" of {state.steps:,}" if state.steps else ""
    none = f"no step{total} yet" if of.run.about else ""  # without run.json: a folder of evaluations
    parts = [
        f"step {state.step:,}{total}" if state.step is not None else none,
        f"{lasting(state.left)} left" if state.left is not None else "",
        html('<span title="{}">{}</span>', clock(state.at), ago(state.at, of.now)) if state.at else "",
    ]
    estimator, model = title(of.run.estimator), model_of(of.run.about) or "unknown model"
    made = html("<p>{} · {}</p>", harmless(estimator, 40), harmless(model, 40)) if of.run.about else HTML()
    return html(
        '<header><h2>{}{}</h2><p><em class="{}">{}</em></p><p>{}</p>{}{}</header>',
        *(dot(of.run.run.number), run_name(of.run.run.key, 40), badge, state_text(state.kind)),
        *(HTML(" · ").join(part for part in parts if part), made),
        html('<p class="said {}">{}</p>', badge, harmless(state.detail, 400)) if state.detail else "",
    )


def _outcome(of: RunView, scale: tuple[float, float]) -> HTML:
    found = of.outcome
    if found is None:
        return HTML(
            "<section><h3>Outcome</h3><p>Nothing to compare yet: two steps or two evaluations are needed.</p></section>"
        )
    steps, rewards = of.run.metrics.rewards()
    values, is_share = shares(rewards, of.run.rewards)
    ends = " → ".join(format_value(float(values[at]), is_share) for at in (0, -1)) if len(values) else ""
    line = sparkline(steps, values, f"Mean reward: {ends}", of.run.run.number, scale)
    figure = html("<figure>{}<figcaption>mean reward {}</figcaption></figure>", line, ends) if line else ""
    by_reward = found.what.startswith(TRAINING_REWARD)
    if found.peak:
        peak = found.peak  # the fall from there, which the difference from start to end hides
        best = f" ({peak.best})" if peak.best else ""
        change = html(
            '<p class="big">{}<small>since its best</small></p><p>was <b>{}</b> {}{}, then fell by more than chance '
            "would explain ({}, allowing for the choice of the best)</p>",
            *(peak.fall.text, found.format(peak.value), peak.at, best, peak.fall.interval),
        )
    else:
        interval, verdict = found.change.interval if found.change else "", VERDICT[found.verdict]
        change = html('<p class="big">{}<small>{}</small></p><p>{}</p>', found.difference, interval, verdict)
    return html(
        '<section class="{}"><h3>Outcome</h3>{}<p>{} → {} {}</p><p>{}</p>{}</section>',
        *("doubted" if by_reward and of.warnings else found.verdict, change),
        *(html("<b>{}</b>", found.format(end)) for end in (found.first, found.last)),
        *(harmless(found.what, 200), found.how, figure),
    )


def _changed(of: RunView) -> HTML:
    run, groups = of.run, of.groups
    if not run.about and not len(groups):
        return HTML("<section></section>")
    template = '<section><h3>{}</h3><p class="big">{}</p><p>{}</p><p>{}</p></section>'
    head = "What GRPO left out" if run.estimator == GRPO else f"What {title(run.estimator)[:40]} changed"
    responses, moved = int(groups.compared.sum()), int(groups.rescued.sum())
    if not responses:
        return html("<section><h3>{}</h3><p>No rollouts have both advantages.</p></section>", head)
    if run.estimator == GRPO or not moved:
        share, steps = whole_percent(int(groups.ignored.sum()) / responses), len(np.unique(groups.step))
        about = "of responses got no advantage: all of their group earned the same"
        return html(template, head, share, about, f"in {steps:,} steps")
    parts, middle = [], sum(run.rewards) / 2  # not a success: answers of groups that fail are pushed down
    for kind, these in (("all-fail", groups.mean <= middle), ("all-pass", groups.mean > middle)):
        if count := int(groups.rescued[these].sum()):
            push = float(groups.push[these].sum()) / count
            share, way = whole_percent(count / responses), "down" if push < 0 else "up"
            parts.append(f"{share} {kind}, pushed {way} ({signed(push)} each)")
    about = "of responses got an advantage where GRPO gives none"
    return html(template, head, whole_percent(moved / responses), about, "; ".join(parts))


def _warning_list(of: RunView) -> HTML:
    if not of.warnings:
        none = f"{NO_WARNINGS}." if len(of.run.metrics.steps) else "No metrics yet."
        return html('<section class="warned"><h3>Warnings</h3><p>{}</p></section>', none)
    items = join(
        html(
            '<li><b title="when: {}">{}</b> <span>{}</span><p>{}{}. {}</p></li>',
            *(each.rule.when, each.rule.title, each.since, _worst(each), each.rule.means, _links(each, of)),
        )
        for each in of.warnings[:WARNINGS]
    )
    more = html("<li>and {} more</li>", len(of.warnings) - WARNINGS) if len(of.warnings) > WARNINGS else ""
    return html('<section class="warned some"><h3>Warnings</h3><ul>{}{}</ul></section>', items, more)


def _worst(each: Warned) -> str:
    if each.rule.test not in ("above", "collapsed", "spiked", "diverged"):
        return ""
    metric = find(each.metric)
    if each.metric in (COPIED, HELD_OUT) or (metric and metric.unit == "fraction"):
        return f"{whole_percent(each.worst)} at worst: "
    unit = f" {metric.unit}" if metric and metric.unit else ""
    return f"{number(each.worst)}{unit} at worst: "


def _links(each: Warned, of: RunView) -> HTML:
    """Write buttons to what shows the warning: the metric's panel, or the evaluation, and groups."""
    views = {}
    if each.metric == HELD_OUT and of.has_evaluations:
        views["evaluation"] = {"tab": "evaluation"}
    elif each.metric not in ("step", COPIED):
        metric = "" if each.metric == HELD_OUT else each.metric  # its panel is among the first
        views["panel"] = {"tab": "dynamics", "metric": metric, "zoom": "", "x": "step", "whole": True}
    if each.rule.groups and len(of.groups):
        steps = f"{each.begins}-{each.last}" if each.last > each.begins else str(each.begins)
        kind = {"tab": "samples", "run": of.run.run.key, "kind": each.rule.groups, "steps": steps}
        views["groups"] = kind | UNFILTERED
    buttons = (html('<button type="button" {}>{}</button>', setting(**view), name) for name, view in views.items())
    return HTML(" ").join(buttons)
