"""Differences and their 95 % intervals: over questions, over seeds, over the steps of a curve; and a paired test.

Evaluation, Space, quickstart and research all compare by this module. numpy alone: the Space imports it, and scipy
takes 1.6 s and 110 MB to import.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import NormalDist

import numpy as np

from .intervals import Estimate, Z, of_average, over_questions

DRAWS = 10_000
BLOCK = 1_000  # draws at a time, which bounds the memory
EXACT_QUESTIONS = 14  # up to here all 2^Q sign flips are tried
TOLERANCE = 1e-12
MIN_STEPS = 6  # fewer do not show the noise of a curve
# Student's t at 97.5 %, 1 to 9 degrees of freedom
_T = (12.7062, 4.30265, 3.18245, 2.77645, 2.57058, 2.44691, 2.36462, 2.30600, 2.26216)


def of_questions(a: np.ndarray, b: np.ndarray, n: int) -> np.ndarray:
    """Return (2, …) interval of mean(b) - mean(a) for a population of questions; a and b are (Q, …), shares right of n
    responses to the same questions (the smaller n, where they differ).

    The distances of both intervals' ends, put together as Newcombe does for independent scores, and shortened as much
    as the deviation of the questions' differences is less than theirs together. One response counts as having come out
    otherwise, so that models that agree everywhere are not called alike for certain; a little longer, since two means
    are known from the same questions.
    """
    questions, difference = len(a), b.mean(axis=0) - a.mean(axis=0)
    (a_below, a_above), (b_below, b_above) = (np.abs(x.mean(axis=0) - over_questions(x)) for x in (a, b))
    apart = (questions * (_variance(a) + _variance(b)) * n + 1) / (questions * _variance(b - a) * n + 1)
    length = (questions / max(questions - 2, 1) / apart) ** 0.5
    ends = np.stack([-np.hypot(b_below, a_above), np.hypot(b_above, a_below)])
    return difference + length * ends


def _variance(values: np.ndarray) -> np.ndarray:
    return values.var(axis=0, ddof=min(len(values) - 1, 1))


def of_tasks(tasks: Iterable[tuple[np.ndarray, np.ndarray, int]]) -> Estimate:
    """Return the mean over tasks of b - a, with its interval over questions; (a, b, n) of each task as in
    `of_questions`."""
    return of_average([Estimate(y.mean() - x.mean(), *map(float, of_questions(x, y, n))) for x, y, n in tasks])


def compare(a: Sequence[np.ndarray], b: Sequence[np.ndarray], n: Sequence[int]) -> dict:
    """Compare two models on the same questions: one array (Q,) per task, shares right of n responses.

    Returns:
        difference (b - a, mean over tasks of the mean over questions), interval (95 %, over questions),
        p (two-sided sign-flip test: if the models were alike, each question's difference might as well have the
        other sign).
    """
    found = of_tasks(zip(a, b, n, strict=True))
    shares = np.concatenate([(y - x) / (len(y) * len(a)) for x, y in zip(a, b, strict=True)])
    return {"difference": found.value, "interval": [found.low, found.high], "p": sign_flip_p(shares)}


def sign_flip_p(shares: np.ndarray) -> float:
    """Return two-sided p-value that the sum of `shares` (Q,) is 0 when every share has either sign with probability ½.

    Exact for up to 14 shares that are not 0, else from DRAWS random flips, the observed one counted among them: as
    scipy.stats.permutation_test, and as fast.
    """
    shares = shares[shares != 0]
    observed = abs(shares.sum()) - TOLERANCE
    if len(shares) <= EXACT_QUESTIONS:
        flips = np.arange(2 ** len(shares))[:, None] >> np.arange(len(shares)) & 1
        return float((np.abs((2 * flips - 1) @ shares) >= observed).mean())
    rng = np.random.default_rng(0)
    extreme = 0
    for start in range(0, DRAWS, BLOCK):
        signs = 2.0 * rng.integers(0, 2, (min(BLOCK, DRAWS - start), len(shares)), dtype=np.int8) - 1
        extreme += int((np.abs(signs @ shares) >= observed).sum())
    return (extreme + 1) / (DRAWS + 1)


def of_proportions(a: float, draws_a: float, b: float, draws_b: float, choices: int = 1) -> Estimate:
    """Return b - a, two shares of so many draws each, with Newcombe's interval; choices: pairs of which this one was
    chosen (`widening`)."""
    z = Z * widening(choices)
    (a_low, a_high), (b_low, b_high) = (_wilson(*side, z) for side in ((a, draws_a), (b, draws_b)))
    return Estimate(b - a, b - a - math.hypot(b - b_low, a_high - a), b - a + math.hypot(b_high - b, a - a_low))


def _wilson(share: float, draws: float, z: float) -> tuple[float, float]:
    centre = share + z**2 / (2 * draws)
    half = z * (max(share * (1 - share), 0.0) / draws + z**2 / (4 * draws**2)) ** 0.5
    return (centre - half) / (1 + z**2 / draws), (centre + half) / (1 + z**2 / draws)


def of_seeds(values: np.ndarray) -> Estimate:
    """Return the mean of (n, …) values, n of 2 or more, and its t-interval; of differences, where they are paired."""
    mean = values.mean(axis=0)
    half = t_quantile(len(values) - 1) * values.std(axis=0, ddof=1) / len(values) ** 0.5
    return Estimate(mean, mean - half, mean + half)


def spread(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the ends of (n, …) values of seeds: of two the lower and the higher, of more the t-interval of their
    mean."""
    return (values.min(0), values.max(0)) if len(values) == 2 else of_seeds(values)[1:]


def of_steps(values: np.ndarray, size: int, means: int = 2) -> float | None:
    """Return half of the interval of one mean of `size` steps of a curve (N,), or of the difference of two; None for
    fewer than MIN_STEPS steps.

    The noise of a step is that of successive differences, var = mean((x[t+1] − x[t])²) / 2 (von Neumann 1941): a
    trend, which moves little from step to step, adds next to nothing to it.
    """
    if len(values) < MIN_STEPS:
        return None
    with np.errstate(all="ignore"):  # a run may hold 1e308
        variance = float((np.diff(values) ** 2).mean()) / 2
    half = t_quantile(2 * (len(values) - 1) / 3) * (means * variance / size) ** 0.5
    return half if np.isfinite(half) else None


def widening(choices: int) -> float:
    """Return the factor by which a 95 % interval widens to hold for the best of so many points (Bonferroni)."""
    return NormalDist().inv_cdf(1 - 0.025 / max(choices, 1)) / Z


def t_quantile(degrees: float) -> float:
    """Return the 97.5 % quantile of Student's t; above nine degrees by four terms of its expansion (Abramowitz and
    Stegun 26.7.5), which are within 1e-4."""
    if degrees < 1:
        return float("inf")
    if degrees <= len(_T):
        return float(np.interp(degrees, np.arange(1, len(_T) + 1), _T))
    terms = (
        (Z**3 + Z) / 4,
        (5 * Z**5 + 16 * Z**3 + 3 * Z) / 96,
        (3 * Z**7 + 19 * Z**5 + 17 * Z**3 - 15 * Z) / 384,
        (79 * Z**9 + 776 * Z**7 + 1482 * Z**5 - 1920 * Z**3 - 945 * Z) / 92160,
    )
    return Z + sum(term / degrees**power for power, term in enumerate(terms, 1))
