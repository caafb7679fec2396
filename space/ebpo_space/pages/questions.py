"""The questions of a task, in any order, each with the success rate of every column of the table; and all samples of
one."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

from openrlhf_ebpo.run.score_text import whole_percent

from .. import parameters, reading, results
from ..cards import current_mark, pager, tokens
from ..components import choice, dot, page_of, setting
from ..errors import RunError
from ..results import BASE, Column, Result, ends_of
from ..text import HTML, attribute, harmless, html, join, middle_cut, run_name
from ..workspace import Workspace

PER_PAGE = 25
TEXTS = 720_000  # characters of all samples of one question
MAX_SEEDS = 3  # of a configuration whose samples are shown; “every seed” shows the others
ORDERS = {
    "hardest": "hardest first",
    "easiest": "easiest first",
    "rose": "rose most",
    "fell": "fell most",
    "apart": "runs disagree most",
}
PARAMETERS = {
    "question": ("", parameters.text),
    "by": ("hardest", parameters.one_of(ORDERS)),
    "find": ("", parameters.text),  # in questions
    "leaf": (1, parameters.number(1, 100_000, whole=True)),  # page of questions
}
Evaluated = Sequence[tuple[Column, Result]]  # the columns of the table that have a result of the task
Rates = Mapping[Column, float]  # success rates of one question


def render(
    view: dict,
    workspace: Workspace,
    found: Sequence[tuple[int, Result]],
    columns: Sequence[Column],
    tasks: Sequence[str],
    problems: list[str],
) -> dict:
    """questions: HTML. columns: of the table; what goes wrong is added to `problems`."""
    task = view["task"] if view["task"] in tasks else tasks[0]
    places = {(result.run, result.step): result for _, result in found if result.task == task}
    evaluated = [(column, places[column[1:]]) for column in columns if column[1:] in places]
    rates, texts = _read(workspace, evaluated, problems)
    if not rates:
        return {"questions": HTML()}
    ends = ends_of(columns).values()
    moved = any(first != last for first, last in ends)  # changes need two checkpoints of a run, disagreement two runs
    orders = [o for o in ORDERS if (moved or o not in ("rose", "fell")) and (len(ends) > 1 or o != "apart")]
    by = view["by"] if view["by"] in orders else "hardest"
    text = view["find"].strip().lower()
    order = [key for key in sort_questions(rates, columns, by) if text in texts[key].lower()]
    chosen = next((key for key in order if key_of(key) == view["question"]), None)
    here, page, pages = page_of(order, view["leaf"], PER_PAGE)
    none = HTML() if order else html('<p class="more">No question of {} has this text.</p>', harmless(task, 60))
    samples = _samples(workspace, evaluated, chosen, problems) if chosen else HTML()
    items = join(_question(key, texts[key], rates[key], samples if key == chosen else None) for key in here)
    buttons = join(choice({"by": name, "leaf": 1}, ORDERS[name], name == by) for name in orders)
    order_by = html('<div class="choices" role="group" aria-label="Order">{}</div>', buttons)
    return {
        "questions": html(
            '<section class="questions"><h2>Questions</h2><p>Bars: share of right samples, one for each checkpoint of '
            "the table. Choose a question to read its samples.</p>{}{}{}<ol>{}</ol></section>",
            *(order_by, _heads(tasks, task, columns, page, pages), none, items),
        )
    }


def _read(
    workspace: Workspace, evaluated: Evaluated, problems: list[str]
) -> tuple[dict[str, dict[Column, float]], dict[str, str]]:
    """Success rates and texts of all questions, by key."""
    rates: dict[str, dict[Column, float]] = {}
    texts: dict[str, str] = {}
    for column, result in evaluated:
        found: dict[str, list[float]] = {}
        for part in result.parts:
            try:
                for question in results.questions(workspace.runs.get(part.run), part):
                    found.setdefault(question.key, []).append(question.rate)
                    texts[question.key] = question.text
            except RunError as error:
                problems.append(f"{part.run}: {error}")
        for key, each in found.items():
            rates.setdefault(key, {})[column] = sum(each) / len(each)
    return rates, texts


def sort_questions(rates: Mapping[str, Rates], columns: Sequence[Column], by: str) -> list[str]:
    """Sort the questions' keys. rose, fell: by the largest change of any run from its first to its last column; apart:
    by the difference between the runs' last columns."""
    ends = list(ends_of(columns).values())

    def value(of: Rates) -> float:
        if by == "apart":
            lasts = [of[last] for _, last in ends if last in of]
            return min(lasts) - max(lasts) if lasts else 0.0
        if by in ("rose", "fell"):
            changes = [of[last] - of[first] for first, last in ends if first != last and first in of and last in of]
            return (-max(changes) if by == "rose" else min(changes)) if changes else 0.0
        mean = sum(of.values()) / len(of)
        return mean if by == "hardest" else -mean

    return sorted(rates, key=lambda key: (value(rates[key]), key))


