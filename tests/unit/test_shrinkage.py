"""The formulas: EBPO.md's table of mean squared errors, degenerate cases."""

import numpy as np
import pytest

from openrlhf_ebpo.estimator.shrinkage import group_mean, shrinkage_weight, shrunk_baseline, standardise


@pytest.mark.parametrize(
    ("a", "b", "size", "of_group_mean", "of_paper", "of_within_raw"),
    [
        (1, 1, 4, 1.500, 1.000, 1.031),
        (0.3, 0.3, 4, 1.150, 1.144, 1.002),
        (0.3, 0.3, 8, 1.075, 1.117, 1.000),
        (0.3, 0.3, 16, 1.038, 1.077, 1.000),
        (2, 6, 4, 3.000, 1.255, 1.320),
        (0.2, 1.8, 4, 1.500, 1.000, 1.031),
    ],
)
def test_the_mean_squared_errors_of_the_baselines_are_those_of_the_table(
    a, b, size, of_group_mean, of_paper, of_within_raw
):
    """p ~ Beta(a, b), μ_m = (successes of `size` trials) / size. For V = (1 − S)·μ_m + S·p̄ the error splits into noise
    and shrinkage: E(V − p)² = (1 − S)²·E[p(1 − p)]/size + S²·var p; the Bayes rule is the S that minimises it."""
    mean = a / (a + b)
    between = mean * (1 - mean) / (a + b + 1)
    within = mean * (1 - mean) - between
    raw = between + within / size

    def error(shrinkage):
        return (1 - shrinkage) ** 2 * within / size + shrinkage**2 * between

    bayes = error(shrinkage_weight(within, between, size, 1.0))
    assert bayes == pytest.approx(within / (a + b + size))  # the posterior variance of a Beta, averaged
    paper = shrinkage_weight(mean * (1 - mean), raw, size, 1.0)
    within_raw = shrinkage_weight(within, raw, size, 1.0)
    ratios = [error(0.0) / bayes, error(paper) / bayes, error(within_raw) / bayes]
    assert ratios == pytest.approx([of_group_mean, of_paper, of_within_raw], abs=5.01e-4)


@pytest.mark.parametrize("reward_range", [1.0, 2.0, 100.0])
def test_nothing_that_distinguishes_groups_means_full_shrinkage(reward_range):
    limit = 1e-6 * reward_range**2
    assert shrinkage_weight(0.0, 0.0, 4, reward_range) == 1.0
    assert shrinkage_weight(0.4 * limit, 0.85 * limit, 4, reward_range) == 1.0
    assert shrinkage_weight(0.4 * limit, 0.95 * limit, 4, reward_range) == pytest.approx(0.1 / 1.05)


def test_a_group_without_a_valid_sample_has_mean_zero_and_what_is_not_valid_does_not_count():
    rewards = np.array([[1.0, 5.0, 0.0], [7.0, 7.0, 7.0]])
    valid = np.array([[1, 0, 1], [0, 0, 0]], dtype=bool)
    assert group_mean(rewards, valid).tolist() == [[0.5], [0.0]]


def test_no_shrinkage_leaves_the_group_mean_to_the_last_bit():
    means = np.random.default_rng(0).random((50, 1), dtype=np.float32)
    assert np.array_equal(shrunk_baseline(means, 0.123456, 0.0), means)
    assert np.allclose(shrunk_baseline(means, 0.25, 1.0), 0.25)


def test_a_spread_of_rounding_size_is_no_spread():
    valid = np.ones((1, 4), bool)
    tiny = np.array([[0.0, 0.0, 0.0, 1.9e-6]])  # sample std 0.95e-6
    assert not standardise(tiny, valid, 1.0).any()
    assert standardise(tiny * 1.1, valid, 1.0).any()
    assert not standardise(tiny * 1.1, valid, 2.0).any()
    assert not standardise(np.array([[0.7]]), np.ones((1, 1), bool), 1.0).any()
