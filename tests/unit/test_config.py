"""Every setting that makes no sense is answered with the flag that sets it."""

import argparse
from types import SimpleNamespace

import pytest

from openrlhf_ebpo.estimator.config import FLAG, PRESETS, EBPOConfig, add_flags


@pytest.mark.parametrize(
    ("settings", "shown"),
    [
        ({"preset": "papers"}, [f"{FLAG}.preset", "'papers'", "paper"]),
        ({"n_samples_per_prompt": 1}, ["--rollout.n_samples_per_prompt is 1", "at least 2"]),
        ({"fail_reward": 1.0, "pass_reward": 1.0}, [f"{FLAG}.pass_reward (1.0)", f"{FLAG}.fail_reward (1.0)"]),
        ({"fail_reward": 1.0, "pass_reward": -1.0}, [f"{FLAG}.pass_reward (-1.0)", f"{FLAG}.fail_reward (1.0)"]),
        ({"pass_reward": float("nan")}, [f"{FLAG}.pass_reward"]),
        ({"pass_reward": float("inf")}, [f"{FLAG}.pass_reward"]),
        ({"reward_clip_range": (1.0, -1.0)}, ["--reward.clip_range"]),
    ],
    ids=lambda value: str(value)[:50],
)
def test_a_setting_that_makes_no_sense_names_its_flag(settings, shown):
    with pytest.raises(ValueError) as error:
        EBPOConfig(**{"n_samples_per_prompt": 4, **settings})
    for part in shown:
        assert part in str(error.value)


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
        EBPOConfig(n_samples_per_prompt=4, preset="new")
    EBPOConfig(n_samples_per_prompt=4)


def test_flags_reach_the_config_through_upstreams_nested_arguments():
    parser = argparse.ArgumentParser()
    add_flags(parser)
    parsed = vars(parser.parse_args([f"{FLAG}.fail_reward", "-1", f"{FLAG}.init_prior", "p.json"]))
    ebpo = {name.rpartition(".")[2]: value for name, value in parsed.items()}
    args = SimpleNamespace(
        rollout=SimpleNamespace(n_samples_per_prompt=8),
        algo=SimpleNamespace(advantage=SimpleNamespace(ebpo=SimpleNamespace(**ebpo, reward_clip_range=None))),
    )
    config = EBPOConfig.from_args(args)
    assert config == EBPOConfig(n_samples_per_prompt=8, fail_reward=-1.0, init_prior="p.json")
    assert config.reward_range == 2.0


def test_flags_have_the_defaults_of_the_config():
    parser = argparse.ArgumentParser()
    add_flags(parser)
    defaults = {name.rpartition(".")[2]: value for name, value in vars(parser.parse_args([])).items()}
    assert EBPOConfig(n_samples_per_prompt=4, **defaults) == EBPOConfig(n_samples_per_prompt=4)


def test_an_unknown_preset_does_not_pass_the_parser(capsys):
    parser = argparse.ArgumentParser()
    add_flags(parser)
    with pytest.raises(SystemExit):
        parser.parse_args([f"{FLAG}.preset", "nonsense"])
    assert "paper" in capsys.readouterr().err


@pytest.mark.parametrize("change", [{"n_samples_per_prompt": 8}, {"fail_reward": -1.0}, {"pass_reward": 2.0}])
def test_the_identity_knows_what_the_moments_depend_on(change):
    base = {"n_samples_per_prompt": 4}
    assert EBPOConfig(**base).identity() != EBPOConfig(**{**base, **change}).identity()


def test_the_identity_ignores_how_the_prior_was_started():
    base = EBPOConfig(n_samples_per_prompt=4).identity()
    assert EBPOConfig(n_samples_per_prompt=4, reset_prior=True).identity() == base
    assert base["variant"] == PRESETS["paper"]
