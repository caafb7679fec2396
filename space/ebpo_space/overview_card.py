"""One run on the first page: its state, what came of it, what its estimator changed, and what asks for a look."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from openrlhf_ebpo.estimator.registry import title
from openrlhf_ebpo.run.catalogue import HELD_OUT, find
from openrlhf_ebpo.run.score_text import whole_percent

from . import warnings
from .change import written
from .components import STATE, dot, setting
from .figures import colour, number
from .groups import Groups
from .headline import GRPO
from .improvement import Outcome, evaluated, outcome, shares
from .picture import sparkline
from .run_state import Condition, ago, clock, condition, lasting, signs
from .search import one_passing_text
from .settings import model_of
from .text import HTML, attribute, harmless, html, joined, run_name
from .warnings import COPIED, RULES, Warned, above, collapsed, parted, spiked
from .workspace import Opened

UNFILTERED = {"at": "", "text": "", "cluster": "", "from": 0, "to": 1}
OVER_TIME = (("shrinkage", "shrinkage S"), ("prior_mean", "prior mean"))
WARNINGS = 6  # of one run that are shown

BADGE = {"training": "good", "complete": "good", "stalled": "bad", "silent": "bad", "failed": "bad"}
VERDICT = {
    "better": "more than chance would explain",
    "worse": "a loss that chance does not explain",
    "open": "no change that these numbers could show",
    "unsure": "interval unknown",
}


@dataclass(frozen=True)
class Looked:
    """One run, looked through."""

    run: Opened
    condition: Condition
    outcome: Outcome | None
    warnings: Sequence[Warned]
    groups: Groups
    problems: Sequence[str]
    now: float


def look(run: Opened, groups: Groups, now: float) -> Looked:
    came, problems = outcome(run.run, run.metrics, run.rewards)
    state = condition(run.about, run.metrics, signs(run.run), now)
    measured = {COPIED: one_passing_text(run.run, groups, sum(run.rewards) / 2)}
    if len((held_out := evaluated(run.run))[0]) > 1:
        measured[HELD_OUT] = held_out
    return Looked(run, state, came, warnings.found(run.metrics, run.rewards, more=measured), groups, problems, now)


def card(looked: Looked, scale: tuple[float, float]) -> HTML:
    """scale: of the sparkline."""
    run = looked.run
    return html(
        '<article class="run-card" style="--shade:var(--{})" aria-label="{}">{}{}{}{}</article>',
        *(colour(run.run.number), attribute(run.run.key, 80)),
        *(_head(looked), _outcome(looked, scale), _changed(looked), _warning_list(looked)),
    )


def _head(looked: Looked) -> HTML:
    state, about = looked.condition, looked.run.about
    words, badge = STATE[state.kind], BADGE.get(state.kind, "")
    of = f" of {state.steps:,}" if state.steps else ""
    parts = [
        f"step {state.step:,}{of}" if state.step is not None else f"no step{of} yet",
        f"about {lasting(state.left)} left" if state.left is not None else "",
        html('<span title="{}">{}</span>', clock(state.at), ago(state.at, looked.now)) if state.at else "",
    ]
    said = html('<p class="said {}">{}</p>', badge, harmless(state.said, 400)) if state.said else ""
    trained = html(
        "<p>{} · {}</p>", harmless(title(looked.run.estimator), 40), harmless(model_of(about) or "unknown model", 40)
    )
    return html(
        '<header><h2>{}{}</h2><p><em class="{}">{}</em></p><p>{}</p>{}{}</header>',
        *(dot(looked.run.run.number), run_name(looked.run.run.key, 40), badge, words),
        *(HTML(" · ").join(part for part in parts if part), trained, said),
    )


def _outcome(looked: Looked, scale: tuple[float, float]) -> HTML:
    found = looked.outcome
    if found is None:
        return HTML(
            "<section><h3>Outcome</h3><p>Nothing to compare yet: two steps or two evaluations are needed.</p></section>"
        )
    steps, rewards = looked.run.metrics.rewards()
    values, is_share = shares(rewards, looked.run.rewards)
    ends = " → ".join(written(float(values[at]), is_share) for at in (0, -1)) if len(values) else ""
    line = sparkline(steps, values, f"Mean reward: {ends}", looked.run.run.number, scale)
    figure = html("<figure>{}<figcaption>mean reward {}</figcaption></figure>", line, ends) if line else ""
    return html(
        '<section class="{}"><h3>Outcome</h3>{}<p>{} → {} {}</p><p>{}</p>{}</section>',
        *(found.verdict, _fall(found) if found.peak else _change(found)),
        *(html("<b>{}</b>", found.written(end)) for end in (found.first, found.last)),
        *(harmless(found.what, 200), found.how, figure),
    )


def _change(found: Outcome) -> HTML:
    return html(
        '<p class="big">{}<small>{}</small></p><p>{}</p>',
        *(found.difference, found.change.interval if found.change else "", VERDICT[found.verdict]),
    )


def _fall(found: Outcome) -> HTML:
    """The peak, and the fall from there, which the difference from start to end hides."""
    peak = found.peak
    best = f" ({peak.best})" if peak.best else ""
    return html(
        '<p class="big">{}<small>since its best</small></p><p>rose to <b>{}</b> {}{}, then fell by more than '
        "chance would explain "
        "({}, allowing for the choice of the best)</p>",
        *(peak.fall.written, found.written(peak.value), peak.at, best, peak.fall.interval),
    )


def _changed(looked: Looked) -> HTML:
    run = looked.run
    moved = ((said, run.metrics.series(f"ebpo/{name}")[1]) for name, said in OVER_TIME)
    lines = joined(
        html("<p>{} <b>{} → {}</b></p>", said, number(values[0]), number(values[-1]))
        for said, values in moved
        if len(values)
    )
    head = html("What {} changed", harmless(title(run.estimator), 40))
    if run.estimator == GRPO:
        head = HTML("What GRPO left out")
    return html("<section><h3>{}</h3>{}{}</section>", head, _difference(looked), lines)


def _difference(looked: Looked) -> HTML:
    run, groups = looked.run, looked.groups
    responses = int(groups.compared.sum())
    if not responses:
        return HTML("<p>There are no rollouts with both advantages.</p>")
    moved, steps = int(groups.rescued.sum()), f"in {len(np.unique(groups.step)):,} steps"
    if run.estimator == GRPO or not moved:
        ignored = int(groups.ignored.sum()) / responses
        return _big(ignored, "of responses got no advantage: all of their group earned the same") + html(
            "<p>{}</p>", steps
        )
    return joined(
        (
            _big(moved / responses, "of responses got an advantage where GRPO gives none"),
            html("<p>{}</p>", _pushes(looked, responses)),
            html("<p>mean shift of the advantage <b>{}</b>, {}</p>", number(groups.shift.sum() / responses), steps),
        )
    )


def _big(share: float, said: str) -> HTML:
    return html('<p class="big">{}</p><p>{}</p>', whole_percent(share), said)


def _pushes(looked: Looked, responses: int) -> str:
    """Rescued is not a success: answers of groups that fail are pushed down."""
    groups, middle = looked.groups, sum(looked.run.rewards) / 2
    said = []
    for kind, these in (("all-fail", groups.mean <= middle), ("all-pass", groups.mean > middle)):
        if count := int(groups.rescued[these].sum()):
            push = float(groups.push[these].sum()) / count
            way = "down" if push < 0 else "up"
            said.append(f"{whole_percent(count / responses)} {kind}, pushed {way} ({push:+.2f} each)")
    return "; ".join(said).replace("(-", "(−")


def _warning_list(looked: Looked) -> HTML:
    shown = looked.warnings[:WARNINGS]
    if not shown:
        words = f"No warnings ({len(RULES)} checks)." if len(looked.run.metrics.steps) else "No metrics yet."
        return html('<section class="warned"><h3>Warnings</h3><p>{}</p></section>', words)
    items = joined(_warning(each, looked) for each in shown)
    more = html("<li>and {} more</li>", len(looked.warnings) - WARNINGS) if len(looked.warnings) > WARNINGS else ""
    return html('<section class="warned some"><h3>Warnings</h3><ul>{}{}</ul></section>', items, more)


def _warning(each: Warned, looked: Looked) -> HTML:
    return html(
        '<li><b title="{}">{}</b> <span>{}</span><p>{} {} {}</p></li>',
        *(f"when: {each.rule.when}", each.rule.title, each.since, _worst(each) + each.rule.means + "."),
        *(_panel_link(each), _groups_link(each, looked)),
    )


def _worst(each: Warned) -> str:
    if each.rule.holds not in (above, collapsed, spiked, parted):
        return ""
    metric = find(each.metric)
    if each.metric == COPIED or (metric and metric.unit == "fraction"):
        return f"{whole_percent(each.worst)} at worst: "
    return f"{number(each.worst)}{f' {metric.unit}' if metric and metric.unit else ''} at worst: "


def _panel_link(each: Warned) -> HTML:
    if each.metric in ("step", COPIED):
        return HTML()
    if each.metric == HELD_OUT:
        return html('<button type="button" {}>evaluation</button>', setting(tab="evaluation"))
    return html(
        '<button type="button" {}>panel</button>',
        setting(tab="dynamics", more=[each.metric], zoom="", x="step", whole=True),
    )


def _groups_link(each: Warned, looked: Looked) -> HTML:
    if not each.rule.groups or not len(looked.groups):
        return HTML()
    steps = f"{each.begins}-{each.last}" if each.last > each.begins else str(each.begins)
    wish = {"tab": "samples", "run": looked.run.run.key, "kind": each.rule.groups, "steps": steps} | UNFILTERED
    return html('<button type="button" {}>groups</button>', setting(**wish))
