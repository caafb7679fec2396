"""EBPO as an estimator: its presets are code, and its identity knows what the moments depend on."""

import pytest

from openrlhf_ebpo.estimator.config import FLAG, EstimatorConfig
from openrlhf_ebpo.estimator.ebpo import EBPO
from openrlhf_ebpo.estimator.presets import PARTS, PRESETS


def ebpo(n_samples_per_prompt: int = 4, **settings) -> EBPO:
    return EBPO(EstimatorConfig(n_samples_per_prompt, **settings))


def test_one_response_per_prompt_is_refused_with_the_flag():
    with pytest.raises(ValueError, match=r"--rollout\.n_samples_per_prompt is 1: ebpo needs at least 2"):
        ebpo(1)


@pytest.mark.parametrize(
    ("choices", "shown"),
    [
        ({**PRESETS["paper"], "order": "use_then_update"}, "order 'use_then_update' is not implemented"),
        ({**PRESETS["paper"], "forgetting": 0.9}, "must choose exactly history, order"),
        ({"history": "run"}, "must choose exactly history, order"),
    ],
)
def test_a_preset_that_no_code_implements_cannot_be_used_under_its_name(monkeypatch, choices, shown):
    monkeypatch.setitem(PRESETS, "new", choices)
    with pytest.raises(ValueError, match=rf"{FLAG}.preset new.*{shown}"):
        ebpo(preset="new")
    ebpo()


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_is_code(preset):
    parts = ebpo(preset=preset).parts
    assert parts.keys() == PARTS.keys()
    assert all(map(callable, parts.values()))


@pytest.mark.parametrize("change", [{"n_samples_per_prompt": 8}, {"fail_reward": -1.0}, {"pass_reward": 2.0}])
def test_the_identity_knows_what_the_moments_depend_on(change):
    assert ebpo(**change).identity() != ebpo().identity()


def test_the_identity_ignores_how_the_prior_was_started():
    assert ebpo(reset_prior=True).identity() == ebpo().identity()
    assert ebpo().identity()["variant"] == PRESETS["paper"]
