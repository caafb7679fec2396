"""pass@1 of every task at every checkpoint, with bars on one scale, and what changed from the first to the last, in
words."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from openrlhf_ebpo.run import score_text
from openrlhf_ebpo.run.score_text import NONE, percent, points

from .change import Change, over_questions
from .components import dot, table
from .errors import RunError
from .figures import colour
from .headline import GRPO
from .results import Column, Result, ends_of
from .runs import Run
from .text import HTML, attribute, distinct_names, harmless, html, join, run_name
from .workspace import Opened

SCALES = (5, 10, 20, 40, 60, 80, 100)  # percent; the least that has room for all bars
AVERAGE = ""  # the task that stands for all


@dataclass(frozen=True)
class Scores:
    """by: results by run, step and task. changes: by run and task, from the run's first column to its last; lasts:
    the last column of each run, GRPO's first if there is one; against: from the first of them to that of the run."""

    columns: Sequence[Column]
    tasks: Sequence[str]
    by: dict[tuple[str, int, str], Result]
    reported: dict[str, dict[str, float]]
    changes: dict[tuple[str, str], Change]
    lasts: Sequence[Column]
    against: dict[tuple[str, str], Change]
    protocol: str

    @classmethod
    def of(
        cls,
        numbered: Sequence[tuple[int, Result]],
        columns: Sequence[Column],
        tasks: Sequence[str],
        reported: dict,
        opened: Sequence[Opened],
        problems: list[str],
    ) -> Scores:
        """Add what cannot be read to `problems`."""
        by = {(result.run, result.step, result.task): result for _, result in numbered if "pass@1" in result.metrics}
        runs = {run.run.key: run.run for run in opened}
        ends = ends_of(columns).values()
        grpo = {run.run.key for run in opened if run.estimator == GRPO}
        lasts = sorted((last for _, last in ends), key=lambda last: last.run not in grpo)

        def compared(pairs: Iterable[tuple[Column, Column]]) -> dict[tuple[str, str], Change]:
            return {
                (last.run, task): found
                for first, last in pairs
                for task in (AVERAGE, *tasks)
                if (found := _between(runs, by, first, last, [task] if task else tasks, problems))
            }

        changes = compared((first, last) for first, last in ends if first != last)
        against = compared((lasts[0], last) for last in lasts[1:])
        protocol = numbered[0][1].protocol if numbered else ""
        return cls(columns, tasks, by, reported, changes, lasts, against, protocol)

    @functools.cached_property
    def scale(self) -> int:
        """Percent at the end of every bar."""
        places = ((c.run, c.step, task) for c in self.columns for task in self.tasks)
        ends = [self.by[place].metrics["pass@1"]["interval"][1] for place in places if place in self.by]
        return next((scale for scale in SCALES if 100 * max(ends, default=0) <= scale), SCALES[-1])

    def value(self, column: Column, task: str) -> float | None:
        """Find the score of a task, or the average of all if the column has all."""
        tasks = [task] if task else self.tasks
        found = [self.by.get((column.run, column.step, each)) for each in tasks]
        return sum(each.metrics["pass@1"]["value"] for each in found) / len(found) if all(found) else None


def _between(
    runs: Mapping[str, Run], by: dict, first: Column, last: Column, tasks: Sequence[str], problems: list[str]
) -> Change | None:
    """Over the tasks that both checkpoints have."""
    ends = [(by.get((first.run, first.step, task)), by.get((last.run, last.step, task))) for task in tasks]
    try:
        return over_questions((runs[first.run], a, runs[last.run], b) for a, b in ends if a and b)
    except RunError as error:
        problems.append(f"{last.run}: {error}")
        return None


Cell = Callable[[str], HTML | str]  # of a task


def score_table(scores: Scores) -> HTML:
    columns: list[tuple[HTML, Cell]] = [
        *([_against(scores)] if scores.against else []),
        *([_changes(scores)] if scores.changes else []),
        *(_checkpoint(scores, column) for column in scores.columns),
        *(_reported(scores, name) for name in scores.reported),
    ]
    tasks = [*scores.tasks, *([AVERAGE] if len(scores.tasks) > 1 else [])]
    rows = [[_task(scores, task), *(cell(task) for _, cell in columns)] for task in tasks]
    caption = f"Results under protocol {scores.protocol}"
    return html(
        '<section class="passage"><h2>Results</h2><p>pass@1 in percent, protocol <code>{}</code>; below a task, its '
        "questions × samples of each. maj@k: the chance that the majority of k answers is right. The bar ends at the "
        "score; the line over it is the 95 % interval over questions, as if others of their kind were asked. ± is the "
        "standard error across runs, as if the same questions were answered again.</p>{}"
        '<p><button type="button" class="csv" data-csv="scores">Table as CSV</button></p></section>',
        *(harmless(scores.protocol, 80), table(["task", *(head for head, _ in columns)], rows, caption, "scores")),
    )


