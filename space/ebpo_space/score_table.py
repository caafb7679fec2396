"""pass@1 of every task at every checkpoint, with bars on one scale, and how far each is from its start and from the
configuration that it is compared with."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from openrlhf_ebpo.run import score_text
from openrlhf_ebpo.run.score_text import NONE, percent, points

from . import seeds
from .change import Change, over_questions, over_seeds
from .components import dot, table
from .errors import RunError
from .headline import GRPO
from .results import BASE, Column, Result
from .text import HTML, attribute, harmless, html, join, run_name
from .workspace import LoadedRun

SCALES = (5, 10, 20, 40, 60, 80, 100)  # percent; the least that has room for all bars
AVERAGE = ""  # the task that stands for all
By = Mapping[tuple[str, int, str], Result]  # by run (or configuration), step and task


@dataclass(frozen=True)
class Scores:
    """changes: by run and task, from the run's base model or first checkpoint to its last column; against: from the
    last column of `base` to that of the run."""

    columns: Sequence[Column]
    tasks: Sequence[str]
    by: By
    reported: Mapping[str, Mapping[str, float]]
    changes: Mapping[tuple[str, str], Change]
    against: Mapping[tuple[str, str], Change]
    base: Column | None
    protocol: str

    @functools.cached_property
    def scale(self) -> int:
        """Percent at the end of every bar."""
        places = ((c.run, c.step, task) for c in self.columns for task in self.tasks)
        ends = [self.by[place].metrics["pass@1"]["interval"][1] for place in places if place in self.by]
        return next((scale for scale in SCALES if 100 * max(ends, default=0) <= scale), SCALES[-1])

    @functools.cached_property
    def lasts(self) -> set[Column]:
        return set({column.run: column for column in sorted(self.columns, key=lambda c: c.step)}.values())

    def value(self, column: Column, task: str) -> float | None:
        """Find the score of a task, or the average of all if the column has all."""
        tasks = [task] if task else self.tasks
        found = [self.by.get((column.run, column.step, each)) for each in tasks]
        return sum(each.metrics["pass@1"]["value"] for each in found) / len(found) if all(found) else None


def compare_columns(
    numbered: Sequence[tuple[int, Result]],
    columns: Sequence[Column],
    tasks: Sequence[str],
    reported: Mapping,
    opened: Sequence[LoadedRun],
    problems: list[str],
) -> Scores:
    """Compare each run with its start, and with GRPO's or the first of another configuration; what cannot be read is
    added to `problems`."""
    by = {(result.run, result.step, result.task): result for _, result in numbered if "pass@1" in result.metrics}
    runs = {run.run.key: run for run in opened}
    first_part = {result.run: result.parts[0].run for _, result in numbered}
    lasts = {c.run: c for c in sorted(columns, key=lambda c: c.step) if c.number != BASE}
    base = next(
        (c for c in lasts.values() if runs[first_part[c.run]].estimator == GRPO), next(iter(lasts.values()), None)
    )

    def compared(pairs: Sequence[tuple[Column, Column]]) -> dict[tuple[str, str], Change]:
        found = {}
        for first, last in pairs:
            for task in (AVERAGE, *tasks):
                ends = [
                    tuple(by.get((c.run, c.step, one)) for c in (first, last)) for one in ([task] if task else tasks)
                ]
                try:
                    change = _compare([(a, b) for a, b in ends if a and b], runs)
                    found |= {(last.run, task): change} if change else {}
                except RunError as error:
                    problems.append(f"{last.run}: {error}")
        return found

    starts = {run: last._replace(step=min(s for name, s, _ in by if name == run)) for run, last in lasts.items()}
    changes = compared([(starts[run], last) for run, last in lasts.items() if starts[run] != last])

    others = [last for last in lasts.values() if last.number != base.number]
    seed_of = {c.run: _seed(runs, first_part[c.run]) for c in lasts.values()}
    rivals = {seed_of[c.run]: c for c in reversed(lasts.values()) if c.number == base.number}  # of each seed, the first
    against = compared([(rivals.get(seed_of[last.run], base), last) for last in others])
    protocol = numbered[0][1].protocol if numbered else ""
    return Scores(columns, tasks, by, reported, changes, against, base, protocol)


def _seed(runs: Mapping[str, LoadedRun], key: str) -> int | None:
    return seeds.seed_of(runs[key].about)


def _compare(ends: Sequence[tuple[Result, Result]], runs: Mapping[str, LoadedRun]) -> Change | None:
    """Compare the mean over tasks of the second result of each pair with the first: by seed if they share several,
    else question by question.

    Raises:
        RunError: samples cannot be read.
    """
    sides = [tuple({_seed(runs, part.run): part for part in result.parts} for result in pair) for pair in ends]
    shared = set.intersection(*(a.keys() & b.keys() for a, b in sides)) if sides else set()
    if len(shared) > 1:
        value = lambda result: result.metrics["pass@1"]["value"]  # noqa: E731
        differences = [np.mean([value(b[seed]) - value(a[seed]) for a, b in sides]) for seed in shared]
        return over_seeds(np.array(differences))
    seed = next(iter(shared), None)
    pairs = [(a.get(seed) or next(iter(a.values())), b.get(seed) or next(iter(b.values()))) for a, b in sides]
    return over_questions((runs[a.run].run, a, runs[b.run].run, b) for a, b in pairs)


Cell = Callable[[str], HTML | str]  # of a task


def score_table(scores: Scores) -> HTML:
    columns = [_checkpoint(scores, column) for column in scores.columns]
    tasks = [*scores.tasks, *([AVERAGE] if len(scores.tasks) > 1 else [])]
    rows = [[_task(scores, task), *(cell(task) for _, cell in columns)] for task in tasks]
    several = any(len(result.parts) > 1 for result in scores.by.values())
    over = "over questions, as if others of their kind were asked" + (
        "; of several seeds the t-interval over seeds, as if others were trained" if several else ""
    )
    rival = HTML()
    if base := scores.against and scores.base:
        rival = html(" Differences are to {}{}.", dot(base.number), run_name(base.name, 48))
    return html(
        '<section class="passage"><h2>Results</h2><p>pass@1 in percent, protocol <code>{}</code>; below a task, its '
        "questions × samples of each. maj@k: the chance that the majority of k answers is right. The bar ends at the "
        "score; the line over it is the 95 % interval {}. ± is the standard error across runs, as if the same "
        "questions were answered again.{}</p>{}"
        '<p><button type="button" class="csv" data-csv="scores">Table as CSV</button></p></section>',
        *(harmless(scores.protocol, 80), over, rival),
        table(["task", *(head for head, _ in columns)], rows, f"Results under protocol {scores.protocol}", "scores"),
    )


def _task(scores: Scores, task: str) -> HTML:
    """Name a task; the paper's numbers of it stand below."""
    if task == AVERAGE:
        about = f"of these {len(scores.tasks)} tasks"
    else:
        about = ", ".join(
            sorted({f"{r.questions:,} × {r.samples:,}" for (_, _, of), r in scores.by.items() if of == task})
        )
    rows = []
    for name, numbers in scores.reported.items():
        values = [numbers.get(each) for each in (scores.tasks if task == AVERAGE else [task])]
        if None not in values:
            method, value = name.partition(", ")[0], score_text.reported(sum(values) / len(values))
            rows.append(html('<span class="reported" title="{}">{} {}</span>', attribute(name, 80), method, value))
    said = html('<small class="reported">reported in the paper</small>{}', join(rows)) if rows else HTML()
    return html("{}<small>{}</small>{}", harmless(task or "average", 60), about, said)


