"""The outcome of a run from its start to its end, with an interval, and its peak if it fell from there. numpy alone.

Measured on held-out questions if there are evaluations, else by the training reward.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from openrlhf_ebpo.eval.differences import of_steps, widening

from . import change, results
from .change import PEAK, Change, over_questions, sudden_fall, window
from .errors import RunError
from .metrics import Metrics
from .results import Result
from .runs import Run
from .text import middle_cut
from .workspace import LoadedRun

TRAINING_REWARD = "training reward"
FEWEST_AT_PEAK = 3  # steps whose mean is a peak


@dataclass(frozen=True)
class Peak:
    """The best point between start and end, from which a run fell by more than noise explains. at: as text; fall: from
    there to the end, its interval widening for the choice of the best point; best: the best single step, as text."""

    at: str
    value: float
    fall: Change
    best: str = ""


@dataclass(frozen=True)
class Outcome:
    """From `first` to `last`, fractions if `is_share`. what: what was measured, as text; change: None if its
    interval is unknown, and `how` gives the reason; peak: None if the end is about as good as any step."""

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
        return self.format(self.last - self.first, signed=True)

    def format(self, value: float, signed: bool = False) -> str:
        return change.format_value(value, self.is_share, signed)


def outcome(run: LoadedRun) -> tuple[Outcome | None, list[str]]:
    """Measure a run by the best means known, None without steps and evaluations; and list what could not be read."""
    evaluations, problems = results.find(run.run)
    return _evaluated(run.run, evaluations) or _logged(run.metrics) or _trained(run), problems


def held_out(evaluations: Sequence[Result]) -> tuple[list[str], dict[int, float]]:
    """Find the tasks that the first and the last step have, and the mean of their pass@1 at every step that has all."""
    by = results.scores(evaluations)
    steps = sorted({step for step, _ in by})
    tasks = [task for step, task in by if step == steps[0] and (steps[-1], task) in by]
    complete = [step for step in steps if tasks and all((step, task) in by for task in tasks)]
    value = lambda step, task: by[step, task].metrics["pass@1"]["value"]  # noqa: E731
    return tasks, {step: float(np.mean([value(step, task) for task in tasks])) for step in complete}


def read_held_out(run: Run) -> tuple[np.ndarray, np.ndarray]:
    """Return steps and `held_out` of a run's evaluations."""
    _, means = held_out(results.find(run)[0])
    return np.array(list(means), int), np.array(list(means.values()), float)


def _evaluated(run: Run, evaluations: Sequence[Result]) -> Outcome | None:
    """Compare the first and the last checkpoint, paired by question."""
    tasks, mean = held_out(evaluations)
    if len(mean) < 2:
        return None
    by = results.scores(evaluations)
    first, last = min(mean), max(mean)
    named = middle_cut(tasks[0], 40) if len(tasks) == 1 else f"mean of {len(tasks)} tasks"
    what = f"held-out pass@1, {named}, {f'step {first:,}' if first else 'base model'} to step {last:,}"

    def between(a: int, b: int) -> Change | None:
        return over_questions((run, by[a, task], run, by[b, task]) for task in tasks)

    try:
        paired = between(first, last)
        peak = _best_checkpoint(mean, between) if paired else None
    except RunError:
        paired, peak = None, None
    how = f"paired over {paired.over}" if paired else "its answers cannot be read: no interval"
    return Outcome(what, mean[first], mean[last], paired, how, True, peak)


def _best_checkpoint(mean: dict[int, float], between) -> Peak | None:
    """Find the checkpoint between the first and the last with the best mean, if it is above both by more than chance
    explains."""
    first, *others, last = mean
    if not others:
        return None
    best = max(others, key=mean.get)
    rise, fall = between(first, best), between(best, last)
    if rise is None or fall is None:
        return None
    wider = widening(len(others))
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
    """Return rewards as shares of the way from fail to pass, if all are on it; else as they are."""
    fail, passing = rewards
    on_it = passing > fail and values.size > 0 and values.min() >= fail and values.max() <= passing
    return ((values - fail) / (passing - fail), True) if on_it else (values, False)


def _trained(run: LoadedRun) -> Outcome | None:
    """Compare the mean reward of the last tenth of the steps against the first's."""
    steps, values = run.metrics.rewards()
    if len(values) < 2:
        return None
    values, is_share = shares(values, run.rewards)
    size = window(len(values))
    first, last = float(values[:size].mean()), float(values[-size:].mean())
    half = of_steps(values, size)
    what = f"{TRAINING_REWARD}, first {size} against last {size} of {len(values):,} steps"
    if half is None:
        return Outcome(what, first, last, None, "too few steps for an interval", is_share)
    over = "noise: that between successive steps"
    low, high = _possible(last - half, last + half, is_share)
    found = Change(last - first, low - first, high - first, over, is_share)
    peak = _best_window(steps, values, is_share)
    asked_at, prompts = run.prompts
    fall = None
    if peak is None and is_share and found.verdict != "worse" and np.isin(steps, asked_at).all():
        fall = sudden_fall(values, prompts[np.searchsorted(asked_at, steps)])
    if fall:
        apart = Change(fall.end - fall.peak, max(fall.low, -1.0), fall.high, "prompts: two proportions")
        at = f"in steps {int(steps[fall.start]):,} to {int(steps[fall.start + PEAK - 1]):,}"
        peak = Peak(at, fall.peak, apart)
    return Outcome(what, first, last, found, over, is_share, peak)


def _possible(low: float, high: float, is_share: bool) -> tuple[float, float]:
    """No share is below 0 or above 100 %."""
    return (max(low, 0.0), min(high, 1.0)) if is_share else (low, high)


def _best_window(steps: np.ndarray, values: np.ndarray, is_share: bool) -> Peak | None:
    """Find the best steps between the first and the last ones, if above both by more than noise explains."""
    size = max(min(window(len(values)), len(values) // 4), FEWEST_AT_PEAK)
    if len(values) < 4 * size:
        return None
    means = np.convolve(values, np.full(size, 1 / size), "valid")
    best = size + int(means[size:-size].argmax())
    half = of_steps(values, size) * widening(len(means) - 2 * size)
    peak, last = float(means[best]), float(means[-1])
    if peak - half <= means[0] or peak - half <= last:
        return None
    low, high = _possible(last - half, last + half, is_share)
    top = best + int(values[best : best + size].argmax())
    return Peak(
        f"in steps {int(steps[best]):,} to {int(steps[best + size - 1]):,}",
        peak,
        Change(last - peak, low - peak, high - peak, "noise: that between successive steps", is_share),
        f"best step {int(steps[top]):,}: {change.format_value(float(values[top]), is_share)}",
    )
