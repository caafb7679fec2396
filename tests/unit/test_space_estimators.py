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
    others,
    under_every,
)

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


def test_a_world_that_no_beta_distribution_has_is_refused():
    with pytest.raises(ValueError, match="variance"):
        World(0.5, 0.25)
