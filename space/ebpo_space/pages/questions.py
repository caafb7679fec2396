"""The questions of a task, each with the success rate of every column of the table, and all samples of one."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from .. import results
from ..errors import RunError
from ..figures import colour
from ..results import Column, Result
from ..tables import choice, setting
from ..text import SHOWN, attribute, harmless, middle_cut, preview, readable
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
        "question": _samples(workspace, shown, across, task, chosen, problems) if chosen else "",
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
    workspace: Workspace,
    shown: Sequence[tuple[int, Result]],
    across: Sequence[Column],
    task: str,
    key: str,
    problems: list[str],
) -> str:
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
