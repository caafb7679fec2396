"""pass@1 of every task at every checkpoint, with bars on one scale, and what changed from the first to the last, in
words."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
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
from .text import HTML, attribute, harmless, html, joined, run_name
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
        shown: Sequence[tuple[int, Result]],
        columns: Sequence[Column],
        tasks: Sequence[str],
        reported: dict,
        opened: Sequence[Opened],
        problems: list[str],
    ) -> Scores:
        """Add what cannot be read to `problems`."""
        by = {(result.run, result.step, result.task): result for _, result in shown if "pass@1" in result.metrics}
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
        protocol = shown[0][1].protocol if shown else ""
        return cls(columns, tasks, by, reported, changes, lasts, against, protocol)

    @functools.cached_property
    def scale(self) -> int:
        """Percent at the end of every bar."""
        shown = [
            self.by[c.run, c.step, t].metrics["pass@1"]["interval"][1] for c in self.columns for t in self.tasks_of(c)
        ]
        return next((scale for scale in SCALES if 100 * max(shown, default=0) <= scale), SCALES[-1])

    def tasks_of(self, column: Column) -> list[str]:
        return [task for task in self.tasks if (column.run, column.step, task) in self.by]

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


def score_table(scores: Scores) -> HTML:
    against = [_Against(scores.lasts)] if scores.against else []
    cells = [*against, *map(_Checkpoint, scores.columns), *_changed(scores), *map(_Reported, scores.reported)]
    rows = [[_task(scores, task), *[cell.cell(scores, task) for cell in cells]] for task in scores.tasks]
    if len(scores.tasks) > 1:
        size = len(scores.tasks)
        average = html("average<small>of these {} tasks</small>", size)
        rows.append([average, *[cell.cell(scores, AVERAGE) for cell in cells]])
    shown = table(
        ["task", *(cell.head(scores) for cell in cells)], rows, f"Results under protocol {scores.protocol}", "scores"
    )
    return html(
        '<section class="passage"><h2>Results</h2><p>pass@1 in percent, protocol <code>{}</code>; below a task, '
        "its questions × "
        "samples of each. maj@k: the chance that the majority of k answers is right. The bar ends at the score; "
        "the line over it is the 95 % interval over questions, as if others of their kind "
        "were asked. ± is the standard error across runs, as if the same questions were "
        'answered again.</p>{}<p><button type="button" class="csv" data-csv="scores">Table as '
        "CSV</button></p></section>",
        *(harmless(scores.protocol, 80), shown),
    )


def _task(scores: Scores, task: str) -> HTML:
    sizes = {f"{r.questions:,} × {r.samples:,}" for (_, _, of), r in scores.by.items() if of == task}
    return html("{}<small>{}</small>", harmless(task, 60), ", ".join(sorted(sizes)))


@dataclass(frozen=True)
class _Checkpoint:
    column: Column

    def head(self, scores: Scores) -> HTML:
        number, run, step = self.column
        ticks = html(
            '<small class="ticks" aria-hidden="true"><span>0</span><span>{}</span></small>', f"{scores.scale} %"
        )
        name = f"step {step}" if step else "base model"
        return html("{}{}<small>{}</small>{}", dot(number), run_name(run, 28), name, ticks)

    def cell(self, scores: Scores, task: str) -> HTML | str:
        value = scores.value(self.column, task)
        if value is None:
            return NONE
        if not task:
            return html("<b>{}</b>", percent(value)) + _bar(value, None, scores, self.column)
        result = scores.by[self.column.run, self.column.step, task]
        metric = result.metrics["pass@1"]
        return html(
            '<b>{}</b><small>{}</small><span class="sr"> ({})</span>{}{}',
            *(percent(value), score_text.plus_minus(metric), score_text.span(metric)),
            _bar(value, metric["interval"], scores, self.column),
            _vote(result),
        )


def _vote(result: Result) -> HTML:
    """The majority's success, below the bar."""
    if result.vote is None:
        return HTML()
    metric = result.metrics[result.vote]
    return html(
        '<small class="vote">{} {} ({})</small>', result.vote, percent(metric["value"]), score_text.span(metric)
    )


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


@dataclass(frozen=True)
class _Change:
    first: Column
    last: Column

    def head(self, scores: Scores) -> HTML:
        steps = f"{f'step {self.first.step}' if self.first.step else 'base'} to {self.last.step}"
        return html("{}change<small>{}</small>", dot(self.last.number), steps)

    def cell(self, scores: Scores, task: str) -> HTML | str:
        found = scores.changes.get((self.last.run, task))
        if found is None:
            return NONE
        return html(
            '<b class="{}">{}</b><small> {} to {}</small><p>{}</p>',
            *(found.verdict, points(found.difference), points(found.low), points(found.high), found.words),
        )


@dataclass(frozen=True)
class _Against:
    """The last columns of all runs against the first of them."""

    columns: Sequence[Column]

    def head(self, scores: Scores) -> HTML:
        base = self.columns[0]
        step = f"step {base.step}" if base.step else "base model"
        return html("difference<small>to {}{}, {}</small>", dot(base.number), run_name(base.run, 28), step)

    def cell(self, scores: Scores, task: str) -> HTML | str:
        found = [(column, scores.against.get((column.run, task))) for column in self.columns[1:]]
        lines = joined(_difference(column, each) for column, each in found if each)
        return html('<div class="against">{}</div>', lines) if lines else NONE


def _difference(column: Column, found: Change) -> HTML:
    low, high = points(found.low), points(found.high)
    return html(
        '<span title="{}">{}{} <b class="{}">{}</b> <small>{} to {}</small></span>',
        *(attribute(f"{column.name}: {found.words}", 300), dot(column.number), run_name(column.run, 20)),
        *(found.verdict, points(found.difference), low, high),
    )


def _changed(scores: Scores) -> list[_Change]:
    ends = ends_of(scores.columns)
    return [_Change(*ends[run]) for run in ends if (run, AVERAGE) in scores.changes]


@dataclass(frozen=True)
class _Reported:
    name: str

    def head(self, scores: Scores) -> HTML:
        method, _, model = self.name.partition(", ")
        return html('{}<small>{}</small><small class="reported">reported in the paper</small>', method, model)

    def cell(self, scores: Scores, task: str) -> str:
        of = scores.reported[self.name]
        tasks = [task] if task else scores.tasks
        known = all(each in of for each in tasks)
        return score_text.reported(sum(of[each] for each in tasks) / len(tasks)) if known else NONE
