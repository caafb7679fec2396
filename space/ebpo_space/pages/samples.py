"""Samples: the list of groups; one group's prompt and what was decided about it; one of its answers at full width."""

from __future__ import annotations

import math

import gradio as gr
import numpy as np

from openrlhf_ebpo.estimator.registry import title

from ..answer_strip import MAX_TILES, first_with
from ..answer_strip import answers as strip
from ..cards import PER_PAGE, badge, decision, group_list, history_bar
from ..components import choice, dot, empty, no_runs, notices, setting
from ..errors import RunError, attempt
from ..groups import Groups, clusters
from ..page import Page, Parts, menu
from ..parameters import flag, number, one_of, place, text
from ..picture import Drawn, implied_prior_mean, picture
from ..reading import Options
from ..search import KINDS, Filter, answers, batch_scale, choose, error_counts, history, position_of, prompts_of
from ..text import HTML, harmless, html, join, run_name
from ..workspace import ALL_HIDDEN, Opened, Workspace

KEYS = (
    "<p class='keys'><kbd>j</kbd> <kbd>k</kbd> next and previous group · <kbd>d</kbd> <kbd>a</kbd> next and "
    "previous answer · "
    "<kbd>n</kbd> <kbd>p</kbd> next and previous hit</p>"
)


def steps_of(value) -> str:
    """Read a filter of steps as it is typed; an empty field is the latest one."""
    return text(value).strip().lower() or "latest"


PARAMETERS = {
    "run": ("", text),
    "steps": ("latest", steps_of),
    "kind": ("all", one_of(KINDS)),
    "cluster": ("", text),
    "from": (0.0, number(0, 1)),
    "to": (1.0, number(0, 1)),
    "text": ("", text),
    "at": ("", place),
    "answer": (0, number(0, MAX_TILES, whole=True)),  # from 1; 0: not chosen
    "shown": (1, number(1, 100_000, whole=True)),
    "raw": (False, flag),
    "longest": (False, flag),  # answers by length
}
NUMBERS = ("mean", "baseline", "shrinkage")  # of a group that are shown
MAX_OTHER_RUNS = 6  # in which the same prompt is looked for
_FIRST = {"at": "", "answer": 0, "shown": 1}  # of what a changed filter finds


def settle(view: dict) -> None:
    view["from"], view["to"] = min(view["from"], view["to"]), max(view["from"], view["to"])


def lay_out(parts: Parts, workspace: Workspace) -> None:
    parts.html("quick")
    with gr.Accordion("Filters", open=False, elem_classes=["filters"]), gr.Row(elem_classes=["controls"]):
        _filters(parts)
    parts.html("notes")
    with gr.Row(elem_classes=["reader"]):
        parts.html("groups", classes=("left",))
        parts.html("decision", classes=("middle",))
        parts.html("answers", classes=("right",))
    gr.HTML(KEYS, apply_default_css=False, elem_classes=["own"])


def _filters(parts: Parts) -> None:
    text = gr.Textbox("", label="Text", placeholder="in prompts, answers, labels", elem_classes=["grow"])
    parts.control("text", text, "submit", also=_FIRST)
    steps = gr.Textbox("latest", label="Steps", placeholder="latest, all, 12, 10-20")
    parts.control("steps", steps, "submit", "blur", also=_FIRST)
    cluster = gr.Dropdown([("any", "")], value="", label="Cluster", allow_custom_value=True)
    parts.control("cluster", cluster, "input", also=_FIRST)
    parts.control("from", gr.Slider(0, 1, 0, step=0.05, label="Success rate from"), "release", also=_FIRST)
    parts.control("to", gr.Slider(0, 1, 1, step=0.05, label="Success rate to"), "release", also=_FIRST)


def render(view: dict, workspace: Workspace) -> dict:
    """groups, decision, answers, quick, notes: HTML; in the view, the place that is shown."""
    keys = workspace.visible(view)
    if not keys:
        notes = notices([ALL_HIDDEN]) if workspace.chosen(view) else no_runs(workspace.runs.awaited())
        return {"notes": notes, **_menu(view, [])}
    key = view["run"] if view["run"] in keys else keys[0]
    try:
        opened = workspace.open(key)
        groups, problems = workspace.index(opened).read()
    except RunError as error:
        return {"notes": notices([str(error)]), **_menu(view, [])}
    if not len(groups):
        why = HTML("A run writes them at every step unless <code>--logger.rollouts_every</code> says otherwise.")
        notes = notices([*opened.problems, *problems]) + empty("No rollouts in this run", why, kind="nothing")
        return {"notes": notes, "quick": quick(view, keys, key, groups), **_menu(view, [])}
    return _page(view, keys, workspace, opened, groups, problems)


