"""Samples: the list of groups; one group's prompt and what was decided about it; one of its answers at full width."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import gradio as gr
import numpy as np

from openrlhf_ebpo.estimator.registry import title

from ..answer_strip import MAX_TILES, first_with
from ..answer_strip import answers as strip
from ..cards import badge, decision, group_list, history_bar
from ..components import choice, dot, empty, notices, setting
from ..errors import RunError, attempt
from ..groups import Groups, clusters
from ..page import Page, Parts, menu
from ..parameters import flag, number, one_of, place, text
from ..prompts import SORTS, by_prompt, prompt_table
from ..reading import Options
from ..search import KINDS, Filter, batch_scale, choose, error_counts, history, position_of
from ..text import HTML, harmless, html, join, run_name
from ..visits import Visit, find_others
from ..workspace import ALL_HIDDEN, LoadedRun, Workspace

KEYS = (
    "<p class='keys'><kbd>j</kbd> <kbd>k</kbd> next and previous group · <kbd>d</kbd> <kbd>a</kbd> next and "
    "previous answer · "
    "<kbd>n</kbd> <kbd>p</kbd> next and previous hit</p>"
)


PARAMETERS = {
    "run": ("", text),
    "steps": ("latest", lambda value: text(value).strip().lower() or "latest"),  # as it is typed
    "kind": ("all", one_of(KINDS)),
    "cluster": ("", text),
    "from": (0.0, number(0, 1)),
    "to": (1.0, number(0, 1)),
    "text": ("", text),
    "at": ("", place),
    "answer": (0, number(0, MAX_TILES, whole=True)),  # from 1; 0: not chosen
    "shown": (1, number(1, 100_000, whole=True)),
    "list": ("groups", one_of(("groups", "prompts"))),
    "prompts_by": ("pass rate", one_of(SORTS)),
    "other_run": ("", text),  # of a second answer, side by side; "": this run
    "other_at": ("", place),
    "other_answer": (0, number(0, MAX_TILES, whole=True)),
    "raw": (False, flag),
    "longest": (False, flag),  # answers by length
}
NUMBERS = ("mean", "baseline", "shrinkage")  # of a group that are shown
_FIRST = {"at": "", "answer": 0, "shown": 1}  # of what a changed filter finds


def reconcile(view: dict) -> None:
    view["from"], view["to"] = min(view["from"], view["to"]), max(view["from"], view["to"])


def lay_out(parts: Parts, workspace: Workspace) -> None:
    parts.html("quick")
    with gr.Accordion("Filters", open=False, elem_classes=["filters"]), gr.Row(elem_classes=["controls"]):
        text = gr.Textbox("", label="Text", placeholder="in prompts, answers, labels", elem_classes=["grow"])
        parts.control("text", text, "submit", also=_FIRST)
        steps = gr.Textbox("latest", label="Steps", placeholder="latest, all, 12, 10-20")
        parts.control("steps", steps, "submit", "blur", also=_FIRST)
        cluster = gr.Dropdown([("any", "")], value="", label="Cluster", allow_custom_value=True)
        parts.control("cluster", cluster, "input", also=_FIRST)
        parts.control("from", gr.Slider(0, 1, 0, step=0.05, label="Success rate from"), "release", also=_FIRST)
        parts.control("to", gr.Slider(0, 1, 1, step=0.05, label="Success rate to"), "release", also=_FIRST)
    parts.html("notes")
    parts.html("prompts")
    with gr.Row(elem_classes=["reader"]):
        parts.html("groups", classes=("left",))
        parts.html("decision", classes=("middle",))
        parts.html("answers", classes=("right",))
    gr.HTML(KEYS, apply_default_css=False, elem_classes=["own"])


def render(view: dict, workspace: Workspace) -> dict:
    """groups, decision, answers, or prompts; quick, notes: HTML; in the view, the place that is shown."""
    look = Look(view, workspace)
    if not look.keys:
        return {"notes": notices([ALL_HIDDEN]), **_menu(view, [])}
    try:
        groups, problems = look.index
    except RunError as error:
        return {"notes": notices([str(error)]), **_menu(view, [])}
    if len(groups):
        shown = look.prompts() if view["list"] == "prompts" else look.samples()
    else:
        why = HTML("A run writes them at every step unless <code>--logger.rollouts_every</code> says otherwise.")
        shown = {"notes": empty("No rollouts in this run", why, kind="nothing")}
    notes = notices([*look.opened.problems, *problems, *look.problems])
    return shown | {
        "notes": notes + shown.get("notes", ""),
        "quick": quick(view, look.keys, look.opened.run.key, groups),
        **_menu(view, [groups]),
    }


@dataclass
class Look:
    """The runs and groups of one page view, read as far as the page needs them; errors are collected in `problems`."""

    view: dict
    workspace: Workspace
    problems: list[str] = field(default_factory=list)

    @cached_property
    def keys(self) -> list[str]:
        return self.workspace.visible(self.view)

    @cached_property
    def opened(self) -> LoadedRun:
        return self.workspace.open(self.view["run"] if self.view["run"] in self.keys else self.keys[0])

    @cached_property
    def index(self) -> tuple[Groups, list[str]]:
        return self.workspace.index(self.opened).read()

    @property
    def groups(self) -> Groups:
        return self.index[0]

    @property
    def text(self) -> str:
        return self.view["text"].strip()

    def choose(self, chosen: Filter) -> np.ndarray:
        """Find the places of the groups that fit."""
        try:
            found, note = choose(self.opened.run, self.groups, chosen, *self.opened.rewards)
        except RunError as error:
            found, note = np.zeros(0, int), str(error)
        self.problems += [note] if note else []
        return found

    def prompts(self) -> dict:
        """The prompts of the run over all its steps; cluster, pass rate and text filter them."""
        view, groups = self.view, self.groups
        found = self.choose(Filter("all", cluster=view["cluster"], text=self.text, fields=("prompt", "label")))
        prompts = by_prompt(groups)
        if not len(prompts):
            return {"prompts": empty("No prompt has a name", "The rollouts of this run have no prompt_id.")}
        order = prompts.order(view["prompts_by"])
        if self.text or view["cluster"]:
            fit = set(groups.prompt_id[found])
            order = order[[groups.prompt_id[at] in fit for at in prompts.latest[order]]]
        if (view["from"], view["to"]) != (0.0, 1.0):
            rate = prompts.rate[order]
            order = order[(rate >= view["from"] - 1e-9) & (rate <= view["to"] + 1e-9)]
        return {"prompts": prompt_table(self.opened.run, groups, prompts, order, view["prompts_by"], view["shown"])}

    def samples(self) -> dict:
        view, groups = self.view, self.groups
        found = self.choose(Filter(view["steps"], view["kind"], view["cluster"], (view["from"], view["to"]), self.text))
        current = int(found[0]) if len(found) else None
        if view["at"]:
            current = position_of(groups, *map(int, view["at"].split(".")))
        if "." in view["at"] and current is None:
            self.problems.append(f"This run has no group {view['at']}.")
        failed, passed = groups.all_fail(self.opened.rewards[0]), groups.all_pass(self.opened.rewards[1])
        listed = self._errors(found) if view["kind"] == "errors" else HTML()
        listed += group_list(self.opened.run, groups, found, current, view["shown"], failed, passed)
        if not len(found):
            wider = "Take a filter away." if view["steps"] == "all" else "Look in “all” steps, or take a filter away."
            listed += empty("No group fits", wider)
        if current is None:
            return {"groups": listed, "view": {"at": ""}}
        here = Visit(self.opened, groups, current)
        shown = {"groups": listed, "view": {"at": here.at}}
        try:
            rows = here.answers()
        except RunError as error:
            return shown | {"decision": notices([str(error)])}
        numbers = {each: float(getattr(groups, each)[current]) for each in NUMBERS}
        about = {**here.source, "kind": badge(groups, current, failed, passed), **numbers}
        others = find_others(here, self.keys, self.workspace)
        beneath = history_bar(groups, history(groups, groups.prompt_id[current]), current) + self._elsewhere(others)
        options = Options(source=here.source, raw=view["raw"], find=self.text)
        shown["decision"] = decision(rows[0], about, options, here.picture, beneath)
        return shown | {"answers": self._answers(here, rows, others)}

    def _errors(self, found: np.ndarray) -> HTML:
        """List the messages of failed rewards, counted."""
        items = join(
            html("<li><b>{:,}</b> {}</li>", count, harmless(message, 200))
            for message, count in error_counts(self.opened.run, self.groups, found)
        )
        return html('<ol class="messages" aria-label="Errors of the reward">{}</ol>', items) if items else HTML()

    def _elsewhere(self, others: Sequence[Visit]) -> HTML:
        """Offer the same prompt in other runs, and its answers there or at another step side by side with these."""
        jumps, pairs = [], []
        for other in others:
            key, this = other.opened.run.key, other.opened is self.opened
            name = html("{}{} <small>step {}</small>", dot(other.opened.run.number), run_name(key, 28), other.step)
            jumps += [] if this else [choice({"run": key, "at": other.at, "answer": 0}, name, False)]
            chosen = self._is_second(other)
            second = {"other_run": "" if this else key, "other_at": "" if chosen else other.at, "other_answer": 0}
            pairs.append(choice(second, html("<small>step {}</small>", other.step) if this else name, chosen))
        rows = ("The same prompt in another run", jumps), ("Side by side with", pairs)
        return join(
            html('<section class="elsewhere"><small>{}</small>{}</section>', title, _choices(title, join(buttons)))
            for title, buttons in rows
            if buttons
        )

    def _is_second(self, other: Visit) -> bool:
        key = "" if other.opened is self.opened else other.opened.run.key
        return (self.view["other_run"], self.view["other_at"]) == (key, other.at)

    def _answers(self, here: Visit, rows: list[dict], others: Sequence[Visit]) -> HTML:
        """Lay out the answers of the group, and of another one of the prompt in a second column, if one is chosen."""
        second = next(filter(self._is_second, others), None)
        first = self._column(here, rows, "answer")
        if second is None:
            return first
        try:
            other = self._column(second, second.answers(), "other_answer")
        except RunError as error:
            return first + notices([str(error)])
        heads = (html("{} <small>step {}</small>", run_name(v.opened.run.key, 32), v.step) for v in (here, second))
        columns = join(html("<div><h2>{}</h2>{}</div>", *each) for each in zip(heads, (first, other), strict=True))
        return html('<div class="two-answers">{}</div>', columns)

    def _column(self, of: Visit, rows: list[dict], name: str) -> HTML:
        """name: of the parameter that says which answer is shown."""
        options = Options(source=of.source, raw=self.view["raw"], find=self.text)
        chosen = min(self.view[name] - 1, len(rows) - 1) if self.view[name] else first_with(rows, self.text)
        scale = attempt(lambda: batch_scale(of.opened.run, of.step), None, [])
        return strip(rows, chosen, options, title(of.opened.estimator), self.view["longest"], scale, name)


def _menu(view: dict, found: list[Groups]) -> dict:
    """A cluster that another run had is still there to be taken away."""
    return {"controls": {"cluster": menu(clusters(found), [("any", "")], least=0 if view["cluster"] else 1)}}


def quick(view: dict, keys: list[str], key: str, groups: Groups) -> HTML:
    """Offer the runs, the steps and the kinds of groups, each one click away."""
    steps = np.unique(groups.step).tolist()
    runs = kinds = stepper = ""
    if len(keys) > 1:
        buttons = join(choice({"run": k, **_FIRST}, run_name(k, 32), k == key) for k in keys)
        runs = _choices("Run", buttons)
    listed = join(choice({"list": each, "shown": 1}, each, each == view["list"]) for each in ("groups", "prompts"))
    if steps and view["list"] == "groups":
        stepper = _stepper(view, steps)
        buttons = join(choice(_kind(kind, view), name, kind == view["kind"]) for kind, name in KINDS.items())
        kinds = _choices("Kind of group", buttons)
    return html('<div class="quick">{}{}{}{}</div>', runs, _choices("List", listed), stepper, kinds)


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


PAGE = Page("samples", PARAMETERS, lay_out, render, reconcile, ("metrics.jsonl", "run.json", "rollouts"))
