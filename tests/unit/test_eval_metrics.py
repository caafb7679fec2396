"""Metrics of an evaluation, against enumeration of every subset and every sign flip."""

import itertools
import math
from collections import Counter

import numpy as np
import pytest

from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.eval import differences, metrics
from openrlhf_ebpo.run.results import check_counts


def vote(right: np.ndarray, classes: np.ndarray, chosen: tuple[int, ...]) -> float:
    """Correctness of one majority vote, ties averaged; a class counts as the mean of all its samples."""
    votes = Counter(classes[i] for i in chosen if classes[i] >= 0)
    leaders = [name for name, count in votes.items() if count == max(votes.values())]
    return float(np.mean([right[classes == name].mean() for name in leaders])) if leaders else 0.0


def over_subsets(n: int, k: int, value) -> float:
    return float(np.mean([value(chosen) for chosen in itertools.combinations(range(n), k)]))


@pytest.mark.parametrize("n", [1, 2, 3, 5, 8])
def test_pass_at_k_is_the_mean_over_all_subsets(n):
    correct = np.array([[i < c for i in range(n)] for c in range(n + 1)])
    for k in range(1, n + 1):
        expected = [over_subsets(n, k, lambda chosen, row=row: row[list(chosen)].any()) for row in correct]
        np.testing.assert_allclose(metrics.pass_at_k(correct, k), expected, atol=1e-14)


def test_pass_at_k_is_exact_where_binomials_overflow():
    n = 4_096
    correct = np.arange(n)[None] < np.array([[0], [1], [7], [n - 1], [n]])
    for k in (1, 64, n - 1, n):
        expected = [1 - math.comb(n - c, k) / math.comb(n, k) if c else 0.0 for c in (0, 1, 7, n - 1, n)]
        np.testing.assert_allclose(metrics.pass_at_k(correct, k), expected, rtol=1e-10)


def test_majority_is_the_mean_over_all_subsets():
    rng = np.random.default_rng(0)
    for _ in range(150):
        n = int(rng.integers(1, 9))
        k = int(rng.integers(1, n + 1))
        classes = rng.integers(-1, 4, n)
        right = rng.random(n) < 0.5  # also classes that are right only in part, and right samples without an answer
        expected = over_subsets(n, k, lambda chosen, r=right, c=classes: vote(r, c, chosen))
        assert metrics.majority_at_k(right[None], classes[None], k)[0] == pytest.approx(expected, abs=1e-12)


def test_majority_by_hand():
    tie, silent, pairs = np.array([[0, 1, 2, 3]]), np.array([[0, -1, -1, -1]]), np.array([[0, 0, 1, 1]])
    assert metrics.majority_at_k(tie == 0, tie, 4)[0] == pytest.approx(1 / 4)
    assert metrics.majority_at_k(silent == 0, silent, 4)[0] == 1  # those without an answer do not vote
    assert metrics.majority_at_k(pairs == 0, pairs, 2)[0] == pytest.approx(1 / 6 + 4 / 6 / 2)


def test_majority_of_one_is_pass_at_1_and_of_all_the_one_vote_there_is():
    rng = np.random.default_rng(1)
    classes = rng.integers(0, 9, (40, 64))
    correct = classes == 0
    np.testing.assert_allclose(metrics.majority_at_k(correct, classes, 1), correct.mean(axis=1), atol=1e-12)
    whole = [vote(c, g, range(64)) for c, g in zip(correct, classes, strict=True)]
    np.testing.assert_allclose(metrics.majority_at_k(correct, classes, 64), whole, atol=1e-12)


@pytest.mark.parametrize("k", [0, 5])
def test_k_beyond_the_samples_is_refused(k):
    correct = np.ones((2, 4), bool)
    with pytest.raises(ValueError, match="4 samples"):
        metrics.pass_at_k(correct, k)
    with pytest.raises(ValueError, match="4 samples"):
        metrics.majority_at_k(correct, correct.astype(int), k)


def test_powers():
    assert [metrics.powers(n) for n in (1, 2, 6, 32)] == [[1], [1, 2], [1, 2, 4, 6], [1, 2, 4, 8, 16, 32]]


