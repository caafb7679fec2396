"""The questions of a task, in any order, each with the success rate of every column of the table; and all samples of
one."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

from openrlhf_ebpo.run.score_text import whole_percent

from .. import parameters, reading, results
from ..cards import current_mark, pager, tokens
from ..components import choice, dot, setting
from ..errors import RunError
from ..figures import colour
from ..results import Column, Result, ends_of
from ..text import HTML, attribute, harmless, html, joined, middle_cut
from ..workspace import Workspace

PER_PAGE = 25
TEXTS = 720_000  # characters of all samples of one question
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
Rates = dict[str, dict[tuple[str, int], float]]  # question -> run, step -> success rate


def render(
    view: dict,
    workspace: Workspace,
    shown: Sequence[tuple[int, Result]],
    across: Sequence[Column],
    tasks: Sequence[str],
    problems: list[str],
) -> dict:
    """questions: HTML. across: the columns of the table; what goes wrong is added to `problems`."""
    task = view["task"] if view["task"] in tasks else tasks[0]
    rates, texts = _read(workspace, shown, across, task, problems)
    if not rates:
        return {"questions": HTML()}
    orders = orders_of(across)
    by = view["by"] if view["by"] in orders else "hardest"
    words = view["find"].strip().lower()
    order = [key for key in ordered(rates, across, by) if words in texts[key].lower()]
    chosen = next((key for key in order if key_of(key) == view["question"]), None)
    pages = -(-len(order) // PER_PAGE)
    page = min(view["leaf"], max(pages, 1))
    none = html('<p class="more">No question of {} has this text.</p>', harmless(task, 60)) if not order else HTML()
    samples = _samples(workspace, shown, across, task, chosen, problems) if chosen else HTML()
    items = joined(
        _question(key, texts[key], rates[key], across, samples if key == chosen else None)
        for key in order[(page - 1) * PER_PAGE : page * PER_PAGE]
    )
    return {
        "questions": html(
            '<section class="questions"><h2>Questions</h2><p>Bars: share of right samples, one for each '
            "checkpoint of the "
            "table. Choose a question to read its samples.</p>{}{}{}<ol>{}</ol></section>",
            *(_orders(orders, by), _heads(tasks, task, across, page, max(pages, 1)), none, items),
        )
    }


def _read(
    workspace: Workspace, shown: Sequence[tuple[int, Result]], across: Sequence[Column], task: str, problems: list[str]
) -> tuple[Rates, dict[str, str]]:
    rates: Rates = {}
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
    return rates, texts


def orders_of(across: Sequence[Column]) -> list[str]:
    """Orders that say something: changes need two checkpoints of a run, disagreement two runs."""
    ends = ends_of(across).values()
    moved = any(first != last for first, last in ends)
    return [o for o in ORDERS if (moved or o not in ("rose", "fell")) and (len(ends) > 1 or o != "apart")]


def ordered(rates: Rates, across: Sequence[Column], by: str) -> list[str]:
    """The questions' keys. rose, fell: by the largest change of any run from its first to its last column; apart: by
    the difference between the runs' last columns."""
    values = {key: _value(rates[key], across, by) for key in rates}
    return sorted(rates, key=lambda key: (values[key], key))


def _value(of: Mapping[tuple[str, int], float], across: Sequence[Column], by: str) -> float:
    mean = sum(of.values()) / len(of)
    if by in ("hardest", "easiest"):
        return mean if by == "hardest" else -mean
    if by == "apart":
        lasts = [of[last[1:]] for _, last in ends_of(across).values() if last[1:] in of]
        return min(lasts) - max(lasts) if lasts else 0.0
    changes = _changes(of, across)
    return (-max(changes) if by == "rose" else min(changes)) if changes else 0.0


def _changes(of: Mapping[tuple[str, int], float], across: Sequence[Column]) -> list[float]:
    return [
        of[last[1:]] - of[first[1:]]
        for first, last in ends_of(across).values()
        if first != last and first[1:] in of and last[1:] in of
    ]


def _orders(orders: Sequence[str], by: str) -> HTML:
    buttons = joined(choice({"by": name, "leaf": 1}, ORDERS[name], name == by) for name in orders)
    return html('<div class="choices" role="group" aria-label="Order">{}</div>', buttons)


def _heads(tasks: Sequence[str], task: str, across: Sequence[Column], page: int, pages: int) -> HTML:
    """The tasks to choose from, the pages, and the names of the bars."""
    reset = {"question": "", "leaf": 1}
    choices = joined(choice({"task": name, **reset}, harmless(name, 40), name == task) for name in tasks)
    heads = joined(
        html(
            '<small style="--shade:var(--{})" title="{}">{}</small>',
            *(colour(number), attribute(run, 60), step or "base"),
        )
        for number, run, step in across
    )
    return html(
        '<div class="between"><div class="choices" role="group" aria-label="Task">{}</div>{}'
        '<div class="bars heads" aria-hidden="true">{}</div></div>',
        *(choices, pager("leaf", page, pages, "questions"), heads),
    )


def key_of(question: str) -> str:
    """A short name of a question for links."""
    return hashlib.sha256(question.encode("utf-8", "replace")).hexdigest()[:12]


def _question(key: str, text: str, rates: dict, across: Sequence, samples: HTML | None) -> HTML:
    """samples: shown below the question; None unless it is the chosen one."""
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
        '<span class="sr">{}</span></button>{}</li>',
        *(setting(question="" if samples else key_of(key)), current_mark(samples is not None)),
        *(reading.line(text, 150), bars, harmless(said, 2000), samples or ""),
    )


def _samples(
    workspace: Workspace,
    shown: Sequence[tuple[int, Result]],
    across: Sequence[Column],
    task: str,
    key: str,
    problems: list[str],
) -> HTML:
    """Show samples of the table's columns; the latest checkpoint of each run stands open."""
    parts, question, source, opened = [], None, {}, set()
    for number, result in sorted(shown, key=lambda pair: (pair[0], -pair[1].step)):
        if result.task != task or (number, result.run, result.step) not in across:
            continue
        try:
            rows = results.samples(workspace.runs.get(result.run), result, key)
        except RunError as error:
            problems.append(str(error))
            continue
        if rows:
            if question is None:
                question = rows[0]
                source = {"run": result.run, "place": result.place, "row": question["row"], "field": "question"}
            parts.append(_column_samples(number, result, rows, TEXTS // len(across), first=result.run not in opened))
            opened.add(result.run)
    if question is None:
        return HTML()
    return html(
        '<article class="group"><header class="bar"><h2>Question</h2><span class="tools"><button type="button" '
        "{}>Close</button>"
        '</span></header><section class="prompt">{}'
        '<p class="label"><small>expected</small> <code>{}</code></p></section>{}</article>',
        *(
            setting(question=""),
            reading.answer(question.get("question"), source=source, given=False, name="Question"),
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
    text = reading.answer(
        row.get("response"),
        source={**place, "row": row["row"]},
        room=room,
        truncated=cut,
        extracted=row.get("extracted"),
        gold=row.get("gold"),
        name=f"Sample {i + 1}",
    )
    return html(
        '<li class="answer {}" style="--strength:35%"><header><h3>Sample {}</h3>{}{}{}</header>{}</li>',
        *("plus" if right else "minus", i + 1, verdict, flag, tokens(row.get("length")), text),
    )
