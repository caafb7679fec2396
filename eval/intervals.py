"""95 % intervals of scores, in closed form. A score has two errors, which answer two questions:

over questions   where would other questions of the kind land? The questions' values vary, sampling noise among them
across runs      where would these very questions land, answered again? Only the responses vary

Each is Wilson's interval with as many draws as its variance is worth. A draw from [0, 1] with mean m has a variance of
at most m (1 - m), and k draws of variance v are worth k m (1 - m) / v that come out 0 or 1. Where few of the draws say
anything, as with three solved questions of thirty, v is guesswork, and most often too small: so it is drawn towards the
most that it can be, with the weight of a prior, which decides alone where every draw is the same. Intervals therefore
have a width always.

The priors are round numbers at which no interval covers less than 93 % (research/interval_coverage.py shows it), and as
few as can be cover more than 97 %. numpy alone: the Space imports this. Differences are in differences.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

Z = 1.959963984540054  # of 95 %
QUESTIONS_PRIOR = 1 / 10
VOTES_PRIOR = 1 / 4  # a vote turns from 0 to 1 at once: where none has turned yet, values say less of those to come
RUNS_PRIOR = 1 / 2


class Estimate(NamedTuple):
    value: float
    low: float
    high: float


def over_questions(values: np.ndarray, votes: bool = False) -> np.ndarray:
    """Return (2, …) interval of the mean for a population of questions like these; values is (Q, …), from 0 to 1.
    votes: they are maj@k's."""
    questions = len(values)
    mean = values.mean(axis=0)
    variance = values.var(axis=0, ddof=1) if questions > 1 else mean * (1 - mean)
    return _wilson(mean, variance, questions, VOTES_PRIOR if votes else QUESTIONS_PRIOR)


def across_runs(rates: np.ndarray, n: int) -> np.ndarray | None:
    """Return (2, …) interval of the mean if the same questions were answered without end; rates is (Q, …), shares
    right of n responses each. None with one response: how far a second one would differ, it does not say."""
    if n == 1:
        return None
    return _wilson(rates.mean(axis=0), _within_variance(rates, n), len(rates) * n, RUNS_PRIOR)


def standard_error(rates: np.ndarray, n: int) -> np.ndarray | None:
    """Return the standard error of the mean across runs, from all questions' variances within; None with one
    response."""
    return None if n == 1 else (_within_variance(rates, n) / (len(rates) * n)) ** 0.5


def _within_variance(rates: np.ndarray, n: int) -> np.ndarray:
    """Return the variance of one response about its question's rate, mean over questions, unbiased."""
    return (rates * (1 - rates)).mean(axis=0) * n / (n - 1)


def _wilson(mean: np.ndarray, variance: np.ndarray, draws: int, prior: float) -> np.ndarray:
    most = mean * (1 - mean)
    worth = draws * (draws * most + prior) / (draws * np.minimum(variance, most) + prior)
    centre = (mean + Z**2 / (2 * worth)) / (1 + Z**2 / worth)
    half = Z / (1 + Z**2 / worth) * (most / worth + Z**2 / (4 * worth**2)) ** 0.5
    return np.stack([np.clip(centre - half, 0, mean), np.clip(centre + half, mean, 1)])


def of_average(estimates: Sequence[Estimate]) -> Estimate:
    """Return the mean of independent estimates: the distances of the ends add up as squares."""
    value, low, high = np.array(estimates).T
    below, above = (float(np.linalg.norm(end - value)) / len(value) for end in (low, high))
    mean = float(value.mean())
    return Estimate(mean, mean - below, mean + above)