def _checkpoint(scores: Scores, column: Column) -> tuple[HTML, Cell]:
    ticks = html('<small class="ticks" aria-hidden="true"><span>0</span><span>{}</span></small>', f"{scores.scale} %")
    if column.number == BASE:
        head = html("base model<small>of all</small>{}", ticks)
    else:
        count = max(len(r.parts) for (run, step, _), r in scores.by.items() if (run, step) == (column.run, column.step))
        step = f"{column.step_name}, {count} seeds" if count > 1 else column.step_name
        head = html("{}{}<small>{}</small>{}", dot(column.number), run_name(column.run, 24), step, ticks)
    is_last = column in scores.lasts

    def cell(task: str) -> HTML | str:
        value = scores.value(column, task)
        if value is None:
            return NONE
        result = scores.by.get((column.run, column.step, task))
        apart, place = HTML(), (column.run, task)
        if is_last:
            found = ("change", scores.changes.get(place)), ("difference", scores.against.get(place))
            apart = join(_difference(name, each) for name, each in found if each)
        if result is None:
            return html("<b>{}</b>{}{}", percent(value), _bar(value, None, scores, column), apart)
        metric, vote = result.metrics["pass@1"], HTML()
        if result.vote:
            majority = result.metrics[result.vote]
            template = '<small class="vote">{} {} ({})</small>'
            vote = html(template, result.vote, percent(majority["value"]), score_text.span(majority))
        return html(
            '<b>{}</b><small>{}</small><span class="sr"> ({})</span>{}{}{}',
            *(percent(value), score_text.plus_minus(metric), score_text.span(metric)),
            *(_bar(value, metric["interval"], scores, column), vote, apart),
        )

    return head, cell


def _bar(value: float, interval: Sequence[float] | None, scores: Scores, column: Column) -> HTML:
    share = lambda each: min(max(100 * 100 * each / scores.scale, 0), 100)  # noqa: E731
    line = HTML()
    if interval is not None:
        low, high = map(share, interval)
        line = html('<i class="reach" style="left:{:.1f}%;width:{:.1f}%"></i>', low, max(high - low, 0.5))
    return html(
        '<span class="scale" style="--shade:var(--{})"><i style="width:{:.1f}%"></i>{}</span>',
        *(column.shade, share(value), line),
    )


def _difference(name: str, found: Change) -> HTML:
    """Write how far a run's last column is from its start, or from the configuration that it is compared with."""
    low, high = points(found.low), points(found.high)
    return html(
        '<span class="against" title="{0}"><small>{1}</small> <b class="{2}">{3}</b> <small>{4} to {5}</small>'
        '<span class="sr">: {0}</span></span>',
        *(attribute(found.sentence, 300), name, found.verdict, points(found.difference), low, high),
    )
