"""Every setting that is out of range is answered with the flag that sets it."""

import argparse
from types import SimpleNamespace

import pytest

from openrlhf_ebpo.estimator.advantage_settings import add_flags
from openrlhf_ebpo.estimator.config import EBPO_FLAG, EstimatorConfig


@pytest.mark.parametrize(
    ("settings", "shown"),
    [
        (
            {"fail_reward": 1.0, "pass_reward": 1.0},
            [f"{EBPO_FLAG}.pass_reward (1.0)", f"{EBPO_FLAG}.fail_reward (1.0)"],
        ),
        (
            {"fail_reward": 1.0, "pass_reward": -1.0},
            [f"{EBPO_FLAG}.pass_reward (-1.0)", f"{EBPO_FLAG}.fail_reward (1.0)"],
        ),
        ({"pass_reward": float("nan")}, [f"{EBPO_FLAG}.pass_reward"]),
        ({"pass_reward": float("inf")}, [f"{EBPO_FLAG}.pass_reward"]),
        ({"reward_clip_range": (1.0, -1.0)}, ["--reward.clip_range"]),
    ],
    ids=lambda value: str(value)[:50],
)
def test_a_setting_that_makes_no_sense_names_its_flag(settings, shown):
    with pytest.raises(ValueError) as error:
        EstimatorConfig(**{"n_samples_per_prompt": 4, **settings})
    for part in shown:
        assert part in str(error.value)


def test_flags_reach_the_config_through_upstreams_nested_arguments():
    parser = argparse.ArgumentParser()
    add_flags(parser)
    parsed = vars(parser.parse_args([f"{EBPO_FLAG}.fail_reward", "-1", f"{EBPO_FLAG}.init_prior", "p.json"]))
    ebpo = {name.rpartition(".")[2]: value for name, value in parsed.items()}
    args = SimpleNamespace(
        rollout=SimpleNamespace(n_samples_per_prompt=8),
        algo=SimpleNamespace(advantage=SimpleNamespace(ebpo=SimpleNamespace(**ebpo, reward_clip_range=None))),
    )
    config = EstimatorConfig.from_args(args)
    assert config == EstimatorConfig(n_samples_per_prompt=8, fail_reward=-1.0, init_prior="p.json")
    assert config.reward_range == 2.0
