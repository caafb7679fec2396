"""The law of p and κ (research/lab/law.py) against Monte Carlo, and its consequences against each other."""

import numpy as np
import pytest

from lab import law

GROUPS = 150_000


def drawn(p: np.ndarray, kappa: float, group: int, push: float = 0.1):
    """Rewards (M, G), and the scores' part along ∇p_m and their squared norm.

    A score of prompt m is along its own unit vector, `push` for a pass and so that E[s] = 0 for a failure, and else normal noise of
    independent direction; its squared norm is 1 on average for a pass and κ for a failure.
    """
    random = np.random.default_rng(0)
    passed = random.random((len(p), group)) < p[:, None]
    along = np.where(passed, push, -push * p[:, None] / (1 - p[:, None]))
    return passed, along, np.where(passed, 1.0, kappa) - along**2


def variance_of_mean(passed, baselines, along, rest) -> float:
    """Of the mean over each group of (r − b)·s, summed over the directions, less ‖∇p‖², which is 0: every prompt has its own."""
    weights = passed - baselines
    noise = (weights**2 * rest).sum(1) / passed.shape[1] ** 2
    return float(((weights * along).mean(1) ** 2 + noise).mean())


@pytest.mark.parametrize("group", [2, 4, 16])
@pytest.mark.parametrize("shrinkage", [0.0, 0.4, 1.0])
@pytest.mark.parametrize(("p", "kappa"), [(0.05, 1.0), (0.05, 10.0), (0.3, 0.4), (0.3, 5.0), (0.8, 3.0)])
def test_the_variance_is_that_of_a_simulation(p, kappa, shrinkage, group):
    rates = np.full(GROUPS // group, p)
    passed, along, rest = drawn(rates, kappa, group, push=0.02)
    others = (passed.sum(1, keepdims=True) - passed) / (group - 1)
    found = variance_of_mean(passed, (1 - shrinkage) * others + shrinkage * p, along, rest)
    assert group * found / p == pytest.approx(law.variance(p, kappa, shrinkage, group), rel=0.06)


@pytest.mark.parametrize("group", [2, 4, 8])
@pytest.mark.parametrize("shrinkage", [0.0, 0.5, 1.0])
def test_responses_to_one_prompt_share_its_gradient(shrinkage, group):
    """Here ‖∇p_m‖² is no small thing, and prompts differ in difficulty."""
    rates = np.minimum(np.random.default_rng(1).beta(1, 4, GROUPS // group), 0.6)
    kappa, push = 4.0, 0.9
    passed, along, rest = drawn(rates, kappa, group, push)
    assert (rest > 0).all()
    others, target = (passed.sum(1, keepdims=True) - passed) / (group - 1), rates.mean()
    found = variance_of_mean(passed, (1 - shrinkage) * others + shrinkage * target, along, rest)
    shared = float(((rates * push) ** 2).mean())
    unit = rates.mean()
    expected = law.of_a_group(
        law.variance(rates, kappa, shrinkage, group, target), shared / unit, 0.0, shrinkage, group
    )
    assert found / unit == pytest.approx(expected, rel=0.03)


@pytest.mark.parametrize("p", [0.01, 0.05, 0.3, 0.6, 0.9])
def test_beyond_the_threshold_no_baseline_beats_the_true_mean(p):
    for kappa in (0.5, 1.0, 2.0, 3.0, 12.0, 40.0):
        assert (law.variance(p, kappa, 1.0, 4) > 1) == (kappa > law.threshold(p))


@pytest.mark.parametrize("kappa", [0.3, 1.0, 7.5])
def test_the_best_constant_is_the_best_and_a_better_mean_saves_no_more_than_it_says(kappa):
    p, group = 0.2, 4
    constants = np.linspace(0, 1, 1001)
    variances = [law.with_baseline(p, kappa, b) for b in constants]
    assert constants[np.argmin(variances)] == pytest.approx(law.best_constant(p, kappa), abs=1e-3)
    saved = law.variance(p, kappa, 0.0, group) / law.variance(p, kappa, 1.0, group)
    assert saved == pytest.approx(law.most_saved(p, kappa, group))


@pytest.mark.parametrize("group", [2, 4, 8, 16])
def test_with_scores_of_one_norm_it_is_the_known_bound(group):
    assert law.most_saved(0.3, 1.0, group) == pytest.approx(group / (group - 1))


def test_ebpos_baseline_is_leave_one_out_with_a_larger_shrinkage():
    assert law.leave_one_out_shrinkage(0.4, 2) == pytest.approx(0.8 / 1.4)
    assert law.leave_one_out_shrinkage(1.0, 4) == 1.0
