"""Two models on the same questions: the difference, its interval, and a paired sign-flip test, seeded and vectorised.

Not scipy.stats.permutation_test: same numbers, as fast, but the Space imports this with numpy alone, and scipy takes
1.6 s and 110 MB to import.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .intervals import Estimate, of_average, of_difference

DRAWS = 10_000
BLOCK = 1_000  # draws at a time, which bounds the memory
EXACT_QUESTIONS = 14  # up to here all 2^Q sign flips are tried
TOLERANCE = 1e-12


def compare(a: Sequence[np.ndarray], b: Sequence[np.ndarray], n: Sequence[int]) -> dict:
    """Compare two models on the same questions: one array (Q,) per task, shares right of n responses.

    Returns:
        difference (b - a, mean over tasks of the mean over questions), interval (95 %, over questions),
        p (two-sided sign-flip test: if the models were alike, each question's difference might as well have the
        other sign).
    """
    tasks = list(zip(a, b, n, strict=True))
    shares = np.concatenate([(after - before) / (len(after) * len(tasks)) for before, after, _ in tasks])
    found = of_average([Estimate(y.mean() - x.mean(), *of_difference(x, y, count)) for x, y, count in tasks])
    return {"difference": found.value, "interval": [found.low, found.high], "p": sign_flip_p(shares)}


def sign_flip_p(shares: np.ndarray) -> float:
    """Return two-sided p-value that the sum of `shares` (Q,) is 0 when every share has either sign with probability ½.

    Exact for up to 14 shares that are not 0, else from DRAWS random flips, the observed one counted among them.
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
