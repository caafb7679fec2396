"""Evaluation: tasks against checkpoints and models, pass@k, the paper's numbers; its questions are in questions.py."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

import gradio as gr
import numpy as np

from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.eval import paper

from .. import results, seeds
from ..compared_settings import model_path
from ..components import empty, every_seed, notices
from ..figures import board
from ..lines import Line, checkpoint_panel, pass_panel
from ..page import Page, Parts, menu
from ..parameters import names, text
from ..results import MAX_COLUMNS, Column, Result
from ..score_table import compare_columns, score_table
from ..text import HTML, html
from ..workspace import LoadedRun, Workspace
from . import questions

PAPER = {f"{model},{size}": f"{model}, G = {size}" for model, size in paper.REPORTED}

PARAMETERS = {
    "protocol": ("", text),
    "columns": ([], names),
    "task": ("", text),
    "paper": ("", text),
    **questions.PARAMETERS,
}


def lay_out(parts: Parts, workspace: Workspace) -> None:
    with gr.Row(elem_classes=["controls"]):
        any_value = {"allow_custom_value": True}
        protocol = gr.Dropdown([], value="", label="Protocol", visible=False, **any_value)
        parts.control("protocol", protocol, "input")
        several = {"multiselect": True, "max_choices": MAX_COLUMNS, **any_value}
        columns = gr.Dropdown([], value=[], label="Checkpoints (none: first and last)", visible=False, **several)
        parts.control("columns", columns, "change")
        choices = [("not shown", ""), *[(name, key) for key, name in PAPER.items()]]
        parts.control("paper", gr.Dropdown(choices, value="", label="The paper’s numbers", **any_value), "input")
    parts.html("quick")
    parts.html("notes")
    parts.html("table")
    parts.board("board")
    find = gr.Textbox("", label="Search questions", visible=False, elem_classes=["find"])
    parts.control("find", find, "submit", "blur", also={"question": "", "leaf": 1})
    parts.html("questions")


def render(view: dict, workspace: Workspace) -> dict:
    """table, questions, notes: HTML; board: plots."""
    opened, problems = workspace.open_all(view)
    every_result = [result for run in opened for result in _read(run, problems)]
    if not every_result:
        return {"notes": notices(problems) + NO_RESULTS, **_menus([], [], False)}
    protocols = sorted({result.protocol for result in every_result})
    largest = results.largest_protocol(every_result)
    protocol = view["protocol"] if view["protocol"] in protocols else largest
    every_result = [result for result in every_result if result.protocol == protocol]
    groups = seeds.group_by_configuration(opened)
    found = _numbered(groups, every_result, view["seeds"] == "mean")
    tasks = sorted({result.task for _, result in found})
    evaluated = {result.run for result in every_result}
    bases = {model_path(run.about) for run in opened if run.run.key in evaluated}
    one_base = len(bases) == 1 and "" not in bases
    columns, every = results.columns(found, view["columns"], one_base), results.checkpoints(found)
    reported = _reported(view["paper"], problems)
    made = compare_columns(found, columns, tasks, reported, opened, problems)
    return {
        "quick": every_seed(view) if any(len(group) > 1 for group in groups) else "",
        "table": score_table(made) + _left_out(columns, every, found, every_result),
        "board": board(panels(found, tasks, one_base)),
        **questions.render(view, workspace, found, columns, tasks, problems),
        "notes": notices(problems),
        **_menus(protocols, [column.name for column in every] if len(every) > MAX_COLUMNS else [], True),
    }


def _read(run: LoadedRun, problems: list[str]) -> list[Result]:
    found, wrong = results.find(run.run)
    problems += [f"{run.run.key}: {problem}" for problem in wrong]
    return found


def _numbered(groups: Sequence, found: Sequence[Result], averaged: bool) -> list[tuple[int, Result]]:
    """Pair every result with the number of its colour; averaged: results of seeds of one configuration are one."""
    numbered = []
    for group in groups:
        by_run = [own for run in group if (own := [result for result in found if result.run == run.run.key])]
        name = seeds.name([run.run.key for run in group])
        own = results.average_seeds(name, by_run) if averaged and len(by_run) > 1 else itertools.chain(*by_run)
        numbered += [(group[0].run.number, result) for result in own]
    return numbered


def _left_out(
    chosen: Sequence[Column], every: Sequence[Column], found: Sequence[tuple[int, Result]], read: Sequence[Result]
) -> HTML:
    shown, runs = ({column.run for column in columns} for columns in (chosen, every))
    notes = []
    if len(shown) < len(runs):
        notes.append(f"{len(shown)} of {len(runs)} runs are in this table; choose checkpoints of others above.")
    if sum(len(result.parts) for _, result in found) < len(read):
        notes.append("Results that half of the seeds lack are left out; “every seed” shows them.")
    return html('<p class="more">{}</p>', " ".join(notes)) if notes else HTML()


def _menus(protocols: Sequence[str], checkpoints: Sequence[str], searchable: bool) -> dict:
    protocol = menu(protocols, [("the largest", "")], least=2)
    return {"controls": {"protocol": protocol, "columns": menu(checkpoints), "find": {"visible": searchable}}}


NO_RESULTS = empty(
    "No evaluation results",
    HTML(
        "Evaluate the checkpoints of a run: <code>openrlhf-ebpo eval "
        "--checkpoints runs/ebpo/run --tasks aime24,aime25</code>"
    ),
    "The results appear here as they are written.",
)


def _reported(choice: str, problems: list[str]) -> dict[str, dict[str, float]]:
    try:
        return paper.reported(choice) if choice else {}
    except UsageError as error:
        problems.append(str(error).removeprefix("--reported "))
        return {}


def panels(found: Sequence[tuple[int, Result]], tasks: Sequence[str], one_base: bool = False) -> list[dict]:
    """Draw pass@1 by step if a run has several checkpoints, and pass@k if there are several samples."""
    by_step, by_k = [], []
    for task in tasks:
        mine = [(number, result) for number, result in found if result.task == task]
        lines, curves = _lines(mine), _curves(mine, one_base)
        by_step += [checkpoint_panel(task, lines)] if any(len(line.x) > 1 for line in lines) else []
        by_k += [pass_panel(task, curves)] if curves else []
    return [
        {
            "title": "Checkpoints",
            "note": (
                "pass@1 by training step; step 0 is the base model. Bars: 95 % over questions; bands of seeds: 95 % "
                "t-interval of their mean. The numbers are at the last step."
            ),
            "kind": "two",
            "panels": by_step,
        },
        {
            "title": "pass@k",
            "note": "The chance that at least one of k samples is right. Solid: the last checkpoint of a run, with its "
            "95 % band over questions, or over seeds; dotted: the first. The numbers are at k = 1.",
            "kind": "two",
            "panels": by_k,
        },
    ]


def _lines(mine: Sequence[tuple[int, Result]]) -> list[Line]:
    """Draw pass@1 by step, a line for each run."""
    lines = []
    for number, own in _by_run(mine, lambda result: "pass@1" in result.metrics):
        value, low, high = _percents([r.metrics["pass@1"] for r in own])
        ends = {"low": low, "high": high}
        if any(r.seeds for r in own):  # at the base model, which seeds share, a band over seeds has no width
            begun = np.array([r.step > 0 for r in own])
            ends = {"band": (np.where(begun, low, value), np.where(begun, high, value))}
        lines.append(Line(own[0].run, number, np.array([r.step for r in own]), value, **ends))
    return lines


def _curves(mine: Sequence[tuple[int, Result]], one_base: bool) -> list[Line]:
    """Draw the first (dotted) and the last checkpoint of each run, in its colour. one_base: the base model of all runs
    is drawn once."""
    curves, drawn_base = [], False
    for number, own in _by_run(mine, lambda result: len(result.pass_curve()) > 1):
        for each in own if len(own) == 1 else (own[0], own[-1]):
            if one_base and not each.step:
                if drawn_base:
                    continue
                drawn_base = True
            ks, metrics = zip(*each.pass_curve(), strict=True)
            value, *band = _percents(metrics)
            more = {"band": tuple(band)} if each is own[-1] else {"dash": "dot"}
            curves.append(Line(Column(number, each.run, each.step).name, number, np.array(ks), value, **more))
    return curves


def _by_run(mine: Sequence[tuple[int, Result]], fits: Callable[[Result], bool]) -> Iterator[tuple[int, list[Result]]]:
    """Yield the number of each run's colour and those of its results that fit, by step."""
    for number, run in sorted({(number, result.run) for number, result in mine}):
        if own := sorted((r for _, r in mine if r.run == run and fits(r)), key=lambda r: r.step):
            yield number, own


def _percents(metrics: Sequence[dict]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Values, and the ends of their intervals."""
    value, ends = [m["value"] for m in metrics], np.array([m["interval"] for m in metrics])
    return 100 * np.array(value), 100 * ends[:, 0], 100 * ends[:, 1]


PAGE = Page("evaluation", PARAMETERS, lay_out, render, reads=("metrics.jsonl", "run.json", "rollouts", "eval"))