def _page(
    view: dict, keys: list[str], workspace: Workspace, opened: Opened, groups: Groups, problems: list[str]
) -> dict:
    notes, found, note = [*opened.problems, *problems], np.zeros(0, int), ""
    try:
        success = view["from"], view["to"]
        chosen = Filter(view["steps"], view["kind"], view["cluster"], success, view["text"].strip())
        found, note = choose(opened.run, groups, chosen, *opened.rewards)
    except RunError as error:
        notes.append(str(error))
    current = choose_group(view, groups, found)
    if "." in view["at"] and current is None:
        notes.append(f"There is no group {view['at']} in this run.")
    failed, passed = groups.all_fail(opened.rewards[0]), groups.all_pass(opened.rewards[1])
    page = min(view["shown"], max(math.ceil(len(found) / PER_PAGE), 1))
    prompts = prompts_of(opened.run, groups, found[(page - 1) * PER_PAGE : page * PER_PAGE])
    listed = _errors(opened, groups, found) if view["kind"] == "errors" else HTML()
    listed += group_list(groups, found, prompts, current, page, failed, passed)
    if not len(found):
        listed += empty("No group fits", "Look in “all” steps, or take a filter away.")
    shown = {"decision": "", "answers": ""}
    if current is not None:
        elsewhere = _elsewhere(workspace, keys, opened, groups, current)
        shown = _group(view, opened, groups, current, badge(groups, current, failed, passed), elsewhere)
    return {
        "groups": listed,
        **shown,
        "quick": quick(view, keys, opened.run.key, groups),
        "notes": notices([*notes, note] if note else notes),
        "view": {"at": "" if current is None else f"{groups.step[current]}.{groups.group[current]}"},
        **_menu(view, [groups]),
    }


def _errors(opened: Opened, groups: Groups, found: np.ndarray) -> HTML:
    """List the messages of failed rewards, counted."""
    items = join(
        html("<li><b>{:,}</b> {}</li>", count, harmless(message, 200))
        for message, count in error_counts(opened.run, groups, found)
    )
    return html('<ol class="messages" aria-label="Errors of the reward">{}</ol>', items) if items else HTML()


def _menu(view: dict, found: list[Groups]) -> dict:
    """A cluster that another run had is still there to be taken away."""
    return {"controls": {"cluster": menu(clusters(found), [("any", "")], least=0 if view["cluster"] else 1)}}


def choose_group(view: dict, groups: Groups, found: np.ndarray) -> int | None:
    """Choose the group to show: the one asked for, else the first that was found."""
    if view["at"]:
        step, group = map(int, view["at"].split("."))
        position = position_of(groups, step, group)
        if position is not None:
            return position
    return int(found[0]) if len(found) and not view["at"] else None


def _group(view: dict, opened: Opened, groups: Groups, p: int, kind: HTML, elsewhere: HTML) -> dict:
    """decision, answers: HTML. elsewhere: the same prompt in other runs."""
    try:
        rows = answers(opened.run, groups, p)
    except RunError as error:
        return {"decision": notices([str(error)])}
    find = view["text"].strip()
    place = {"run": opened.run.key, "step": int(groups.step[p]), "group": int(groups.group[p])}
    options = Options(source=place, raw=view["raw"], find=find)
    about = {**place, "kind": kind, **{each: float(getattr(groups, each)[p]) for each in NUMBERS}}
    visits = history_bar(groups, history(groups, groups.prompt_id[p]), p)
    chosen = min(view["answer"] - 1, len(rows) - 1) if view["answer"] else first_with(rows, find)
    scale = attempt(lambda: batch_scale(opened.run, place["step"]), None, [])
    return {
        "decision": decision(rows[0], about, options, _picture(opened, groups, p), visits + elsewhere),
        "answers": strip(rows, chosen, options, title(opened.estimator), view["longest"], scale),
    }


