"""Intervals and p-values over questions: bootstrap and paired sign-flip test, seeded and vectorised.

Not scipy.stats.bootstrap and permutation_test: same numbers, as fast, but the Space imports this with numpy alone, and
scipy takes 1.6 s and 110 MB to import.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

DRAWS = 10_000
BLOCK = 1_000  # draws at a time, which bounds the memory
EXACT_QUESTIONS = 14  # up to here all 2^Q sign flips are tried
TOLERANCE = 1e-12


def bootstrap_means(values: np.ndarray, seed: int | Sequence[int] = 0, draws: int = DRAWS) -> np.ndarray:
    """(draws, …) means over resampled questions; values is (Q, …)."""
    rng = np.random.default_rng(seed)
    questions = len(values)
    return np.concatenate(
        [_counts(rng, min(BLOCK, draws - start), questions) @ values / questions for start in range(0, draws, BLOCK)]
    )


def _counts(rng: np.random.Generator, draws: int, questions: int) -> np.ndarray:
    """(draws, questions): how often each question is drawn when `questions` of them are drawn with replacement."""
    cells = rng.integers(0, questions, (draws, questions)) + questions * np.arange(draws)[:, None]
    return np.bincount(cells.ravel(), minlength=draws * questions).reshape(draws, questions).astype(float)


def bootstrap_interval(values: np.ndarray, seed: int = 0, level: float = 0.95) -> np.ndarray:
    """(2, …) percentile interval of the mean over questions; values is (Q, …)."""
    return percentile_interval(bootstrap_means(values, seed), level)


def average_interval(tasks: Sequence[np.ndarray], seed: int = 0, level: float = 0.95) -> np.ndarray:
    """(2, …) interval of the mean over tasks of the mean over questions; questions are resampled within their task."""
    return percentile_interval(_average_means(tasks, seed), level)


def _average_means(tasks: Sequence[np.ndarray], seed: int) -> np.ndarray:
    # a stream of its own for every task: with one seed, tasks of one size would be resampled in step
    return np.mean([bootstrap_means(values, [seed, i]) for i, values in enumerate(tasks)], axis=0)


def percentile_interval(means: np.ndarray, level: float = 0.95) -> np.ndarray:
    return np.quantile(means, [(1 - level) / 2, (1 + level) / 2], axis=0)


def compare(a: Sequence[np.ndarray], b: Sequence[np.ndarray], seed: int = 0) -> dict:
    """Paired comparison of two models on the same questions: one array (Q,) per task, values from 0 to 1.

    Returns:
        difference (b - a, mean over tasks of the mean over questions), interval (95 %, bootstrap over questions),
        p (two-sided sign-flip test: if the models were alike, each question's difference might as well have the
        other sign).
    """
    differences = [after - before for before, after in zip(a, b, strict=True)]
    shares = np.concatenate([each / (len(each) * len(differences)) for each in differences])
    low, high = average_interval(differences, seed)
    return {
        "difference": float(shares.sum()),
        "interval": [float(low), float(high)],
        "p": sign_flip_p(shares, seed),
    }


def sign_flip_p(shares: np.ndarray, seed: int = 0, draws: int = DRAWS) -> float:
    """Two-sided p-value that the sum of `shares` (Q,) is 0 when every share has either sign with probability ½.

    Exact for up to 14 shares that are not 0, else from `draws` random flips, the observed one counted among them.
    """
    shares = shares[shares != 0]
    observed = abs(shares.sum()) - TOLERANCE
    if len(shares) <= EXACT_QUESTIONS:
        flips = np.arange(2 ** len(shares))[:, None] >> np.arange(len(shares)) & 1
        return float((np.abs((2 * flips - 1) @ shares) >= observed).mean())
    rng = np.random.default_rng(seed)
    extreme = 0
    for start in range(0, draws, BLOCK):
        signs = 2.0 * rng.integers(0, 2, (min(BLOCK, draws - start), len(shares)), dtype=np.int8) - 1
        extreme += int((np.abs(signs @ shares) >= observed).sum())
    return (extreme + 1) / (draws + 1)
