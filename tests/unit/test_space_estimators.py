"""The numbers of the Space's Understand page."""

import numpy as np
import pytest

from openrlhf_ebpo.estimator.advantage import grpo_advantages
from openrlhf_ebpo.estimator.prior import Prior
from openrlhf_ebpo.space.estimators import ESTIMATORS, Setting, World, centred_batch, error_curves, error_ratio

NAMES = (
    "group mean (GRPO, Dr. GRPO)",
    "EBPO, as in the paper",
    "within σ², raw τ²",
    "within σ², corrected τ²",
    "Beta-Binomial (revision)",
)


@pytest.mark.parametrize(
    ("a", "b", "size", "expected"),
    [
        (1, 1, 4, (1.5, 1.0, 1.031, 1.0, 1.08)),
        (0.3, 0.3, 4, (1.15, 1.144, 1.002, 1.0, 1.015)),
        (0.3, 0.3, 8, (1.075, 1.117, 1.0, 1.0, 1.002)),
        (0.3, 0.3, 16, (1.038, 1.077, 1.0, 1.0, 1.0)),
        (2, 6, 4, (3.0, 1.255, 1.32, 1.0, 1.5)),
        (0.2, 1.8, 4, (1.5, 1.0, 1.031, 1.0, 1.08)),
    ],
)
def test_errors_over_the_bayes_risk_are_those_of_the_estimators_page(a, b, size, expected):
    mean = a / (a + b)
    curves = error_curves(World(mean, mean * (1 - mean) / (a + b + 1)), np.array([size]))
    assert [round(float(curves[name][0]), 3) for name in NAMES] == list(expected)


def test_the_error_is_what_a_simulation_finds():
    rng = np.random.default_rng(0)
    p = rng.beta(2, 6, 400_000)
    mu = rng.binomial(4, p) / 4
    weight = 0.4
    measured = np.mean(((1 - weight) * mu + weight * 0.25 - p) ** 2)
    world = World(0.25, 0.25 * 0.75 / 9)
    bayes = 1 / (1 / (world.within / 4) + 1 / world.between)
    assert error_ratio(world, 4, weight) * bayes == pytest.approx(measured, rel=0.01)


def test_one_group_under_every_estimator():
    prior = Prior().update([1, 0, 0, 0, 1, 1, 1, 1, 0, 0, 0, 0], [0.25, 1, 0])
    setting = Setting(prior.mean, prior.within_variance, prior.between_variance)
    rewards = np.array([1.0, 0, 0, 0])
    found = {name: estimate(rewards, setting) for name, estimate in ESTIMATORS.items()}
    assert found["EBPO"].baselines[0] == pytest.approx(0.2919664, abs=1e-7)
    assert found["Dr. GRPO"].advantages == pytest.approx([0.75, -0.25, -0.25, -0.25])
    assert found["RLOO"].advantages == pytest.approx([1, -1 / 3, -1 / 3, -1 / 3])
    expected = grpo_advantages(np.array(rewards)[None], np.ones((1, 4), bool), 1.0)[0]
    assert found["GRPO"].advantages == pytest.approx(expected)
    failed = {name: estimate(np.zeros(4), setting).advantages[0] for name, estimate in ESTIMATORS.items()}
    assert failed == pytest.approx({"GRPO": 0, "Dr. GRPO": 0, "RLOO": 0, "EBPO": -0.1049161}, abs=1e-7)


def test_final_advantages_do_not_depend_on_the_prior_mean():
    batch = np.array([0, 1, 2, 4])
    one, other = (centred_batch(batch, 4, Setting(mean, 0.2, 0.05)) for mean in (0.1, 0.9))
    assert np.all(np.abs(one[0] - other[0]) > 0.1)
    np.testing.assert_allclose(one[1], other[1], atol=1e-12)
    np.testing.assert_allclose(one[2], other[2], atol=1e-12)


def test_a_world_that_no_beta_distribution_has_is_refused():
    with pytest.raises(ValueError, match="variance"):
        World(0.5, 0.25)
