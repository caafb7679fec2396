"""Evaluation: tasks against checkpoints and models, pass@k, the paper's numbers, and every question with its samples."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
from openrlhf_ebpo.eval import paper
from openrlhf_ebpo.eval.scores import ordered

from openrlhf_ebpo.upstream import UsageError

from .. import results
from ..errors import RunError
from ..figures import Line, board, checkpoint_panel, colour, pass_panel
from ..results import Result
from ..tables import NO_RUNS, choice, empty, notices, setting, table
from ..text import SHOWN, attribute, harmless, middle_cut, preview, readable, run_name
from ..workspace import Workspace

COLUMNS = 6  # of the table; of more checkpoints the first and the last of each run
QUESTIONS = 400
TEXTS = 720_000  # characters of all samples of one question
PAPER = {f"{model},{size}": f"{model}, G = {size}" for model, size in paper.REPORTED}


def render(view: dict, workspace: Workspace) -> dict:
    """table, questions, question, notes: HTML; board: plots; protocols, tasks: names for the menus."""
    nothing = {
        "table": "",
        "board": board([]),
        "questions": "",
        "question": "",
        "notes": "",
        "protocols": [],
        "tasks": [],
    }
    if not workspace.chosen(view):
        return {**nothing, "notes": NO_RUNS}
    opened, problems = workspace.open_all(view)
    found: list[tuple[int, Result]] = []
    for run in opened:
        try:
            each, wrong = results.find(run.run)
        except RunError as error:
            each, wrong = [], [str(error)]
        problems += [f"{run.run.key}: {problem}" for problem in wrong]
        found += [(run.run.number, result) for result in each]
    protocols = sorted({result.protocol for _, result in found})
    if not found:
        return {**nothing, "notes": notices(problems) + NO_RESULTS}
    protocol = (
        view["protocol"] if view["protocol"] in protocols else results.largest_protocol([result for _, result in found])
    )
    shown = [(number, result) for number, result in found if result.protocol == protocol]
    tasks = ordered(result.task for _, result in shown)
    reported = _reported(view["paper"], problems)
    return {
        "table": scores(shown, tasks, reported, protocol),
        "board": board(panels(shown, tasks, reported)),
        **_questions(view, workspace, shown, tasks, problems),
        "protocols": protocols,
        "tasks": tasks,
        "notes": notices(problems),
    }


NO_RESULTS = empty(
    "No evaluation results",
    "Evaluate the checkpoints of a run: <code>openrlhf-ebpo eval --checkpoints runs/ebpo/run --tasks aime24,aime25</code>",
    "The results appear here as they are written.",
)


def _reported(choice: str, problems: list[str]) -> dict[str, dict[str, float]]:
    if not choice:
        return {}
    try:
        return paper.reported(choice)
    except UsageError as error:
        problems.append(str(error).removeprefix("--reported "))
        return {}


def columns(shown: Sequence[tuple[int, Result]]) -> list[tuple[int, str, int]]:
    """(colour number, run, step) of the table's columns: every checkpoint, or the first and the last of each run."""
    each = sorted({(number, result.run, result.step) for number, result in shown})
    if len(each) <= COLUMNS:
        return each
    ends = {}
    for number, run, step in each:
        ends.setdefault(run, []).append((number, run, step))
    return [column for steps in ends.values() for column in dict.fromkeys((steps[0], steps[-1]))]


def scores(shown: Sequence[tuple[int, Result]], tasks: Sequence[str], reported: dict, protocol: str) -> str:
    """pass@1 in percent: tasks down, checkpoints across, the paper's columns behind."""
    by = {(result.run, result.step, result.task): result for _, result in shown}
    across = columns(shown)
    head = ["task", *[_column(number, run, step) for number, run, step in across]]
    head += [_reported_column(name) for name in reported]
    rows = []
    for task in tasks:
        sizes = {f"{r.questions:,} × {r.samples:,}" for _, r in shown if r.task == task}
        cells = [_score(by.get((run, step, task)), number) for number, run, step in across]
        cells += [f"{values[task]:.2f}" if task in values else "–" for values in reported.values()]
        rows.append([f"{harmless(task, 60)}<small>{', '.join(sorted(sizes))}</small>", *cells])
    rows += [_average(by, across, tasks, reported)] if len(tasks) > 1 else []
    note = (
        f"pass@1 in percent, protocol <code>{harmless(protocol, 80)}</code>; below a task, its questions × samples of each. ± is the standard "
        "error over the samples, as if the same questions were asked again; the bar is the 95 % interval over questions, as if others "
        "of their kind were asked."
    )
    caption = f"Results under protocol {protocol}"
    return f'<section class="passage"><h2>Results</h2><p>{note}</p>{table(head, rows, caption, "scores")}</section>'


def _reported_column(name: str) -> str:
    method, _, model = name.partition(", ")
    return f'{harmless(method, 40)}<small>{harmless(model, 40)}</small><small class="reported">reported in the paper</small>'


