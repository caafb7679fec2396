"""The numbers of the Space's Understand page."""

import subprocess
import sys

import numpy as np
import pytest

from openrlhf_ebpo.estimator.advantage import grpo_advantages
from openrlhf_ebpo.estimator.config import EstimatorConfig
from openrlhf_ebpo.estimator.registry import ESTIMATORS, offline
from openrlhf_ebpo.space.estimators import (
    OTHERS,
    Setting,
    World,
    binary_batch,
    centred_batch,
    error_curves,
    error_ratio,
    others,
    under_every,
)

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


CONFIG = EstimatorConfig(4)
PRIOR = Setting(5 / 12, 35 / 144, 13 / 72)  # of the worked example in docs/estimator.md


def test_a_batch_under_every_estimator_that_needs_no_training():
    found, left_out = under_every(binary_batch(np.array([1, 0, 2]), 4), CONFIG, {"ebpo": PRIOR.state()})
    assert list(found) == [name for name in ESTIMATORS if name != "gae"] and left_out == []
    assert found["ebpo"].baselines[0] == pytest.approx(0.2919664, abs=1e-7)
    assert found["dr_grpo"].advantages[0] == pytest.approx([0.75, -0.25, -0.25, -0.25])
    assert found["rloo"].advantages[0] == pytest.approx([1, -1 / 3, -1 / 3, -1 / 3])
    rewards = np.array([[1.0, 0, 0, 0]])
    expected = grpo_advantages(rewards, np.ones((1, 4), bool), 1.0)[0]
    assert found["group_norm"].advantages[0] == pytest.approx(expected)
    failed = {name: found[name].advantages[1, 0] for name in ("group_norm", "dr_grpo", "rloo", "ebpo")}
    assert failed == {"group_norm": 0, "dr_grpo": 0, "rloo": 0, "ebpo": failed["ebpo"]} and failed["ebpo"] < -0.1


def test_what_a_batch_gets_is_what_the_estimator_gives_in_training():
    batch = binary_batch(np.array([0, 1, 3, 4]), 4)
    for name, one in under_every(batch, CONFIG)[0].items():
        estimator = offline(name, CONFIG)
        step = estimator.step(batch, estimator.initial())
        assert np.array_equal(one.advantages, step.advantages), name
    alone = {name for name, one in under_every(batch, CONFIG, {"ebpo": PRIOR.state()})[0].items() if one.alone}
    assert {"spo", "dbb"} <= alone and not alone & {"ebpo", "group_norm", "rloo", "score_weighted"}


def test_the_pages_compute_without_torch():
    code = (
        "import sys\nfrom openrlhf_ebpo.space.links import clean\nfrom openrlhf_ebpo.space.pages import samples, understand\n"
        "understand.render(clean({}))\nassert samples and not {'torch', 'ray'} & sys.modules.keys()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_estimators_that_cannot_work_with_a_batch_are_named():
    found, left_out = under_every(binary_batch(np.array([1, 0]), 1), EstimatorConfig(1))
    assert {"ebpo", "bnpo"} <= set(left_out) and "flash_reinforce" in found


@pytest.mark.parametrize(("mean", "between"), [(0.2, 0.05), (0.5, 0.245), (0.01, 1e-5), (0.99, 0.009)])
def test_the_other_prompts_are_as_many_and_as_different_as_the_sliders_say(mean, between):
    world, size = World(mean, between), 8
    rates = others(world, size) / size
    assert len(rates) == OTHERS and rates.mean() == pytest.approx(mean, abs=0.02)
    assert rates.var() == pytest.approx(between + world.within / size, rel=0.15, abs=0.003)


def test_final_advantages_do_not_depend_on_the_prior_mean():
    batch = np.array([0, 1, 2, 4])
    one, other = (centred_batch(batch, 4, Setting(mean, 0.2, 0.05)) for mean in (0.1, 0.9))
    assert np.all(np.abs(one[0] - other[0]) > 0.1)
    np.testing.assert_allclose(one[1], other[1], atol=1e-9)
    np.testing.assert_allclose(one[2], other[2], atol=1e-9)


def test_a_world_that_no_beta_distribution_has_is_refused():
    with pytest.raises(ValueError, match="variance"):
        World(0.5, 0.25)