def _elsewhere(workspace: Workspace, keys: list[str], opened: Opened, groups: Groups, p: int) -> HTML:
    """Offer the same prompt in the other runs, at the step nearest to this one."""
    buttons = []
    for key in [key for key in keys if key != opened.run.key][:MAX_OTHER_RUNS]:
        other = attempt(lambda key=key: workspace.open(key), None, [])
        if other is None:
            continue
        there, _ = workspace.index(other).read()
        visits = history(there, groups.prompt_id[p])
        if len(visits):
            nearest = int(visits[np.abs(there.step[visits] - groups.step[p]).argmin()])
            at = f"{there.step[nearest]}.{there.group[nearest]}"
            name = html("{}{} <small>step {}</small>", dot(other.run.number), run_name(key, 28), there.step[nearest])
            buttons.append(choice({"run": key, "at": at, "answer": 0}, name, False))
    title = "The same prompt in another run"
    return (
        html('<section class="elsewhere"><small>{}</small>{}</section>', title, _choices(title, join(buttons)))
        if buttons
        else HTML()
    )


def _picture(opened: Opened, groups: Groups, p: int) -> HTML:
    """Nothing for other estimators, which have no baseline of this kind."""
    mean, baseline, shrinkage = float(groups.mean[p]), float(groups.baseline[p]), float(groups.shrinkage[p])
    if not all(map(math.isfinite, (mean, baseline, shrinkage))):
        other = HTML("<small>A prior, and a baseline between it and the group’s mean, are EBPO’s.</small>")
        return HTML() if opened.estimator == "ebpo" else other
    at = lambda name: opened.metrics.at(int(groups.step[p]), f"ebpo/{name}")  # noqa: E731
    prior_mean = at("prior_mean")
    prior_mean = implied_prior_mean(mean, baseline, shrinkage) if prior_mean is None else prior_mean
    variances = at("within_variance"), at("between_variance")
    return picture(Drawn(mean, baseline, shrinkage, prior_mean, *variances, int(groups.valid[p]), *opened.rewards))


def quick(view: dict, keys: list[str], key: str, groups: Groups) -> HTML:
    """Offer the runs, the steps and the kinds of groups, each one click away."""
    steps = np.unique(groups.step).tolist()
    runs = kinds = stepper = ""
    if len(keys) > 1:
        buttons = join(choice({"run": k, **_FIRST}, run_name(k, 32), k == key) for k in keys)
        runs = _choices("Run", buttons)
    if steps:
        stepper = _stepper(view, steps)
        buttons = join(choice(_kind(kind, view), name, kind == view["kind"]) for kind, name in KINDS.items())
        kinds = _choices("Kind of group", buttons)
    return html('<div class="quick">{}{}{}</div>', runs, stepper, kinds)


def _choices(label: str, buttons: HTML) -> HTML:
    return html('<div class="choices" role="group" aria-label="{}">{}</div>', label, buttons)


def _kind(kind: str, view: dict) -> dict:
    """Groups of one kind are looked for in all steps: one click finds them."""
    steps = "all" if kind != "all" and view["steps"] == "latest" else view["steps"]
    return {"kind": kind, "steps": steps, **_FIRST}


def _stepper(view: dict, steps: list[int]) -> HTML:
    """Earlier and later step, latest, all."""
    at = steps[-1] if view["steps"] == "latest" and steps else int(view["steps"]) if view["steps"].isdecimal() else None
    before = [s for s in steps if at is not None and s < at]
    after = [s for s in steps if at is not None and s > at]
    label = "all steps" if view["steps"] == "all" else f"step {at}" if at is not None else f"steps {view['steps'][:24]}"

    def go(step: list[int], name: str, label: str) -> HTML:
        attributes = setting(steps=str(step[0]), **_FIRST) if step else "disabled"
        return html('<button type="button" {} aria-label="{}">{}</button>', attributes, label, name)

    latest = choice({"steps": "latest", **_FIRST}, "latest", view["steps"] == "latest")
    every = choice({"steps": "all", **_FIRST}, "all", view["steps"] == "all")
    return html(
        '<div class="choices stepper" role="group" aria-label="Step">{}<span>{}</span>{}{}{}</div>',
        *(go(before[-1:], "‹", "Earlier step"), label, go(after[:1], "›", "Later step")),
        *(latest, every),
    )


PAGE = Page("samples", PARAMETERS, lay_out, render, settle, ("metrics.jsonl", "run.json", "rollouts"))
