"""Warnings about a run's metrics, and the step where each begins. Pure; every threshold stands in `RULES`.

A warning should be worth a click. So each rule wants more than one odd number, or a very odd one, and the thresholds
are wide of what trainings that went well have shown: their entropy fell to a half, KL per step reached 0.05 nats for a
step, a gradient norm three times its usual size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from openrlhf_ebpo.run.catalogue import HELD_OUT

from .metrics import REWARD, Metrics

FEWEST, FAR = 10, 8  # steps that say what is usual before a spike; standard deviations
SOLVED = 0.9  # share of the reward from which a low entropy is not a loss: nothing is left to explore
NOISE = 4  # standard errors
RISE = 0.1  # of the reward, as a share of the way from fail to pass
COPIED = "share of passing answers that are one text"  # measured in rollouts, not logged


class Series(NamedTuple):
    """One metric, without gaps. reward: the mean reward at the same steps, as a share from fail to pass, NaN where
    unknown."""

    steps: np.ndarray
    values: np.ndarray
    reward: np.ndarray


@dataclass(frozen=True)
class Rule:
    """One kind of trouble.

    Attributes:
        metrics: names; the first that the run has is looked at.
        holds: (series, rule) -> flags, one for each step.
        level, window, floor: what `holds` compares with.
        when: the thresholds in words.
        groups: kind of groups that show it, "" where groups say nothing.
    """

    name: str
    title: str
    metrics: tuple[str, ...]
    holds: Callable[[Series, Rule], np.ndarray]
    level: float
    window: int
    when: str
    means: str
    groups: str = ""
    floor: float = 0.0


class Warned(NamedTuple):
    """begins, last: the first and the last step that shows it (or is missing), of `count`; worst: the value furthest
    out; goes_on: up to the end."""

    rule: Rule
    metric: str
    begins: int
    last: int
    count: int
    worst: float
    goes_on: bool

    @property
    def since(self) -> str:
        if self.begins == self.last:
            return f"at step {self.begins:,}"
        if self.goes_on:
            return f"since step {self.begins:,}"
        return f"{self.count:,} steps from {self.begins:,} to {self.last:,}"


def above(series: Series, rule: Rule) -> np.ndarray:
    """Steps at or beyond the level, on either side of 0, among `window` whose mean is."""
    values = np.abs(series.values)
    window = min(rule.window, len(values))
    whole = np.convolve(values, np.full(window, 1 / window), "valid") >= rule.level
    return (np.convolve(whole, np.ones(window)) > 0.5) & (values >= rule.level)


def collapsed(series: Series, rule: Rule) -> np.ndarray:
    """The median of the last `window` steps is at most that share of the first ones', while not all is solved."""
    values, window = series.values, rule.window
    if len(values) < 2 * window:
        return np.zeros(len(values), bool)
    medians = np.median(_windows(values, window), axis=1)
    return (medians <= rule.level * medians[window - 1]) & ~(_trailing(series.reward, window) >= SOLVED)


def spiked(series: Series, rule: Rule) -> np.ndarray:
    """At least `level` times the median of the `window` steps before, far outside their spread, and at least
    `floor`."""
    values, flags = np.abs(series.values), np.zeros(len(series.values), bool)
    if len(values) <= FEWEST:
        return flags
    before = _windows(values, rule.window)[:-1]  # row i: the steps up to i, of which step i + 1 is held against
    recent = np.median(before[:, -3:], axis=1)  # what grows step by step is not a spike
    leaps = 1 + np.flatnonzero((values[1:] >= rule.level * recent) & (values[1:] >= rule.floor) & (values[1:] > 0))
    usual = np.median(before[leaps - 1], axis=1)  # of these few alone: medians of 20,000 windows take long
    spread = 1.4826 * np.median(
        np.abs(before[leaps - 1] - usual[:, None]), axis=1
    )  # of normal ones the standard deviation
    usual = np.maximum(usual, recent[leaps - 1])
    far = (
        (values[leaps] >= rule.level * usual)
        & (values[leaps] >= usual + FAR * spread)
        & ((usual > 0) | (rule.floor > 0))
    )
    flags[leaps[far & (leaps >= FEWEST)]] = True
    return flags


def stays_at(series: Series, rule: Rule) -> np.ndarray:
    """At or below the level for `window` steps one after the other, or in all of fewer."""
    low = series.values <= rule.level
    window = min(rule.window, max(len(low), 3))
    if len(low) < window:
        return np.zeros(len(low), bool)
    begins = np.convolve(low, np.ones(window), "valid") > window - 0.5
    return np.convolve(begins, np.ones(window)) > 0.5


def fallen(series: Series, rule: Rule) -> np.ndarray:
    """The mean of the last `window` steps is at most that share of the best one before, by more than noise between
    steps."""
    values, window = series.values, rule.window
    if len(values) < 2 * window:
        return np.zeros(len(values), bool)
    means = _trailing(values, window)
    means[: window - 1] = means[window - 1]
    best = np.maximum.accumulate(means)
    noise = np.diff(values).std() / window**0.5  # of the difference of two means
    return (means <= rule.level * best) & (best - means >= NOISE * noise) & (best > 0)


