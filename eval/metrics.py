"""What a set of graded samples says: pass@1, pass@k, maj@k, with errors and intervals.

Everything takes one row per question and one column per run: correct (Q, n) bool, classes (Q, n) int, where two
samples of a question have the same class when their answers are equivalent, and -1 says that there is no answer.
Values are fractions, from 0 to 1.
"""

from __future__ import annotations

import numpy as np

from openrlhf_ebpo.record.votes import NO_ANSWER, majority_at_k, pass_at_k

from .resampling import bootstrap_interval

MAJ_K = 16


def powers(n: int) -> list[int]:
    """1, 2, 4, … below n, and n."""
    return [1 << i for i in range((n - 1).bit_length())] + [n]


def standard_error(correct: np.ndarray) -> float | None:
    """Standard error of pass@1 across runs: run i is column i, one sample of every question. None with one run.

    It says how far another n runs on the same questions would land, nothing about other questions.
    """
    n = correct.shape[1]
    return float(correct.mean(axis=0).std(ddof=1) / n**0.5) if n > 1 else None


def per_question(correct: np.ndarray, classes: np.ndarray | None, maj_k: int = MAJ_K) -> dict[str, np.ndarray]:
    """(Q,) arrays by name: pass@1, pass@2, pass@4, …, pass@n, and maj@k with k = maj_k, or n where n is less; no vote where
    the classes are not known."""
    n = correct.shape[1]
    values = {f"pass@{k}": pass_at_k(correct, k) for k in powers(n)}
    if classes is None:
        return values
    maj_k = min(maj_k, n)
    return values | {f"maj@{maj_k}": majority_at_k(correct, classes, maj_k)}


def summarise(
    correct: np.ndarray,
    classes: np.ndarray | None,
    lengths: np.ndarray,
    truncated: np.ndarray,
    maj_k: int = MAJ_K,
    seed: int = 0,
) -> dict:
    """All metrics of one task, as JSON values.

    Args:
        lengths: (Q, n) tokens of each response.
        truncated: (Q, n) bool, whether a response reached the token limit.
        seed: of the bootstrap.

    Returns:
        questions, samples_per_question; pass@1 with value, standard_error (None with one run), interval (95 %, over
        questions); pass@2, pass@4, …, pass@n and maj@k with value and interval; truncated, mean_length (tokens),
        no_answer. Neither maj@k nor no_answer where the classes are not known.
    """
    values = per_question(correct, classes, maj_k)
    intervals = bootstrap_interval(np.column_stack(list(values.values())), seed)
    scores = {
        name: {"value": float(each.mean()), "interval": [float(low), float(high)]}
        for (name, each), low, high in zip(values.items(), *intervals, strict=True)
    }
    scores["pass@1"]["standard_error"] = standard_error(correct)
    return {
        "questions": correct.shape[0],
        "samples_per_question": correct.shape[1],
        **scores,
        "truncated": float(truncated.mean()),
        "mean_length": float(lengths.mean()),
        **({} if classes is None else {"no_answer": float((classes == NO_ANSWER).mean())}),
    }