def _column(number: int, run: str, step: int) -> str:
    name = f"step {step}" if step else "base model"
    return f'<i class="dot" style="background:var(--{colour(number)})"></i>{run_name(run, 28)}<small>{name}</small>'


def _score(result: Result | None, number: int) -> str:
    metric = result.metrics.get("pass@1") if result else None
    if metric is None:
        return "–"
    low, high = (max(min(100 * v, 100), 0) for v in metric["interval"])
    error = metric["standard_error"]
    plus = f"<small> ± {100 * error:.1f}</small>" if error is not None else ""
    bar = f'<span class="span"><i style="left:{low:.1f}%;width:{max(high - low, 1):.1f}%;background:var(--{colour(number)})"></i></span>'
    return f'<b>{100 * metric["value"]:.1f}</b>{plus}{bar}<span class="sr">from {low:.1f} to {high:.1f}</span>'


def _average(by: dict, across: Sequence, tasks: Sequence[str], reported: dict) -> list[str]:
    cells = []
    for _, run, step in across:
        values = [by[run, step, task].metrics.get("pass@1") for task in tasks if (run, step, task) in by]
        whole = len(values) == len(tasks) and all(values)
        cells.append(f"<b>{100 * sum(v['value'] for v in values) / len(values):.1f}</b>" if whole else "–")
    for values in reported.values():
        whole = all(task in values for task in tasks)
        cells.append(f"{sum(values[task] for task in tasks) / len(tasks):.2f}" if whole else "–")
    return [f"average<small>of these {len(tasks)} tasks</small>", *cells]


def panels(shown: Sequence[tuple[int, Result]], tasks: Sequence[str], reported: dict) -> list[dict]:
    """pass@1 by step where a run has several checkpoints, and pass@k where there are several samples."""
    by_step, by_k = [], []
    for task in tasks:
        mine = [(number, result) for number, result in shown if result.task == task]
        lines = _lines(mine)
        if any(len(line.x) > 1 for line in lines):
            paper_levels = [
                (name.partition(", ")[0], values[task]) for name, values in reported.items() if task in values
            ]
            by_step.append(checkpoint_panel(task, lines, paper_levels))
        curves = _curves(mine)
        if curves:
            by_k.append(pass_panel(task, curves))
    return [
        {
            "title": "Checkpoints",
            "note": "pass@1 by training step; step 0 is the base model. Bars: 95 % over questions. The numbers are at the last step.",
            "kind": "two",
            "panels": by_step,
        },
        {
            "title": "pass@k",
            "note": "The chance that at least one of k samples is right. Solid: the last checkpoint of a run, with its 95 % band "
            "over questions; dotted: the first. The numbers are at k = 1.",
            "kind": "two",
            "panels": by_k,
        },
    ]


def _lines(mine: Sequence[tuple[int, Result]]) -> list[Line]:
    lines = []
    for number, run in sorted({(number, result.run) for number, result in mine}):
        points = sorted((r.step, r.metrics["pass@1"]) for _, r in mine if r.run == run and "pass@1" in r.metrics)
        if points:
            value, low, high = (
                100 * np.array([pick(m) for _, m in points])
                for pick in (lambda m: m["value"], lambda m: m["interval"][0], lambda m: m["interval"][1])
            )
            lines.append(Line(run, number, np.array([step for step, _ in points]), value, low, high))
    return lines


def _curves(mine: Sequence[tuple[int, Result]]) -> list[tuple[str, int, bool, list]]:
    """The first (dotted) and the last checkpoint of each run, in its colour."""
    curves = []
    for number, run in sorted({(number, result.run) for number, result in mine}):
        own = sorted((r for _, r in mine if r.run == run and len(r.pass_curve()) > 1), key=lambda r: r.step)
        ends = dict.fromkeys((own[0].step, own[-1].step)) if own else {}
        curves += [(r.label, number, r.step < own[-1].step, r.pass_curve()) for r in own if r.step in ends]
    return curves


