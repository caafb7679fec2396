"""EBPO as an estimator: its presets are code, and its identity knows what the moments depend on."""

import pytest

from openrlhf_ebpo.estimator.config import PRESETS, EstimatorConfig
from openrlhf_ebpo.estimator.ebpo import EBPO, PARTS


def ebpo(n_samples_per_prompt: int = 4, **settings) -> EBPO:
    return EBPO(EstimatorConfig(n_samples_per_prompt, **settings))


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_chooses_every_part_and_is_code(preset):
    assert PRESETS[preset].keys() == PARTS.keys()
    assert ebpo(preset=preset).parts.keys() == PARTS.keys()


@pytest.mark.parametrize("change", [{"n_samples_per_prompt": 8}, {"fail_reward": -1.0}, {"pass_reward": 2.0}])
def test_the_identity_knows_what_the_moments_depend_on(change):
    assert ebpo(**change).identity() != ebpo().identity()


def test_the_identity_ignores_how_the_prior_was_started():
    assert ebpo(reset_prior=True).identity() == ebpo().identity()
