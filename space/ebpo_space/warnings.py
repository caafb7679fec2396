"""Find signs of trouble in a run's metrics, and the step where each begins. Pure; warnings.json has the rules and all
thresholds.

A warning should be worth a click. So each rule wants more than one odd number, or a very odd one, and the thresholds
are wide of what trainings that went well have shown: their entropy fell to a half, KL per step reached 0.05 nats for a
step, a gradient norm three times its usual size.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from openrlhf_ebpo.run.catalogue import HELD_OUT

from .change import sudden_fall
from .metrics import REWARD, Metrics

FEWEST, FAR = 10, 8  # steps that define the usual value before a spike; standard deviations
SOLVED = 0.9  # share of the reward from which a low entropy is not a loss: nothing is left to explore
NOISE = 4  # standard errors
RISE = 0.1  # of the reward, as a share of the way from fail to pass
PROMPTS = "prompts"  # of each step
COPIED = "copied_answers"  # share of passing answers that are one text: measured in rollouts, not logged


class Series(NamedTuple):
    """One metric, without gaps. reward: the mean reward of the ten steps up to each (`of_short`), as a share from fail
    to pass, NaN where unknown. draws: prompts of each step, 0 where unknown."""

    steps: np.ndarray
    values: np.ndarray
    reward: np.ndarray
    draws: np.ndarray


@dataclass(frozen=True)
class Rule:
    """One kind of trouble.

    Attributes:
        metrics: names; the first that the run has is tested.
        test: name of the function that flags steps (`TESTS`).
        level, window, floor: what it compares with.
        when: the thresholds, as text.
        groups: kind of groups that show it, "" where groups say nothing.
    """

    name: str
    title: str
    metrics: tuple[str, ...]
    test: str
    level: float
    window: int
    when: str
    means: str
    groups: str = ""
    floor: float = 0.0


class Warned(NamedTuple):
    """begins, last: the first and the last step that shows it (or is missing), of `count`; worst: the value furthest
    out; lasts: up to the end."""

    rule: Rule
    metric: str
    begins: int
    last: int
    count: int
    worst: float
    lasts: bool

    @property
    def since(self) -> str:
        if self.begins == self.last:
            return f"at step {self.begins:,}"
        if self.lasts:
            return f"since step {self.begins:,}"
        return f"{self.count:,} steps from {self.begins:,} to {self.last:,}"


def above(series: Series, rule: Rule) -> np.ndarray:
    """Flag steps whose absolute value reaches the level, inside any `window` steps whose mean does."""
    values = np.abs(series.values)
    window = min(rule.window, len(values))
    whole = np.convolve(values, np.full(window, 1 / window), "valid") >= rule.level
    return (np.convolve(whole, np.ones(window)) > 0.5) & (values >= rule.level)


def collapsed(series: Series, rule: Rule) -> np.ndarray:
    """Flag where the median of the last `window` steps is at most that share of the first ones', while not all is
    solved."""
    values, window = series.values, rule.window
    if len(values) < 2 * window:
        return np.zeros(len(values), bool)
    medians = np.median(_windows(values, window), axis=1)
    return (medians <= rule.level * medians[window - 1]) & ~(series.reward >= SOLVED)


def spiked(series: Series, rule: Rule) -> np.ndarray:
    """Flag steps of at least `level` times the median of the `window` before, far outside their spread, and at least
    `floor`."""
    values, flags = np.abs(series.values), np.zeros(len(series.values), bool)
    if len(values) <= FEWEST:
        return flags
    before = _windows(values, rule.window)[:-1]  # row i: the steps up to i, of which step i + 1 is held against
    recent = np.median(before[:, -3:], axis=1)  # what grows step by step is not a spike
    leaps = 1 + np.flatnonzero((values[1:] >= rule.level * recent) & (values[1:] >= rule.floor) & (values[1:] > 0))
    usual = np.median(before[leaps - 1], axis=1)  # of these few alone: medians of 20,000 windows take long
    spread = 1.4826 * np.median(np.abs(before[leaps - 1] - usual[:, None]), axis=1)  # the deviation, if it is normal
    usual = np.maximum(usual, recent[leaps - 1])
    far = (values[leaps] >= np.maximum(rule.level * usual, usual + FAR * spread)) & (usual + rule.floor > 0)
    flags[leaps[far & (leaps >= FEWEST)]] = True
    return flags


def stays_at(series: Series, rule: Rule) -> np.ndarray:
    """Flag steps at or below the level for `window` steps one after the other, or in all of fewer."""
    low = series.values <= rule.level
    window = min(rule.window, max(len(low), 3))
    if len(low) < window:
        return np.zeros(len(low), bool)
    begins = np.convolve(low, np.ones(window), "valid") > window - 0.5
    return np.convolve(begins, np.ones(window)) > 0.5


def dropped(series: Series, rule: Rule) -> np.ndarray:
    """Flag where the mean of the last `window` steps is at most that share of the best one before, by more than noise
    between steps; of fewer steps, where one to three fell from the best three (`sudden_fall`)."""
    values, window = series.values, rule.window
    if len(values) < 2 * window:
        ends = range(1, len(values) + 1)
        return np.array([sudden_fall(values[:end], series.draws[:end]) is not None for end in ends], bool)
    means = _trailing(values, window)
    means[: window - 1] = means[window - 1]
    best = np.maximum.accumulate(means)
    noise = np.diff(values).std() / window**0.5  # of the difference of two means
    return (means <= rule.level * best) & (best - means >= NOISE * noise) & (best > 0)


def of_short(steps: int, window: int) -> int:
    """Return a shorter window for a short run: a quarter of it, of three steps or more."""
    return min(window, max(steps // 4, 3))


def drifted(series: Series, rule: Rule) -> np.ndarray:
    """Flag where the mean of `window` steps is that many times the first ones', or that part of it, while the reward
    rises."""
    window = of_short(len(series.values), rule.window)
    if len(series.values) < 2 * window:
        return np.zeros(len(series.values), bool)
    means = _trailing(series.values, window)
    first = means[window - 1]
    far = (means <= first / rule.level) | (means >= first * rule.level)
    return far & (first > 0) & (series.reward - series.reward[0] >= RISE)


def diverged(series: Series, rule: Rule) -> np.ndarray:
    """Flag steps at most at that share of the best value before, by `floor` or more, while the reward has risen since
    that best value."""
    best = np.maximum.accumulate(series.values)
    at = np.array([int(series.values[: i + 1].argmax()) for i in range(len(series.values))], int)
    fell = (series.values <= rule.level * best) & (best - series.values >= rule.floor)
    return fell & (series.reward - series.reward[at] >= RISE)


def skipped(series: Series, rule: Rule) -> np.ndarray:
    """Flag steps before which one is missing."""
    return np.diff(series.steps, prepend=series.steps[:1] - 1) > rule.level


TESTS: Mapping[str, Callable[[Series, Rule], np.ndarray]] = {
    test.__name__: test for test in (above, collapsed, spiked, stays_at, dropped, drifted, diverged, skipped)
}
LOW = ("collapsed", "stays_at", "dropped", "diverged")  # tests whose worst value is the lowest
RULES = tuple(
    Rule(**{**rule, "metrics": tuple(rule["metrics"])})
    for rule in json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
)


def find_warnings(
    metrics: Metrics,
    rewards: tuple[float, float] = (0.0, 1.0),
    measured: Mapping[str, tuple[np.ndarray, np.ndarray]] = MappingProxyType({}),
) -> list[Warned]:
    """List the warnings of a run in order of their first step. rewards: what fails and what passes; measured: steps
    and values of what is not in metrics.jsonl, by name."""
    found = [warned for rule in RULES if (warned := _apply(rule, metrics, rewards, measured))]
    return sorted(found, key=lambda warned: (warned.begins, warned.rule.title))


def _apply(rule: Rule, metrics: Metrics, rewards: tuple[float, float], measured: Mapping) -> Warned | None:
    every = ((name, _series(metrics, name, rewards, measured)) for name in rule.metrics)
    metric, series = next(((name, series) for name, series in every if len(series.steps)), ("", None))
    if series is None:
        return None
    with np.errstate(all="ignore"):  # a run may hold 1e308
        flags = TESTS[rule.test](series, rule)
    if not flags.any():
        return None
    if rule.test == "skipped":  # the missing steps are counted, not those after them
        after = np.flatnonzero(flags)
        first, last = series.steps[after - 1] + 1, series.steps[after] - 1
        count = int((last - first + 1).sum())
        return Warned(rule, "step", int(first[0]), int(last[-1]), count, float(last[-1]), False)
    steps, values = series.steps[flags], series.values[flags]
    worst = values.min() if rule.test in LOW else values[np.abs(values).argmax()]
    lasts = rule.test != "spiked" and bool(flags[-rule.window :].any())
    return Warned(rule, metric, int(steps[0]), int(steps[-1]), len(steps), float(worst), lasts)


def _series(metrics: Metrics, name: str, rewards: tuple[float, float], measured: Mapping) -> Series:
    """Rewards as shares from fail to pass, so that a scheme of ±1 has the same thresholds."""
    fail, span = rewards[0], (rewards[1] - rewards[0]) or 1.0
    if name == "step":
        steps, values = metrics.steps, metrics.steps.astype(float)
    elif name in measured:
        steps, values = measured[name]
    else:
        steps, values = metrics.held_out() if name == HELD_OUT else metrics.series(name)
    logged, reward = metrics.rewards()
    window = of_short(len(logged), 10)
    through = np.maximum(np.searchsorted(logged, steps, "right"), min(window, len(logged)))
    sums = np.concatenate([[0.0], np.cumsum(reward, dtype=np.longdouble)])
    with np.errstate(all="ignore"):
        means = ((sums[through] - sums[np.maximum(through - window, 0)]) / np.minimum(through, window)).astype(float)
    at, prompts = measured.get(PROMPTS, (steps[:0], np.zeros(0)))
    draws = np.zeros(len(steps))
    _, here, there = np.intersect1d(steps, at, return_indices=True)
    draws[here] = prompts[there]
    return Series(steps, (values - fail) / span if name in REWARD else values, (means - fail) / span, draws)


def _trailing(values: np.ndarray, window: int) -> np.ndarray:
    """Return the mean of each step and those before it, NaN before the first complete window."""
    means = np.full(len(values), np.nan)
    means[window - 1 :] = np.convolve(values, np.full(window, 1 / window), "valid")
    return means


def _windows(values: np.ndarray, window: int) -> np.ndarray:
    """Return (N, window): each step and those before it; the first rows begin with the first value."""
    padded = np.concatenate([np.full(window - 1, values[0]), values])
    return np.lib.stride_tricks.sliding_window_view(padded, window)
