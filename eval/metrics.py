"""Metrics of graded samples: pass@1, pass@k, maj@k, with errors and intervals.

Everything takes one row per question and one column per run: correct (Q, n) bool, classes (Q, n) int, where two
samples of a question have the same class when their answers are equivalent, and -1 marks a sample without an answer.
Values are fractions, from 0 to 1.
"""

from __future__ import annotations

import numpy as np

from openrlhf_ebpo.run.votes import NO_ANSWER_CLASS, majority_at_k, pass_at_k

from .intervals import across_runs, over_questions, standard_error

MAJ_K = 16


def powers(n: int) -> list[int]:
    """Return 1, 2, 4, … below n, and n."""
    return [1 << i for i in range((n - 1).bit_length())] + [n]


def summarise(correct: np.ndarray, classes: np.ndarray, lengths: np.ndarray, truncated: np.ndarray) -> dict:
    """Return all metrics of one task, as JSON values.

    Args:
        lengths: (Q, n) tokens of each response.
        truncated: (Q, n) bool, whether a response reached the token limit.

    Returns:
        questions, samples_per_question; pass@1 with value, interval (95 %, over questions: others of their kind),
        standard_error and run_interval (95 %, across runs: the same questions again; both None with one run); pass@2,
        pass@4, …, pass@n and maj@k (k = MAJ_K, or n where n is less) with value and interval; truncated, mean_length
        (tokens), no_answer.
    """
    n = correct.shape[1]
    maj_k = min(MAJ_K, n)
    values = {f"pass@{k}": pass_at_k(correct, k) for k in powers(n)}
    values[f"maj@{maj_k}"] = majority_at_k(correct, classes, maj_k)
    scores = {}
    for name, each in values.items():
        interval = over_questions(each, votes=name.startswith("maj@"))
        scores[name] = {"value": float(each.mean()), "interval": interval.tolist()}
    scores["pass@1"] |= {"standard_error": None, "run_interval": None}
    if n > 1:
        rates = correct.mean(axis=1)
        interval = across_runs(rates, n).tolist()
        scores["pass@1"] |= {"standard_error": float(standard_error(rates, n)), "run_interval": interval}
    return {
        "questions": correct.shape[0],
        "samples_per_question": correct.shape[1],
        **scores,
        "truncated": float(truncated.mean()),
        "mean_length": float(lengths.mean()),
        "no_answer": float((classes == NO_ANSWER_CLASS).mean()),
    }
