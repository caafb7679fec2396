"""The questions of a task, each with the success rate of every column of the table, and all samples of one."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from openrlhf_ebpo.run.score_text import whole_percent

from .. import reading, results
from ..cards import current_mark, tokens
from ..errors import RunError
from ..figures import colour
from ..results import Column, Result
from ..tables import choice, dot, setting
from ..text import HTML, attribute, harmless, html, joined, middle_cut
from ..workspace import Workspace

QUESTIONS = 400
TEXTS = 720_000  # characters of all samples of one question


def render(
    view: dict,
    workspace: Workspace,
    shown: Sequence[tuple[int, Result]],
    across: Sequence[Column],
    tasks: Sequence[str],
    problems: list[str],
) -> dict:
    """questions, question: HTML. across: the columns of the table; what goes wrong is added to `problems`."""
    task = view["task"] if view["task"] in tasks else tasks[0]
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
        return {"questions": HTML(), "question": HTML()}
    order = sorted(rates, key=lambda key: (sum(rates[key].values()) / len(rates[key]), key))
    chosen = next((key for key in order if key_of(key) == view["question"]), None)
    items = joined(_question(key, texts[key], rates[key], across, key == chosen) for key in order[:QUESTIONS])
    more = html("<p>The hardest {} of {} are listed.</p>", QUESTIONS, len(order)) if len(order) > QUESTIONS else ""
    return {
        "questions": html(
            '<section class="questions"><h2>Questions</h2><p>Hardest first. Bars: share of right samples, one for each checkpoint '
            "of the table. Choose a question to read its samples.</p>{}<ol>{}</ol>{}</section>",
            *(_heads(tasks, task, across), items, more),
        ),
        "question": _samples(workspace, shown, across, task, chosen, problems) if chosen else HTML(),
    }


def _heads(tasks: Sequence[str], task: str, across: Sequence[Column]) -> HTML:
    """The tasks to choose from, and the names of the bars."""
    choices = joined(choice({"task": name, "question": ""}, harmless(name, 40), name == task) for name in tasks)
    heads = joined(
        html(
            '<small style="--shade:var(--{})" title="{}">{}</small>',
            *(colour(number), attribute(run, 60), step or "base"),
        )
        for number, run, step in across
    )
    return html(
        '<div class="between"><div class="choices" role="group" aria-label="Task">{}</div>'
        '<div class="bars heads" aria-hidden="true">{}</div></div>',
        *(choices, heads),
    )


def key_of(question: str) -> str:
    """A short name of a question for links."""
    return hashlib.sha256(question.encode("utf-8", "replace")).hexdigest()[:12]


def _question(key: str, text: str, rates: dict, across: Sequence, current: bool) -> HTML:
    bars = joined(
        html(
            '<i style="--rate:{0:.0f}%;--shade:var(--{1})" title="{2} step {3}: {4}"></i>',
            *(100 * rates[run, step], colour(number), attribute(run, 40), step, whole_percent(rates[run, step])),
        )
        for number, run, step in across
        if (run, step) in rates
    )
    said = ", ".join(f"{middle_cut(run, 32)} step {step} {whole_percent(rate)}" for (run, step), rate in rates.items())
    return html(
        '<li><button type="button" {}{}><span class="words">{}</span><span class="bars" aria-hidden="true">{}</span>'
        '<span class="sr">{}</span></button></li>',
        *(setting(question=key_of(key)), current_mark(current), reading.line(text, 150), bars, harmless(said, 2000)),
    )


def _samples(
    workspace: Workspace,
    shown: Sequence[tuple[int, Result]],
    across: Sequence[Column],
    task: str,
    key: str,
    problems: list[str],
) -> HTML:
    """Of the table's columns; the latest checkpoint of each run stands open."""
    parts, question, opened = [], None, set()
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
        return HTML()
    return html(
        '<article class="group"><header class="bar"><h2>Question</h2><span class="tools"><button type="button" {}>Close</button>'
        '<button type="button" data-copy-link>Copy link</button></span></header><section class="prompt">{}'
        '<p class="label"><small>expected</small> <code>{}</code></p></section>{}</article>',
        *(
            setting(question=""),
            reading.answer(question.get("question"), given=False, name="Question"),
            harmless(question.get("gold"), 400),
            joined(parts),
        ),
    )


def _column_samples(number: int, result: Result, rows: Sequence[dict], texts: int, first: bool) -> HTML:
    """`texts`: characters of all samples together. `first`: of its run, the latest checkpoint, which stands open."""
    right = sum(bool(row.get("correct")) for row in rows)
    room = min(max(texts // len(rows), 400), reading.WHOLE)
    cards = joined(_sample(i, row, {"run": result.run, "place": result.place}, room) for i, row in enumerate(rows))
    return html(
        "<details {}><summary>{}{}<small>{} of {} right</small></summary>"
        '<div class="answers"><ol class="cards">{}</ol></div></details>',
        *("open" if first else "", dot(number), harmless(result.label, 60), right, len(rows), cards),
    )


def _sample(i: int, row: dict, place: dict, room: int) -> HTML:
    right = bool(row.get("correct"))
    verdict = HTML('<em class="good">right</em>') if right else HTML('<em class="bad">wrong</em>')
    cut = row.get("finish_reason") == "length"
    flag = HTML('<em class="bad">truncated</em>') if cut else ""
    length = row.get("length")
    text = reading.answer(
        row.get("response"),
        source={**place, "row": row["row"]},
        room=room,
        tokens=length if isinstance(length, int) else None,
        truncated=cut,
        extracted=row.get("extracted"),
        gold=row.get("gold"),
        name=f"Sample {i + 1}",
    )
    return html(
        '<li class="answer {}" style="--strength:35%"><header><h3>Sample {}</h3>{}{}{}</header>{}</li>',
        *("plus" if right else "minus", i + 1, verdict, flag, tokens(length), text),
    )
