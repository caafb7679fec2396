"""The outcome of a run from its start to its end, with an interval, and its peak if it fell from there. numpy alone.

Measured on held-out questions if there are evaluations, else by the training reward.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from openrlhf_ebpo.run.score_text import percent, points

from . import results
from .errors import RunError
from .metrics import Metrics
from .paired import change
from .results import Result
from .runs import Run
from .seeds import t_quantile
from .text import middle_cut

PART, FEWEST = 10, 5  # a part of the run is a tenth, of five steps or more
SLOWEST = 0.97  # correlation from step to step that is believed: beyond, a run is one long swing


@dataclass(frozen=True)
class Peak:
    """The best point between start and end, from which a run fell by more than chance explains.

    low, high: 95 % interval of the fall (end minus peak), widened for the choice of the best point (Bonferroni). at: in words.
    """

    at: str
    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Outcome:
    """From `first` to `last`, fractions if `is_share`; low and high: 95 % interval of the difference, None if unknown.
    what: what was measured, in words; how: how the interval was made; peak: None if the end is about as good as any step."""

    what: str
    first: float
    last: float
    low: float | None
    high: float | None
    how: str
    is_share: bool
    peak: Peak | None = None

    @property
    def verdict(self) -> str:
        if self.low is None:
            return "unsure"
        if self.peak:
            return "fell"
        return "better" if self.low > 0 else "worse" if self.high < 0 else "open"

    @property
    def difference(self) -> str:
        return self.written(self.last - self.first, signed=True)

    @property
    def interval(self) -> str:
        if self.low is None:
            return ""
        low, high = (self.written(end, signed=True).removesuffix(" points") for end in (self.low, self.high))
        return f"95% CI {low} to {high}"

    def written(self, value: float, signed: bool = False) -> str:
        if self.is_share:
            return f"{points(value)} points" if signed else f"{percent(value)} %"
        return f"{value:+.3g}".replace("-", "−") if signed else f"{value:.3g}".replace("-", "−")


def outcome(run: Run, metrics: Metrics, rewards: tuple[float, float]) -> tuple[Outcome | None, list[str]]:
    """The best known of a run, None without steps and evaluations; and what could not be read."""
    try:
        found, problems = results.find(run)
        evaluated = _evaluated(run, found)
    except RunError as error:
        evaluated, problems = None, [str(error)]
    return evaluated or _logged(metrics) or _trained(metrics, rewards), problems


def _evaluated(run: Run, found: Sequence[Result]) -> Outcome | None:
    """pass@1 of the first and the last checkpoint that were asked all tasks that both were asked, paired by question."""
    protocol = results.largest_protocol(found)
    by = {(each.step, each.task): each for each in found if each.protocol == protocol and "pass@1" in each.metrics}
    steps = sorted({step for step, _ in by})
    tasks = [task for step, task in by if steps and step == steps[0] and (steps[-1], task) in by]
    if len(steps) < 2 or not tasks:
        return None
    ends = [[by[step, task] for task in tasks] for step in (steps[0], steps[-1])]
    first, last = (float(np.mean([each.metrics["pass@1"]["value"] for each in end])) for end in ends)
    try:
        paired = change((run, a, run, b) for a, b in zip(*ends, strict=True))
    except RunError:
        paired = None
    named = middle_cut(tasks[0], 40) if len(tasks) == 1 else f"mean of {len(tasks)} tasks"
    what = f"held-out pass@1, {named}, {'base model' if not steps[0] else f'step {steps[0]:,}'} to step {steps[-1]:,}"
    if paired is None:
        return Outcome(what, first, last, None, None, "its answers cannot be read: no interval", True)
    how = f"paired over {paired.questions:,} questions"
    middle = last - first - paired.difference  # if not all questions are in both
    low, high = paired.low + middle, paired.high + middle
    return Outcome(what, first, last, low, high, how, True, _best_checkpoint(run, by, steps, tasks))


def _best_checkpoint(run: Run, by: dict, steps: Sequence[int], tasks: Sequence[str]) -> Peak | None:
    """The checkpoint between the first and the last with the best mean, if it is above both by more than chance explains."""
    between = [step for step in steps[1:-1] if all((step, task) in by for task in tasks)]
    if not between:
        return None
    means = {step: float(np.mean([by[step, task].metrics["pass@1"]["value"] for task in tasks])) for step in between}
    best = max(means, key=means.get)
    try:
        rise, fall = (
            change((run, by[a, task], run, by[b, task]) for task in tasks)
            for a, b in ((steps[0], best), (best, steps[-1]))
        )
    except RunError:
        return None
    if rise is None or fall is None:
        return None
    wider = widened(len(between))
    low, high = (fall.difference + wider * (end - fall.difference) for end in (fall.low, fall.high))
    rises = rise.difference + wider * (rise.low - rise.difference) > 0
    return Peak(f"at step {best:,}", means[best], low, high) if rises and high < 0 else None


def widened(choices: int) -> float:
    """Compute how much longer a 95 % interval is if it shall hold for the best of so many points (Bonferroni)."""
    return NormalDist().inv_cdf(1 - 0.025 / max(choices, 1)) / NormalDist().inv_cdf(0.975)


def _logged(metrics: Metrics) -> Outcome | None:
    """Evaluations during training of which no answers are kept: without an interval."""
    steps, values = metrics.held_out()
    if len(steps) < 2:
        return None
    what = f"held-out success during training, step {steps[0]:,} to {steps[-1]:,}"
    return Outcome(what, float(values[0]), float(values[-1]), None, None, "its answers are not kept: no interval", True)


def _trained(metrics: Metrics, rewards: tuple[float, float]) -> Outcome | None:
    """The mean reward of the last tenth of the steps against the first's."""
    steps, values = metrics.rewards()
    if len(values) < 2:
        return None
    size = part(len(values))
    first, last = float(values[:size].mean()), float(values[-size:].mean())
    half = half_width(values, size)
    what = f"training reward, first {size} against last {size} of {len(values):,} steps"
    is_share = rewards == (0.0, 1.0) and values.min() >= 0 and values.max() <= 1
    if half is None:
        return Outcome(what, first, last, None, None, "too few steps for an interval", is_share)
    low, high = last - first - half, last - first + half
    peak = _best_part(steps, values, size, half)
    return Outcome(what, first, last, low, high, "over steps, allowing for autocorrelation", is_share, peak)