@pytest.mark.parametrize(
    ("ids", "samples", "n", "named"),
    [
        ("aab", [0, 1, 0], 2, "'b' has 1 samples"),
        ("aabb", [0, 1, 0, 1], 1, "'a' has 2 samples"),
        ("aabb", [0, 1, 1, 1], 2, "'b' has 2 samples, 2 are needed .* numbered 1, 1"),
        ("aabb", [0, 1, 0, 2], 2, "'b' has .* numbered 0, 2"),
        ("aabb", [0, 1, -1, 0], 2, "'b' has .* numbered -1, 0"),
    ],
)
def test_counts_name_the_question(ids, samples, n, named):
    check_counts("aabb", [0, 1, 1, 0], 2)
    with pytest.raises(UsageError, match=named):
        check_counts(ids, samples, n)


def test_summary_of_a_task():
    classes = np.array([[0, 0, 1, -1], [1, 1, 2, 2]])
    found = metrics.summarise(classes == 0, classes, np.full((2, 4), 10), classes == -1)
    assert (found["questions"], found["samples_per_question"]) == (2, 4)
    low, high = found["pass@1"]["interval"]
    assert found["pass@1"]["value"] == 0.25 and 0 < low < 0.25 < high < 1
    assert found["pass@1"]["standard_error"] == pytest.approx(
        math.sqrt(0.25 / 2 * 4 / 3 / 8)
    )  # of two questions, 0.5 and 0
    assert low < found["pass@1"]["run_interval"][0] < 0.25 < found["pass@1"]["run_interval"][1] < high
    assert "run_interval" not in found["pass@2"]
    assert found["pass@2"]["value"] == pytest.approx(5 / 12) and found["pass@4"]["value"] == 0.5
    assert found["maj@4"]["value"] == 0.5 and "maj@16" not in found
    assert (found["truncated"], found["mean_length"], found["no_answer"]) == (0.125, 10, 0.125)
    assert "maj@16" in metrics.summarise(*[np.zeros((2, 32), int)] * 4)


def brute_force_p(shares: list[float]) -> float:
    sums = [abs(sum(np.multiply(signs, shares))) for signs in itertools.product((-1, 1), repeat=len(shares))]
    return float(np.mean([each >= abs(sum(shares)) - 1e-12 for each in sums]))


def test_sign_flips_are_exact_for_few_questions():
    rng = np.random.default_rng(5)
    for size in (1, 2, 5, 9):
        shares = (rng.integers(-4, 6, size) / 4).tolist()
        assert differences.sign_flip_p(np.array(shares)) == pytest.approx(brute_force_p(shares))
    assert differences.sign_flip_p(np.zeros(30)) == 1
    assert differences.sign_flip_p(np.ones(10)) == 2 / 2**10


def test_sign_flips_of_many_questions_come_close_to_the_exact_p():
    shares = np.random.default_rng(6).normal(0.3, 1, 15)
    assert len(shares) > differences.EXACT_QUESTIONS
    assert differences.sign_flip_p(shares) == pytest.approx(brute_force_p(shares.tolist()), abs=0.02)
    assert differences.sign_flip_p(np.ones(500)) == 1 / (differences.DRAWS + 1)


def test_p_is_uniform_where_models_are_alike():
    rng = np.random.default_rng(7)
    found = [differences.sign_flip_p(rng.normal(size=12)) for _ in range(300)]
    assert np.mean(np.array(found) <= 0.1) == pytest.approx(0.1, abs=0.05)


def test_comparison_weighs_tasks_alike():
    a = [np.zeros(4), np.full(400, 0.5)]
    b = [np.ones(4), np.tile([0.0, 1.0], 200)]
    found = differences.compare(a, b, [2, 2])
    assert found["difference"] == pytest.approx(0.5)
    assert found["interval"][0] < 0.5 < found["interval"][1] < 0.6
    reverse = differences.compare(b, a, [2, 2])
    assert reverse["difference"] == pytest.approx(-0.5) and reverse["p"] == pytest.approx(found["p"])
    same = differences.compare(b, b, [2, 2])
    low, high = same["interval"]
    assert (same["difference"], same["p"]) == (0, 1) and low == pytest.approx(-high) and 0 < high < 0.4