def _heads(tasks: Sequence[str], task: str, columns: Sequence[Column], page: int, pages: int) -> HTML:
    """Lay out the tasks to choose from, the pages, and the names of the bars."""
    reset = {"question": "", "leaf": 1}
    choices = join(choice({"task": name, **reset}, harmless(name, 40), name == task) for name in tasks)
    template = '<small style="--shade:var(--{})" title="{}">{}</small>'
    heads = join(html(template, c.shade, attribute(c.run, 60), c.step or "base") for c in columns)
    return html(
        '<div class="between"><div class="choices" role="group" aria-label="Task">{}</div>{}'
        '<div class="bars heads" aria-hidden="true">{}</div></div>',
        *(choices, pager("leaf", page, pages, "questions"), heads),
    )


def key_of(question: str) -> str:
    """Make a short name of a question for links."""
    return hashlib.sha256(question.encode("utf-8", "replace")).hexdigest()[:12]


def _question(key: str, text: str, rates: Rates, samples: HTML | None) -> HTML:
    """samples: shown below the question; None unless it is the chosen one."""
    bars = join(
        html(
            '<i style="--rate:{:.0f}%;--shade:var(--{})" title="{} step {}: {}"></i>',
            *(100 * rate, c.shade, attribute(c.run, 40), c.step, whole_percent(rate)),
        )
        for c, rate in rates.items()
    )
    spoken = ", ".join(f"{middle_cut(c.run, 32)} step {c.step} {whole_percent(rate)}" for c, rate in rates.items())
    return html(
        '<li><button type="button" {}{}><span class="words">{}</span><span class="bars" aria-hidden="true">{}</span>'
        '<span class="sr">{}</span></button>{}</li>',
        *(setting(question="" if samples else key_of(key)), current_mark(samples is not None)),
        *(reading.line(text, 150), bars, harmless(spoken, 2000), samples or ""),
    )


def _samples(workspace: Workspace, evaluated: Evaluated, key: str, problems: list[str]) -> HTML:
    """Show the samples of one question in the table's columns; the latest checkpoint of each run stands open."""
    parts, question, source, opened = [], None, {}, set()
    ordered = sorted(evaluated, key=lambda pair: (pair[0].number == BASE, pair[0].number, -pair[0].step))
    seeds = [(Column(c.number, part.run, c.step), part) for c, result in ordered for part in result.parts[:MAX_SEEDS]]
    for column, result in seeds:
        try:
            rows = results.samples(workspace.runs.get(column.run), result, key)
        except RunError as error:
            problems.append(str(error))
            continue
        if rows:
            if question is None:
                question = rows[0]
                source = {"run": column.run, "place": result.place, "row": question["row"], "field": "question"}
            room = min(max(TEXTS // len(seeds) // len(rows), 400), reading.WHOLE)
            parts.append(_column_samples(column, result, rows, room, is_open=column.run not in opened))
            opened.add(column.run)
    if question is None:
        return HTML()
    return html(
        '<article class="group"><header class="bar"><h2>Question</h2><span class="tools"><button type="button" {}>Close'
        '</button></span></header><section class="prompt">{}<p class="label"><small>expected</small> <code>{}</code>'
        "</p></section>{}</article>",
        setting(question=""),
        reading.answer(question.get("question"), reading.Options(source=source, is_answer=False, name="Question")),
        harmless(question.get("gold"), 400),
        join(parts),
    )


def _column_samples(column: Column, result: Result, rows: Sequence[dict], room: int, is_open: bool) -> HTML:
    right = sum(bool(row.get("correct")) for row in rows)
    place = {"run": column.run, "place": result.place}
    return html(
        "<details {}><summary>{}{}<small>{} of {} right</small></summary>"
        '<div class="answers"><ol class="cards">{}</ol></div></details>',
        *(
            "open" if is_open else "",
            dot(column.number) if column.number != BASE else "",
            run_name(column.name, 60),
            right,
            len(rows),
        ),
        join(_sample(i, row, place, room) for i, row in enumerate(rows)),
    )


def _sample(i: int, row: dict, place: dict, room: int) -> HTML:
    kind, verdict, side = ("good", "right", "plus") if row.get("correct") else ("bad", "wrong", "minus")
    truncated = row.get("finish_reason") == "length"
    options = reading.Options(
        source={**place, "row": row["row"]},
        room=room,
        truncated=truncated,
        extracted=row.get("extracted"),
        gold=row.get("gold"),
        name=f"Sample {i + 1}",
    )
    return html(
        '<li class="answer {}" style="--strength:35%"><header><h3>Sample {}</h3><em class="{}">{}</em>{}{}</header>{}'
        "</li>",
        *(side, i + 1, kind, verdict, HTML('<em class="bad">truncated</em>') if truncated else ""),
        *(tokens(row.get("length")), reading.answer(row.get("response"), options)),
    )
