"""Score several answers to one question: pass@k, and maj@k with its classes of equal answers.

Correctness comes as (Q, n) bool, a row per question; classes as (Q, n) int, where two samples of a question have the
same class when their answers are equivalent, and -1 says that there is no answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

NO_ANSWER_CLASS = -1


def classes(
    answers: Sequence[str | None],
    correct: Sequence[bool],
    spelled: Callable[[str], str],
    same: Callable[[str, str], bool],
) -> list[int]:
    """Return equivalence classes, numbered in order; -1 for no answer.

    All right answers are one class, since they equal the gold. A wrong one joins the class of an answer that is spelled
    the same or, of the others, the first whose first answer it equals. So classes never overlap, even where `same` is
    not transitive (tolerances, what sympy cannot simplify).

    spelled: one spelling for what differs in typing only. same: whether two wrong answers are equal; first the one that
    came first.
    """
    by_text: dict[str, int] = {}
    firsts: list[tuple[str, int]] = []  # of the wrong classes
    found, count = [], 0
    for answer, right in zip(answers, correct, strict=True):
        if answer is None:
            found.append(NO_ANSWER_CLASS)
            continue
        text = "right" if right else f"wrong {spelled(answer)}"
        if text not in by_text:
            known = None if right else next((name for first, name in firsts if same(first, answer)), None)
            by_text[text] = count if known is None else known
            if known is None:
                firsts += [] if right else [(answer, count)]
                count += 1
        found.append(by_text[text])
    return found


def pass_at_k(correct: np.ndarray, k: int) -> np.ndarray:
    """Compute (Q,) unbiased estimates of P(at least one of k samples is right): 1 - C(n - c, k) / C(n, k), c of n are
    right.

    Computed as a product of k factors in [0, 1], so it neither overflows nor cancels. Source: Chen et al. 2021.
    """
    n = _check_k(correct, k)
    drawn = np.arange(k)
    # c > n - k makes one factor 0 and later ones negative
    factors = np.maximum(n - correct.sum(axis=1)[:, None] - drawn, 0) / (n - drawn)
    return 1.0 - factors.prod(axis=1)


def majority_at_k(correct: np.ndarray, classes: np.ndarray, k: int) -> np.ndarray:
    """Compute the (Q,) expected correctness of the majority vote of k samples, exact: the mean over all subsets of k of
    the n.

    Samples without an answer do not vote; a vote without answers is wrong. Ties are averaged: each of the
    leading classes wins with equal probability. A class is as right as its samples are on average.

    Exact without enumerating: each sample is drawn independently with probability k/n, conditional on k being
    drawn, so the counts of the classes are independent binomials. For a class that wins with m votes, polynomials
    in the number of drawn samples are multiplied over the other classes, whose counts end at m; a class that ties
    carries a factor y, and 1/(1 + ties) is the integral of y^ties over [0, 1], which Gauss-Legendre nodes give
    exactly.
    """
    n = _check_k(correct, k)
    chances = _binomials(n, k)
    points, weights = np.polynomial.legendre.leggauss((k + 1) // 2)
    nodes, weights = (points + 1) / 2, weights / 2
    known: dict[tuple, float] = {}
    values = np.zeros(len(correct))
    for row, (right, group) in enumerate(zip(correct, classes, strict=True)):
        votes = Counter(group.tolist())
        silent = votes.pop(NO_ANSWER_CLASS, 0)
        for name in set(group[right].tolist()) - {NO_ANSWER_CLASS}:
            others = tuple(sorted(count for other, count in votes.items() if other != name))
            key = (votes[name], silent, others)
            if key not in known:
                known[key] = _wins(*key, chances, nodes, weights)
            values[row] += right[group == name].mean() * known[key]
    return values


def _check_k(correct: np.ndarray, k: int) -> int:
    n = correct.shape[1]
    if not 1 <= k <= n:
        raise ValueError(f"k is {k}; there are {n} samples per question")
    return n


def _binomials(n: int, k: int) -> np.ndarray:
    """Return (n + 1, k + 1): the probability that i of a samples are drawn, each with probability k/n."""
    table = np.zeros((n + 1, k + 1))
    table[0, 0] = 1
    for a in range(n):
        table[a + 1] = table[a] * (1 - k / n)
        table[a + 1, 1:] += table[a, :-1] * (k / n)
    return table


def _wins(own: int, silent: int, others: tuple, chances: np.ndarray, nodes: np.ndarray, weights: np.ndarray) -> float:
    """Compute the probability that a class of `own` samples wins the vote of k; its share of a tie counts."""
    n, k = len(chances) - 1, chances.shape[1] - 1
    drawn = np.arange(k + 1)
    wins = drawn[1:, None, None]  # axes: winning votes m = 1 … k, nodes, samples drawn so far
    product = np.broadcast_to(chances[silent], (k, len(nodes), k + 1))
    for count in others:
        factor = chances[count] * ((drawn < wins) + (drawn == wins) * nodes[:, None])
        longer = product * factor[..., :1]  # polynomials, cut to their length; the factor ends at min(count, k)
        for i in range(1, min(count, k) + 1):
            longer[..., i:] += product[..., :-i] * factor[..., i : i + 1]
        product = longer
    rest = product[np.arange(k), :, k - drawn[1:]] @ weights  # the other k - m samples are drawn from the others
    return float(chances[own, 1:] @ rest / chances[n, k])
