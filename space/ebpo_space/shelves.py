"""The panels of metrics: which there are, in which order, and the lines of each."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np

from openrlhf_ebpo.run.catalogue import ESTIMATOR, GROUPS, HELD_OUT, Metric, Shown, find
from openrlhf_ebpo.run.own_metrics import COLUMNS

from . import results, seeds
from .errors import RunError
from .lines import Line, bold, line_panel
from .metrics import AXES, Metrics, positions
from .text import middle_cut, plain
from .workspace import Opened

DRAWN = "Faint: every step. Bold: the moving mean."
FIRST = ("Outcome", ESTIMATOR)  # what a visitor wants to know stands on the first screen
OTHERS = 12  # panels of metrics that the catalogue does not know; "More metrics" has all of them
TITLE = 120  # characters
LONGEST = 300  # characters of a name that gets one of them: as many as a link takes
OTHER_NOTE = "Logged by code of your own, or by a later OpenRLHF."

SPEED = (
    ("clock", "Seconds a step", "from one step to the next by the clock, with saving and evaluating"),
    ("tokens", "Tokens a second", "of responses, by the clock: what counts for a budget"),
    ("generation", "Tokens a second in generation", "of responses, by vLLM’s share of the step"),
)


def sections(runs: Sequence[Opened], view: dict) -> list[dict]:
    """Make all panels that at least one run has values for, each once: asked-for metrics first, unknown ones last."""
    names = dict.fromkeys(name for run in runs for name in run.metrics.columns)
    own = {name: metric for run in reversed(runs) for name, metric in run.own_metrics.items()}
    asked = [described(name, own) for name in view["more"] if name in names]
    others = [described(name, own) for name in _unknown(names, own) if name not in view["more"]]
    rest = f" {len(others) - OTHERS} more are among “More metrics”." if len(others) > OTHERS else ""
    shelves = [
        ("Chosen metrics", "", asked),
        *((each.title, each.note, _at_first(each.metrics, view["more"])) for each in in_order()),
        ("Other", OTHER_NOTE + rest, others[:OTHERS]),
    ]
    found = [
        {"title": title, "note": note, "panels": [panel for each in metrics if (panel := _panel(runs, view, each))]}
        for title, note, metrics in shelves
    ]
    shown = [section for section in found if section["panels"]]
    drawn = f"{DRAWN} {said}" if (said := _seeds_said(runs, view)) else DRAWN
    return [{**section, "note": section["note"] or drawn} if section is shown[0] else section for section in shown]


def _seeds_said(runs: Sequence[Opened], view: dict) -> str:
    sizes = {len(group) for group in seeds.grouped(runs)} - {1} if view["seeds"] == "mean" else set()
    return (
        f"Seeds of one configuration: their mean; {', '.join(seeds.spread_words(n) for n in sorted(sizes))}."
        if sizes
        else ""
    )


def in_order() -> list:
    """Sections of the catalogue: first those on the first screen."""
    return sorted(GROUPS, key=lambda group: FIRST.index(group.title) if group.title in FIRST else len(FIRST))


def described(name: str, own: Mapping[str, Metric]) -> Metric:
    """Describe a metric: by the catalogue, by a run that logs it, or its name alone."""
    found = find(name) or own.get(name) or Metric(name, name, "", "")
    return found if found.name == name else replace(found, name=name, title=name)


def _unknown(names: Collection[str], own: Mapping[str, Metric]) -> list[str]:
    """Names that the catalogue does not have; first those that a run describes."""
    in_order = dict.fromkeys((*(name for name in own if name in names), *sorted(names)))
    return [name for name in in_order if name not in COLUMNS and len(name) <= LONGEST and not find(name)]


def _at_first(metrics: Sequence[Metric], asked: Sequence[str]) -> list[Metric]:
    return [metric for metric in metrics if Shown.SPACE in metric.shown and metric.name not in asked]


def zoomed(view: dict) -> tuple[float, float] | None:
    """The part of the x axis that is looked at."""
    low, _, high = view["zoom"].partition(":")
    return (float(low), float(high)) if high else None


def _panel(runs: Sequence[Opened], view: dict, metric: Metric) -> dict | None:
    share = 0 if metric.name == HELD_OUT else view["smooth"]
    lines = _lines(runs, metric, view, share)
    if not lines:
        return None
    return line_panel(
        metric.name,
        plain(middle_cut(metric.title, TITLE)),
        lines,
        unit=AXES[view["x"]],
        share=share,
        log=view["log"],
        note=plain(" · ".join(filter(None, (metric.tells, metric.unit)))),
        worry=plain(metric.worry),
        zoom=zoomed(view),
    )


Series = tuple[np.ndarray, np.ndarray, np.ndarray]  # steps, values, steps without a number


def _series(run: Opened, metric: Metric) -> Series:
    if metric.name == HELD_OUT:
        steps, values = _held_out(run)
        return steps, values, steps[:0]
    name = metric.name
    if metric.stand_in and not len(run.metrics.series(name)[0]):
        name = metric.stand_in
    return (*run.metrics.series(name), run.metrics.undefined(name))


def _lines(runs: Sequence[Opened], metric: Metric, view: dict, share: float) -> list[Line]:
    """One for each run; for seeds of one configuration their mean with its band, unless each is asked for."""
    lines = []
    for group in seeds.grouped(runs) if view["seeds"] == "mean" else [[run] for run in runs]:
        found = [(run, series) for run in group if len((series := _series(run, metric))[0])]
        mean = _mean(found, view, share) if len(found) > 1 else None
        lines += [mean] if mean else [_line(run, series, view) for run, series in found]
    return lines


def _line(run: Opened, series: Series, view: dict) -> Line:
    steps, values, lost = series
    along, without = (positions(run.metrics, each, view["x"]) for each in (steps, lost))
    return Line(run.run.key, run.run.number, along, values, lost=without)


def _mean(found: Sequence[tuple[Opened, Series]], view: dict, share: float) -> Line | None:
    """The band is that of the moving means, which are what one looks at."""
    moving = [bold(_line(run, series, {**view, "x": "step"}), share) for run, series in found]
    band, (first, *_) = seeds.band(moving), (run for run, _ in found)
    if band is None:
        return None
    name = seeds.name([run.run.key for run, _ in found])
    along = positions(first.metrics, band.steps, view["x"])
    return Line(name, first.run.number, along, band.mean, band=(band.low, band.high))


def _held_out(run: Opened) -> tuple[np.ndarray, np.ndarray]:
    """Evaluation during training (the mean over data sets), or the saved results of eval/ (the mean over tasks)."""
    found = run.metrics.held_out()
    return found if len(found[0]) else _saved_results(run)


def _saved_results(run: Opened) -> tuple[np.ndarray, np.ndarray]:
    try:
        found, _ = results.find(run.run)
    except RunError:
        found = []
    shown = results.largest_protocol(found)
    tasks = {result.task for result in found if result.protocol == shown}
    by_step: dict[int, list[float]] = {}
    for result in found:
        if result.protocol == shown and "pass@1" in result.metrics:
            by_step.setdefault(result.step, []).append(result.metrics["pass@1"]["value"])
    whole = sorted(step for step, values in by_step.items() if len(values) == len(tasks))
    return np.array(whole, int), np.array([np.mean(by_step[step]) for step in whole])


def clock(metrics: Metrics) -> np.ndarray:
    """Seconds from the step before to this one, by the clock; NaN where a step or its time is missing."""
    time = metrics.columns.get("time")
    if time is None:
        return np.full(len(metrics.steps), np.nan)
    between = np.diff(time, prepend=np.nan)
    following = np.diff(metrics.steps, prepend=-1) == 1
    return np.where(following & (between > 0), between, np.nan)


def speeds(metrics: Metrics) -> dict[str, np.ndarray]:
    """A value for each step, by the panels' names; NaN where unknown."""
    unknown = np.full(len(metrics.steps), np.nan)
    length = metrics.columns.get("rollout/response_length_mean", metrics.columns.get("response_length", unknown))
    tokens, seconds = length * metrics.columns.get("rollout/num_samples", unknown), clock(metrics)
    generation = metrics.columns.get("timing/generation", unknown)
    return {
        "clock": seconds,
        "tokens": tokens / np.where(seconds > 0, seconds, np.nan),
        "generation": tokens / np.where(generation > 0, generation, np.nan),
    }


def speed_section(runs: Sequence[tuple[str, int, Metrics]], axis: Callable, unit: str, share: float, log: bool) -> dict:
    """Panels over all runs. runs: (key, number, metrics); axis: (metrics, steps) -> places on the x axis."""
    found = [(key, shade, metrics, speeds(metrics)) for key, shade, metrics in runs]
    panels = []
    for name, title, note in SPEED:
        lines = [_speed_line(key, shade, metrics, known[name], axis) for key, shade, metrics, known in found]
        if lines := [line for line in lines if len(line.x)]:
            panels.append(line_panel(f"system-{name}", title, lines, unit=unit, share=share, log=log, note=note))
    return {"title": "Speed", "note": "", "panels": panels}


def _speed_line(key: str, shade: int, metrics: Metrics, values: np.ndarray, axis: Callable) -> Line:
    known = np.isfinite(values)
    return Line(key, shade, axis(metrics, metrics.steps[known]), values[known])
