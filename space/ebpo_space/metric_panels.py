"""The panels of metrics: which there are, in which order, and the lines of each."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import replace
from urllib.parse import quote, urlencode

import numpy as np

from openrlhf_ebpo.run.catalogue import ESTIMATOR, GROUPS, HELD_OUT, NOT_METRICS, Metric, Shown, find

from . import seeds
from .lines import Axes, Line, bold, line_panel
from .metrics import AXES, Metrics, positions
from .workspace import LoadedRun

DRAWN = "Faint: every step, which the pointer reads. Bold: the moving mean."
FIRST = ("Outcome", ESTIMATOR)  # what a visitor wants to know stands on the first screen
MAX_MORE = 12  # panels of metrics that the catalogue does not know; the filter finds all of them
MAX_FOUND = 48  # panels that the filter shows
FORMULA = tuple("=+-@＝＋－＠'\t ")  # a spreadsheet runs a cell that begins with one of these
MAX_NAME_CHARS = 300  # of a name that gets one of them: as many as a link takes
# a run may log a metric called speed
SPEED = Metric("tokens a second", "Tokens a second", "", "by the clock: depends on the machine and its load")
MORE_NOTE = "Logged by custom code, or by a later OpenRLHF."


def sections(runs: Sequence[LoadedRun], view: dict) -> tuple[list[dict], list[str]]:
    """Make the panels that at least one run has values for, each once, unknown ones last; or those that the view's
    filter finds. A section of one panel joins the one before.

    Returns:
        the sections; titles of metrics that are 0 at every step, which have no panel but by the filter.
    """
    wanted, found, zeros = view["metric"].strip(), [], []
    keys = ",".join(quote(run.run.key, safe="") for run in runs)
    names = sorted({name for run in runs for name in run.metrics.columns} - {*NOT_METRICS})
    for title, note, metrics in _shelves(names, wanted):
        drawn = [(metric, lines) for metric in metrics if (lines := _lines(runs, metric, view))]
        if not wanted:
            zeros += [metric.title for metric, lines in drawn if not any(line.y.any() for line in lines)]
            drawn = [(metric, lines) for metric, lines in drawn if any(line.y.any() for line in lines)]
        panels = []
        for metric, lines in drawn:
            csv_of = urlencode({"metric": metric.name, "runs": keys})
            axes = Axes(AXES[view["x"]], _share(metric, view), view["log"], zoom_range(view), view["whole"])
            panels.append(line_panel(metric, lines, axes) | {"csv": f"./space/panel.csv?{csv_of}"})
        if len(panels) == 1 and found:
            found[-1]["title"] += f" · {title}"
            found[-1]["note"] = " ".join(filter(None, (found[-1]["note"], note)))
            found[-1]["panels"] += panels
        elif panels:
            found.append({"title": title, "note": note, "panels": panels})
    if found:
        sizes = {len(group) for group in seeds.group_by_configuration(runs)} - {1} if view["seeds"] == "mean" else set()
        bands = ("from the lower to the higher" if n == 2 else "95 % t-interval of the mean" for n in sorted(sizes))
        said = f" Seeds of one configuration: their mean; band: {', '.join(dict.fromkeys(bands))}." if sizes else ""
        found[0]["note"] = f"{DRAWN}{said} {found[0]['note']}".strip()
    return found, zeros


def _shelves(names: Sequence[str], wanted: str) -> Iterator[tuple[str, str, list[Metric]]]:
    """Yield title, note and metrics of each section: those of the catalogue, then what a run logs besides; or, if
    words are wanted, the metrics with any of them in name or title, the one of exactly this name first."""
    every = [describe_metric(name) for name in names]
    if wanted:
        words = wanted.lower().split()
        fit = [m for m in (*every, SPEED) if m.name == wanted or any(w in f"{m.name} {m.title}".lower() for w in words)]
        yield f"Metrics with “{wanted[:60]}”", "", sorted(fit, key=lambda metric: metric.name != wanted)[:MAX_FOUND]
        return
    for group in sorted(GROUPS, key=lambda group: FIRST.index(group.title) if group.title in FIRST else len(FIRST)):
        yield group.title, group.note, [metric for metric in group.metrics if Shown.SPACE in metric.shown]
    more = [metric for metric in every if len(metric.name) <= MAX_NAME_CHARS and not find(metric.name)]
    rest = f" {len(more) - MAX_MORE} others are found by their names." if len(more) > MAX_MORE else ""
    yield "More metrics", MORE_NOTE + rest, more[:MAX_MORE]
    yield "Speed", "", [SPEED]


def describe_metric(name: str) -> Metric:
    """Describe a metric by the catalogue, or its name alone."""
    found = find(name) or Metric(name, name)
    return found if found.name == name else replace(found, name=name, title=name)


def zoom_range(view: dict) -> tuple[float, float] | None:
    """Return the part of the x axis that is looked at."""
    low, _, high = view["zoom"].partition(":")
    return (float(low), float(high)) if high else None


def _share(metric: Metric, view: dict) -> float:
    return 0.0 if metric.name == HELD_OUT else view["smooth"]  # evaluations are few


def panel_csv(runs: Sequence[LoadedRun], name: str) -> str:
    """Write every value of a metric: a row for each step, a column for each run."""
    metric = SPEED if name == SPEED.name else describe_metric(name)
    columns = [dict(zip(*(each.tolist() for each in _series(run, metric)), strict=True)) for run in runs]
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(["step", *(f"'{run.run.key}" if run.run.key[:1] in FORMULA else run.run.key for run in runs)])
    rows.writerows([step, *(column.get(step, "") for column in columns)] for step in sorted(set().union(*columns)))
    return text.getvalue()


Series = tuple[np.ndarray, np.ndarray]  # steps, values


def _series(run: LoadedRun, metric: Metric) -> Series:
    if metric.name == HELD_OUT:
        return run.metrics.held_out()
    if metric is SPEED:
        values = tokens_per_second(run.metrics)
        known = np.isfinite(values)
        return run.metrics.steps[known], values[known]
    found = run.metrics.series(metric.name)
    return run.metrics.series(metric.stand_in) if metric.stand_in and not len(found[0]) else found


def _lines(runs: Sequence[LoadedRun], metric: Metric, view: dict) -> list[Line]:
    """Make a line for each run; for seeds of one configuration their mean with its band, unless each is asked for."""
    lines = []
    for group in seeds.group_by_configuration(runs) if view["seeds"] == "mean" else [[run] for run in runs]:
        found = [(run, series) for run in group if len((series := _series(run, metric))[0])]
        mean = _mean(found, view, _share(metric, view)) if len(found) > 1 else None
        lines += [mean] if mean else [_line(run, series, view) for run, series in found]
    return lines


def _line(run: LoadedRun, series: Series, view: dict) -> Line:
    steps, values = series
    return Line(run.run.key, run.run.number, positions(run.metrics, steps, view["x"]), values)


def _mean(found: Sequence[tuple[LoadedRun, Series]], view: dict, share: float) -> Line | None:
    """The band is that of the moving means, which are what one looks at."""
    moving = [bold(_line(run, series, {**view, "x": "step"}), share) for run, series in found]
    if not (band := seeds.band(moving)):
        return None
    (steps, mean, *ends), first = band, found[0][0]
    name = seeds.name([run.run.key for run, _ in found])
    return Line(name, first.run.number, positions(first.metrics, steps, view["x"]), mean, band=tuple(ends))


def tokens_per_second(metrics: Metrics) -> np.ndarray:
    """Return tokens of responses a second at each step, by the clock, with saving and evaluating; NaN where it, the
    step before or its time is missing."""
    unknown = np.full(len(metrics.steps), np.nan)
    length = metrics.columns.get("rollout/response_length_mean", metrics.columns.get("response_length", unknown))
    seconds = np.diff(metrics.columns.get("time", unknown), prepend=np.nan)
    follows = np.diff(metrics.steps, prepend=-1) == 1
    tokens = length * metrics.columns.get("rollout/num_samples", unknown)
    return tokens / np.where(follows & (seconds > 0), seconds, np.nan)