def _task(scores: Scores, task: str) -> HTML:
    if task == AVERAGE:
        return html("average<small>of these {} tasks</small>", len(scores.tasks))
    sizes = {f"{r.questions:,} × {r.samples:,}" for (_, _, of), r in scores.by.items() if of == task}
    return html("{}<small>{}</small>", harmless(task, 60), ", ".join(sorted(sizes)))


def _checkpoint(scores: Scores, column: Column) -> tuple[HTML, Cell]:
    ticks = html('<small class="ticks" aria-hidden="true"><span>0</span><span>{}</span></small>', f"{scores.scale} %")
    head = html("{}{}<small>{}</small>{}", dot(column.number), run_name(column.run, 28), column.step_name, ticks)

    def cell(task: str) -> HTML | str:
        value = scores.value(column, task)
        if value is None:
            return NONE
        if task == AVERAGE:
            return html("<b>{}</b>", percent(value)) + _bar(value, None, scores, column)
        result = scores.by[column.run, column.step, task]
        metric = result.metrics["pass@1"]
        return html(
            '<b>{}</b><small>{}</small><span class="sr"> ({})</span>{}{}',
            *(percent(value), score_text.plus_minus(metric), score_text.span(metric)),
            *(_bar(value, metric["interval"], scores, column), _vote(result)),
        )

    return head, cell


def _vote(result: Result) -> HTML:
    """Write the majority's success, below the bar."""
    if result.vote is None:
        return HTML()
    metric = result.metrics[result.vote]
    value, span = percent(metric["value"]), score_text.span(metric)
    return html('<small class="vote">{} {} ({})</small>', result.vote, value, span)


def _bar(value: float, interval: Sequence[float] | None, scores: Scores, column: Column) -> HTML:
    share = lambda each: min(max(100 * 100 * each / scores.scale, 0), 100)  # noqa: E731
    line = HTML()
    if interval is not None:
        low, high = map(share, interval)
        line = html('<i class="reach" style="left:{:.1f}%;width:{:.1f}%"></i>', low, max(high - low, 0.5))
    return html(
        '<span class="scale" style="--shade:var(--{})"><i style="width:{:.1f}%"></i>{}</span>',
        *(colour(column.number), share(value), line),
    )


def _changes(scores: Scores) -> tuple[HTML, Cell]:
    """Compare the last column of each run with its first."""
    ends = [pair for run, pair in ends_of(scores.columns).items() if (run, AVERAGE) in scores.changes]
    steps = {f"{f'step {first.step}' if first.step else 'base'} to {last.step}" for first, last in ends}
    head = html("change<small>{}</small>", steps.pop() if len(steps) == 1 else "from a run’s first column")
    return head, lambda task: _differences([last for _, last in ends], scores.changes, task)


def _against(scores: Scores) -> tuple[HTML, Cell]:
    """Compare the last columns of all runs with the first of them."""
    base, *others = scores.lasts
    head = html("difference<small>to {}{}, {}</small>", dot(base.number), run_name(base.run, 28), base.step_name)
    return head, lambda task: _differences(others, scores.against, task)


def _differences(columns: Sequence[Column], found: Mapping[tuple[str, str], Change], task: str) -> HTML | str:
    """Lay out a line for each run; the only one in words too."""
    named = zip(columns, distinct_names([column.run for column in columns], 20), strict=True)
    lines = [_difference(c, name, found[c.run, task]) for c, name in named if (c.run, task) in found]
    only = html("<p>{}</p>", found[columns[0].run, task].sentence) if len(lines) == len(columns) == 1 else HTML()
    return html('<div class="against">{}{}</div>', join(lines), only) if lines else NONE


def _difference(column: Column, name: str, found: Change) -> HTML:
    low, high = points(found.low), points(found.high)
    return html(
        '<span title="{}">{}{} <b class="{}">{}</b> <small>{} to {}</small></span>',
        *(attribute(f"{column.name}: {found.sentence}", 300), dot(column.number), harmless(name, 20)),
        *(found.verdict, points(found.difference), low, high),
    )


def _reported(scores: Scores, name: str) -> tuple[HTML, Cell]:
    method, _, model = name.partition(", ")
    head = html('{}<small>{}</small><small class="reported">reported in the paper</small>', method, model)

    def cell(task: str) -> str:
        values = [scores.reported[name].get(each) for each in (scores.tasks if task == AVERAGE else [task])]
        return NONE if None in values else score_text.reported(sum(values) / len(values))

    return head, cell