def _best_part(steps: np.ndarray, values: np.ndarray, size: int, half: float) -> Peak | None:
    """The best `size` steps between the first and the last ones, if above both by more than chance explains."""
    if len(values) < 4 * size:
        return None
    means = np.convolve(values, np.full(size, 1 / size), "valid")
    best = size + int(means[size:-size].argmax())
    half *= widened(len(values) // size - 2)
    if means[best] - half <= means[0] or means[best] - half <= means[-1]:
        return None
    at = f"in steps {int(steps[best]):,} to {int(steps[best + size - 1]):,}"
    fall = float(means[-1] - means[best])
    return Peak(at, float(means[best]), fall - half, fall + half)


def part(count: int) -> int:
    """A tenth of so many steps, not less than five, and not more than half."""
    return max(min(max(count // PART, FEWEST), count // 2), 1)


def half_width(values: np.ndarray, size: int) -> float | None:
    """Half of the 95 % interval of the difference of two means of `size` steps; None where too few steps tell their noise.

    Steps are correlated, so the mean of m varies more than its steps say. Within parts of `size` steps the deviations from the
    part's mean give an autoregression of order 1 (as Andrews and Monahan 1992 whiten before a kernel is used), its
    coefficient corrected for the short parts (Kendall 1954). In simulations of 60 and more steps this covers 85 to 98 % up to a
    correlation of 0.6; Newey and West's estimator covers 70 to 99 %.
    """
    parts = np.array_split(values, len(values) // size)
    deviations = [each - each.mean() for each in parts]
    squares = sum(float((each**2).sum()) for each in deviations)
    freedom = len(values) - len(parts)
    if size < 3 or freedom < 4:
        return None
    rho = sum(float((each[1:] * each[:-1]).sum()) for each in deviations) / squares if squares > 0 else 0.0
    rho = min(max(rho + (1 + 3 * rho) / size, 0.0), SLOWEST)
    lags = np.arange(1, size)
    of_mean = squares / freedom * (1 + 2 * float(((1 - lags / size) * rho**lags).sum())) / size
    return t_quantile(max(freedom * (1 - rho) / (1 + rho), 1.0)) * (2 * of_mean) ** 0.5