def _questions(
    view: dict, workspace: Workspace, shown: Sequence[tuple[int, Result]], tasks: Sequence[str], problems: list[str]
) -> dict:
    """The questions of one task with the success rate of every column, hardest first, and one question's samples."""
    task = view["task"] if view["task"] in tasks else tasks[0]
    across = columns(shown)
    rates: dict[str, dict] = {}
    texts: dict[str, str] = {}
    for _, run, step in across:
        result = next((r for _, r in shown if (r.run, r.step, r.task) == (run, step, task)), None)
        if result is None:
            continue
        try:
            for question in results.questions(workspace.runs.get(run), result):
                rates.setdefault(question.key, {})[run, step] = question.rate
                texts[question.key] = question.text
        except RunError as error:
            problems.append(f"{run}: {error}")
    if not rates:
        return {"questions": "", "question": ""}
    order = sorted(rates, key=lambda key: (sum(rates[key].values()) / len(rates[key]), key))
    chosen = next((key for key in order if key_of(key) == view["question"]), None)
    choices = "".join(choice({"task": name, "question": ""}, harmless(name, 40), name == task) for name in tasks)
    items = "".join(_question(key, texts[key], rates[key], across, key == chosen) for key in order[:QUESTIONS])
    heads = "".join(
        f'<small style="--shade:var(--{colour(number)})" title="{attribute(run, 60)}">{step or "base"}</small>'
        for number, run, step in across
    )
    more = f"<p>The hardest {QUESTIONS} of {len(order)} are listed.</p>" if len(order) > QUESTIONS else ""
    return {
        "questions": '<section class="questions"><h2>Questions</h2><p>Hardest first. Bars: share of right samples, one for each '
        f'checkpoint of the table. Choose a question to read its samples.</p><div class="between"><div class="choices" role="group" aria-label="Task">'
        f'{choices}</div><div class="bars heads" aria-hidden="true">{heads}</div></div><ol>{items}</ol>{more}</section>',
        "question": _samples(workspace, shown, task, chosen, problems) if chosen else "",
    }


def key_of(question: str) -> str:
    """A short name of a question for links."""
    return hashlib.sha256(question.encode("utf-8", "replace")).hexdigest()[:12]


def _question(key: str, text: str, rates: dict, across: Sequence, current: bool) -> str:
    bars = "".join(
        f'<i style="--rate:{100 * rates[run, step]:.0f}%;--shade:var(--{colour(number)})" title="{attribute(run, 40)} step {step}: {100 * rates[run, step]:.0f} %"></i>'
        for number, run, step in across
        if (run, step) in rates
    )
    said = ", ".join(f"{middle_cut(run, 32)} step {step} {100 * rate:.0f} %" for (run, step), rate in rates.items())
    mark = ' aria-current="true"' if current else ""
    return (
        f'<li><button type="button" {setting(question=key_of(key))}{mark}><span class="words">{preview(text, 150)}</span>'
        f'<span class="bars" aria-hidden="true">{bars}</span><span class="sr">{harmless(said, 2000)}</span></button></li>'
    )


def _samples(
    workspace: Workspace, shown: Sequence[tuple[int, Result]], task: str, key: str, problems: list[str]
) -> str:
    """Of the table's columns; the latest checkpoint of each run stands open."""
    parts, question, opened, across = [], None, set(), columns(shown)
    for number, result in sorted(shown, key=lambda pair: (pair[0], -pair[1].step)):
        if result.task != task or (number, result.run, result.step) not in across:
            continue
        try:
            rows = results.samples(workspace.runs.get(result.run), result, key)
        except RunError as error:
            problems.append(str(error))
            continue
        if rows:
            question = question or rows[0]
            parts.append(_column_samples(number, result, rows, TEXTS // len(across), first=result.run not in opened))
            opened.add(result.run)
    if question is None:
        return ""
    return (
        f'<article class="group"><header class="bar"><h2>Question</h2><span class="tools"><button type="button" {setting(question="")}>Close</button>'
        '<button type="button" data-copy-link>Copy link</button></span></header>'
        f'<section class="prompt"><pre tabindex="0">{readable(question.get("question"))}</pre><p class="label"><small>expected</small> '
        f"<code>{harmless(question.get('gold'), 400)}</code></p></section>{''.join(parts)}</article>"
    )


def _column_samples(number: int, result: Result, rows: Sequence[dict], texts: int, first: bool) -> str:
    """`texts`: characters of all samples together. `first`: of its run, the latest checkpoint, which stands open."""
    right = sum(bool(row.get("correct")) for row in rows)
    limit = min(max(texts // len(rows), 400), SHOWN)
    cards = "".join(_sample(i, row, limit) for i, row in enumerate(rows))
    return (
        f'<details {"open" if first else ""}><summary><i class="dot" style="background:var(--{colour(number)})"></i>{harmless(result.label, 60)}'
        f'<small>{right} of {len(rows)} right</small></summary><div class="answers"><ol>{cards}</ol></div></details>'
    )


def _sample(i: int, row: dict, limit: int) -> str:
    right = bool(row.get("correct"))
    verdict = '<em class="good">right</em>' if right else '<em class="bad">wrong</em>'
    cut = '<em class="bad">truncated</em>' if row.get("finish_reason") == "length" else ""
    tokens = f"<small>{row['length']:,} tokens</small>" if isinstance(row.get("length"), int) else ""
    extracted = (
        f'<p class="label"><small>answer</small> <code>{harmless(row["extracted"], 300)}</code></p>'
        if row.get("extracted")
        else ""
    )
    return (
        f'<li class="answer {"plus" if right else "minus"}" style="--strength:35%"><header><h3>Sample {i + 1}</h3>{verdict}{cut}{tokens}</header>'
        f'{extracted}<pre tabindex="0" aria-label="Sample {i + 1}">{readable(row.get("response"), limit)}</pre></li>'
    )