def moved(series: Series, rule: Rule) -> np.ndarray:
    """The mean of `window` steps is that many times the first ones', or that part of it, while the reward rises."""
    window = min(rule.window, len(series.values) // 2)
    if window < 3:
        return np.zeros(len(series.values), bool)
    means, rewards = _trailing(series.values, window), _trailing(series.reward, window)
    first = means[window - 1]
    far = (means <= first / rule.level) | (means >= first * rule.level)
    return far & (first > 0) & (rewards - rewards[window - 1] >= RISE)


def parted(series: Series, rule: Rule) -> np.ndarray:
    """At most that share of the best value before, by `floor` or more, while the reward has risen since that best
    value."""
    best = np.maximum.accumulate(series.values)
    at = np.array([int(series.values[: i + 1].argmax()) for i in range(len(series.values))], int)
    fell = (series.values <= rule.level * best) & (best - series.values >= rule.floor)
    return fell & (series.reward - series.reward[at] >= RISE)


def skipped(series: Series, rule: Rule) -> np.ndarray:
    """Steps before which one is missing."""
    return np.diff(series.steps, prepend=series.steps[:1] - 1) > rule.level


RULES = (
    Rule(
        "zero",
        "No reward",
        REWARD,
        stays_at,
        0.0,
        10,
        "every response fails for 10 steps, or in all of fewer",
        (
            "groups that fail teach nothing: the prompts are too hard, the reward misses right answers or, after "
            "steps with a reward, the policy is broken"
        ),
        "all_fail",
    ),
    Rule(
        "errors",
        "Reward errors",
        ("ebpo/reward_error_fraction",),
        above,
        0.01,
        5,
        "1 % of the responses of 5 steps or more",
        "these responses are left out; their errors say why",
        "errors",
    ),
    Rule(
        "nothing",
        "Steps with zero advantages",
        ("ebpo/zero_advantage",),
        above,
        0.3,
        10,
        "3 of 10 steps or more",
        "all responses, or all of each group, earned the same",
    ),
    Rule(
        "fallen",
        "Reward has fallen",
        REWARD,
        fallen,
        0.5,
        10,
        "mean of 10 steps at most half of the best before, beyond noise",
        "something is unlearnt, or the prompts have become harder",
        "all",
    ),
    Rule(
        "entropy",
        "Entropy collapse",
        ("policy/entropy",),
        collapsed,
        0.15,
        5,
        "median of 5 steps at most 15 % of the first five’s, while less than 90 % is solved",
        "the policy hardly explores any more",
        "all",
    ),
    Rule(
        "gradient",
        "Gradient spike",
        ("actor_grad_norm",),
        spiked,
        5.0,
        20,
        "5 times the median of the 20 steps before, and far outside their spread",
        "one batch moves the policy far: look at its rewards and lengths",
        "all",
    ),
    Rule(
        "kl",
        "KL spike",
        ("policy/kl_per_step", "ppo_kl"),
        spiked,
        10.0,
        20,
        "0.1 nats per token or more in one step, and 10 times the median of the 20 steps before",
        "a step has moved the policy far: the learning rate may be too high",
        "all",
        0.1,
    ),
    Rule(
        "reference",
        "Leaps away from the reference",
        ("kl",),
        spiked,
        5.0,
        20,
        "0.5 or more, and 5 times the median of the 20 steps before",
        "the policy leaves the reference model at once",
        "all",
        0.5,
    ),
    Rule(
        "truncated",
        "Truncated answers",
        ("truncated", "rollout/truncated_rate"),
        above,
        0.2,
        5,
        "20 % of the responses of 5 steps or more",
        "answers end at the token limit, before their result",
        "truncated",
    ),
    Rule(
        "no_answer",
        "Answers that the reward cannot read",
        ("rollout/no_answer",),
        above,
        0.2 + 1e-9,
        1,
        "more than 20 % of the complete responses of a step",
        "the prompts ask for another form of answer than the reward reads; the training’s output quotes one",
        "all",
    ),
    Rule(
        "mismatch",
        "Rollout engine and trainer disagree",
        ("mismatch/k3_kl", "vllm_kl"),
        above,
        0.05,
        5,
        "0.05 nats per token or more, mean of 5 steps",
        (
            "what vLLM samples is not what is trained: precision, weights that were not sent, or rollouts that are "
            "old by design. Centred estimators, such as EBPO’s preset paper, suffer most from it"
        ),
    ),
    Rule(
        "stale",
        "Rollouts from old weights",
        ("mismatch/stale",),
        above,
        0.5,
        1,
        "one step or more that the training called stale",
        "vLLM may not get the weights that are trained: its probabilities leave the trainer’s",
    ),
    Rule(
        "corrected",
        "Many tokens corrected",
        ("is_filter_ratio",),
        above,
        0.1,
        5,
        "10 % of the tokens of 5 steps or more",
        "the rollout engine’s probabilities are far from the trainer’s",
    ),
    Rule(
        "length",
        "Length has changed with the reward",
        ("response_length", "rollout/response_length_mean"),
        moved,
        2.0,
        10,
        "mean of 10 steps half or double the first ones’, while the reward rises by 10 % of its span",
        "the reward may pay for short or for long answers rather than for right ones: read some",
        "all",
    ),
    Rule(
        "held_out",
        "Held-out falls while the reward rises",
        (HELD_OUT,),
        parted,
        0.75,
        1,
        "3 points or more and a quarter below the best evaluation before, while the reward rises by 10 % of its span",
        "what is learnt does not help on other questions: the reward may be hacked, or the prompts are learnt by heart",
        "all",
        0.03,
    ),
    Rule(
        "copied",
        "Passing answers are one text",
        (COPIED,),
        above,
        0.5,
        1,
        "more than half of the passing answers of a step, without their labels in it",
        "one text passes whatever was asked: the reward is hacked",
        "all",
    ),
    Rule(
        "missing",
        "Steps are missing",
        ("step",),
        skipped,
        1,
        1,
        "a step between two others is not in metrics.jsonl",
        "a step was dropped, or its line is damaged",
    ),
)
NAMES = {rule.name: rule for rule in RULES}


def found(
    metrics: Metrics,
    rewards: tuple[float, float] = (0.0, 1.0),
    rules: Iterable[Rule] = RULES,
    more: Mapping[str, tuple[np.ndarray, np.ndarray]] = MappingProxyType({}),
) -> list[Warned]:
    """The warnings of a run in order of their first step. rewards: what fails and what passes; more: steps and values
    of what is measured elsewhere than in metrics.jsonl, by name."""
    measured = {
        name: series for name, series in ({HELD_OUT: metrics.held_out()} | dict(more)).items() if len(series[0])
    }
    each = [one for rule in rules if (one := _look(rule, metrics, rewards, measured))]
    return sorted(each, key=lambda one: (one.begins, one.rule.title))


def _look(rule: Rule, metrics: Metrics, rewards: tuple[float, float], measured: Mapping) -> Warned | None:
    there = lambda name: name == "step" or name in measured or metrics.series(name)[0].size  # noqa: E731
    metric = next(filter(there, rule.metrics), None)
    if metric is None:
        return None
    series = (
        _with_rewards(metrics, *measured[metric], rewards) if metric in measured else _series(metrics, metric, rewards)
    )
    with np.errstate(all="ignore"):  # a run may hold 1e308
        flags = rule.holds(series, rule) if len(series.values) else np.zeros(0, bool)
    if not flags.any():
        return None
    steps, values = series.steps[flags], series.values[flags]
    worst = values.min() if rule.holds in (collapsed, stays_at, fallen, parted) else values[np.abs(values).argmax()]
    if rule.holds is skipped:
        return _missing(rule, series.steps, flags)
    goes_on = rule.holds is not spiked and bool(flags[-rule.window :].any())
    return Warned(rule, metric, int(steps[0]), int(steps[-1]), len(steps), float(worst), goes_on)


def _missing(rule: Rule, steps: np.ndarray, flags: np.ndarray) -> Warned:
    """flags: steps before which others are missing; the warning counts those."""
    after = np.flatnonzero(flags)
    first, last = steps[after - 1] + 1, steps[after] - 1
    return Warned(rule, "step", int(first[0]), int(last[-1]), int((last - first + 1).sum()), float(last[-1]), False)


def _series(metrics: Metrics, metric: str, rewards: tuple[float, float]) -> Series:
    """Rewards as shares from fail to pass, so that a scheme of ±1 has the same thresholds."""
    if metric == "step":
        return Series(metrics.steps, metrics.steps.astype(float), np.full(len(metrics.steps), np.nan))
    steps, values = metrics.series(metric)
    fail, passing = rewards
    span = (passing - fail) or 1.0
    named = next((name for name in REWARD if name in metrics.columns), None)
    reward = metrics.columns[named][np.searchsorted(metrics.steps, steps)] if named else np.full(len(steps), np.nan)
    values = (values - fail) / span if metric in REWARD else values
    return Series(steps, values, (reward - fail) / span)


def _with_rewards(metrics: Metrics, steps: np.ndarray, values: np.ndarray, rewards: tuple[float, float]) -> Series:
    """The reward is its mean over the ten steps up to each of these, or the first ten for what comes before."""
    (logged, reward), (fail, passing) = metrics.rewards(), rewards
    upto = np.maximum(np.searchsorted(logged, steps, "right"), min(10, len(logged)))
    means = np.array([reward[max(i - 10, 0) : i].mean() if i else np.nan for i in upto])
    return Series(steps, values, (means - fail) / ((passing - fail) or 1.0))


def _trailing(values: np.ndarray, window: int) -> np.ndarray:
    """Mean of each step and those before it, NaN before the first complete window."""
    means = np.full(len(values), np.nan)
    means[window - 1 :] = np.convolve(values, np.full(window, 1 / window), "valid")
    return means


def _windows(values: np.ndarray, window: int) -> np.ndarray:
    """(N, window): each step and those before it; the first rows begin with the first value."""
    padded = np.concatenate([np.full(window - 1, values[0]), values])
    return np.lib.stride_tricks.sliding_window_view(padded, window)
