"""The outcome of a run from its start to its end, with an interval, and its peak if it fell from there. numpy alone.

Measured on held-out questions if there are evaluations, else by the training reward.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from . import change, results
from .change import Change, half_width, over_questions, widened, window
from .errors import RunError
from .metrics import Metrics
from .results import Result
from .runs import Run
from .text import middle_cut

FEWEST_AT_PEAK = 3  # steps whose mean is a peak


@dataclass(frozen=True)
class Peak:
    """The best point between start and end, from which a run fell by more than noise explains. at: in words; fall: from
    there to the end, its interval widened for the choice of the best point; best: the best single step, in words."""

    at: str
    value: float
    fall: Change
    best: str = ""


@dataclass(frozen=True)
class Outcome:
    """From `first` to `last`, fractions if `is_share`. what: what was measured, in words; change: None if its
    interval is not known, and `how` says why; peak: None if the end is about as good as any step."""

    what: str
    first: float
    last: float
    change: Change | None
    how: str
    is_share: bool
    peak: Peak | None = None

    @property
    def verdict(self) -> str:
        if self.change is None:
            return "unsure"
        return "fell" if self.peak else self.change.verdict

    @property
    def difference(self) -> str:
        return self.written(self.last - self.first, signed=True)

    def written(self, value: float, signed: bool = False) -> str:
        return change.written(value, self.is_share, signed)


def outcome(run: Run, metrics: Metrics, rewards: tuple[float, float]) -> tuple[Outcome | None, list[str]]:
    """The best known of a run, None without steps and evaluations; and what could not be read."""
    try:
        found, problems = results.find(run)
        evaluated = _evaluated(run, found)
    except RunError as error:
        evaluated, problems = None, [str(error)]
    return evaluated or _logged(metrics) or _trained(metrics, rewards), problems


def evaluated(run: Run) -> tuple[np.ndarray, np.ndarray]:
    """Steps, and the mean of pass@1 over the tasks that all of them have."""
    try:
        by = results.scores(results.find(run)[0])
    except RunError:
        by = {}
    steps = sorted({step for step, _ in by})
    tasks = [task for task in {task for _, task in by} if all((step, task) in by for step in steps)]
    if not tasks:
        return np.zeros(0, int), np.zeros(0)
    means = [np.mean([by[step, task].metrics["pass@1"]["value"] for task in tasks]) for step in steps]
    return np.array(steps), np.array(means)


def _evaluated(run: Run, found: Sequence[Result]) -> Outcome | None:
    """pass@1 of the first and the last checkpoint that were asked all tasks that both were asked, paired by
    question."""
    by = results.scores(found)
    steps = sorted({step for step, _ in by})
    tasks = [task for step, task in by if steps and step == steps[0] and (steps[-1], task) in by]
    if len(steps) < 2 or not tasks:
        return None
    mean = {
        step: float(np.mean([by[step, task].metrics["pass@1"]["value"] for task in tasks]))
        for step in steps
        if all((step, task) in by for task in tasks)
    }
    named = middle_cut(tasks[0], 40) if len(tasks) == 1 else f"mean of {len(tasks)} tasks"
    what = f"held-out pass@1, {named}, {'base model' if not steps[0] else f'step {steps[0]:,}'} to step {steps[-1]:,}"

    def between(a: int, b: int) -> Change | None:
        return over_questions((run, by[a, task], run, by[b, task]) for task in tasks)

    first, last = mean[steps[0]], mean[steps[-1]]
    try:
        paired = between(steps[0], steps[-1])
        peak = _best_checkpoint(mean, between) if paired else None
    except RunError:
        paired, peak = None, None
    how = f"paired over {paired.over}" if paired else "its answers cannot be read: no interval"
    return Outcome(what, first, last, paired, how, True, peak)


def _best_checkpoint(mean: dict[int, float], between) -> Peak | None:
    """The checkpoint between the first and the last with the best mean, if it is above both by more than chance
    explains."""
    first, *others, last = mean
    if not others:
        return None
    best = max(others, key=mean.get)
    rise, fall = between(first, best), between(best, last)
    if rise is None or fall is None:
        return None
    wider = widened(len(others))
    low, high = (fall.difference + wider * (end - fall.difference) for end in (fall.low, fall.high))
    if rise.difference + wider * (rise.low - rise.difference) <= 0 or high >= 0:
        return None
    return Peak(f"at step {best:,}", mean[best], Change(fall.difference, max(low, -1), high, fall.over))


def _logged(metrics: Metrics) -> Outcome | None:
    """Evaluations during training of which no answers are kept: without an interval."""
    steps, values = metrics.held_out()
    if len(steps) < 2:
        return None
    what = f"held-out success during training, step {steps[0]:,} to {steps[-1]:,}"
    return Outcome(what, float(values[0]), float(values[-1]), None, "its answers are not kept: no interval", True)


def shares(values: np.ndarray, rewards: tuple[float, float]) -> tuple[np.ndarray, bool]:
    """Rewards as shares of the way from fail to pass, if all are on it; else as they are."""
    fail, passing = rewards
    on_it = passing > fail and len(values) > 0 and values.min() >= fail and values.max() <= passing
    return ((values - fail) / (passing - fail), True) if on_it else (values, False)


def _trained(metrics: Metrics, rewards: tuple[float, float]) -> Outcome | None:
    """The mean reward of the last tenth of the steps against the first's."""
    steps, values = metrics.rewards()
    if len(values) < 2:
        return None
    values, is_share = shares(values, rewards)
    size = window(len(values))
    first, last = float(values[:size].mean()), float(values[-size:].mean())
    half = half_width(values, size)
    what = f"training reward, first {size} against last {size} of {len(values):,} steps"
    if half is None:
        return Outcome(what, first, last, None, "too few steps for an interval", is_share)
    over = "noise: that between successive steps"
    low, high = _possible(last - half, last + half, is_share)
    found = Change(last - first, low - first, high - first, over, is_share)
    return Outcome(what, first, last, found, over, is_share, _best_window(steps, values, is_share))


def _possible(low: float, high: float, is_share: bool) -> tuple[float, float]:
    """No share is below 0 or above 100 %."""
    return (max(low, 0.0), min(high, 1.0)) if is_share else (low, high)


def _best_window(steps: np.ndarray, values: np.ndarray, is_share: bool) -> Peak | None:
    """The best steps between the first and the last ones, if above both by more than noise explains."""
    size = max(min(window(len(values)), len(values) // 4), FEWEST_AT_PEAK)
    if len(values) < 4 * size:
        return None
    means = np.convolve(values, np.full(size, 1 / size), "valid")
    best = size + int(means[size:-size].argmax())
    half = half_width(values, size) * widened(len(means) - 2 * size)
    peak, last = float(means[best]), float(means[-1])
    if peak - half <= means[0] or peak - half <= last:
        return None
    low, high = _possible(last - half, last + half, is_share)
    top = best + int(values[best : best + size].argmax())
    return Peak(
        f"in steps {int(steps[best]):,} to {int(steps[best + size - 1]):,}",
        peak,
        Change(last - peak, low - peak, high - peak, "noise: that between successive steps", is_share),
        f"best step {int(steps[top]):,}: {change.written(float(values[top]), is_share)}",
    )
