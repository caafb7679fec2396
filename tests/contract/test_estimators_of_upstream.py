"""Upstream's estimators are upstream's, to the last bit; and the pure functions with S = 0 are its dr_grpo."""

import numpy as np
import pytest
import torch

from openrlhf_ebpo.estimator import registry
from openrlhf_ebpo.estimator.shrinkage import group_mean, shrunk_baseline
from openrlhf_ebpo.train.upstream_main import UpstreamMain
from openrlhf_ebpo.upstream.controller.experience_maker import token_returns
from openrlhf_ebpo.upstream.controller.prompts import INFO_KEY

REWARDS = [0.0, 1.0, 0.3, 0.7, 1.0, 1.0, 0.0, 0.0, -1.0, 12.5, 0.1, 0.1]
PARSER = UpstreamMain("openrlhf.cli.train_ppo_ray").parser("x")
UPSTREAMS = PARSER._option_string_actions["--algo.advantage.estimator"].choices
WITHOUT_GROUPS = ("reinforce", "flash_reinforce", "gae")


def assert_same(ours, theirs) -> None:
    if isinstance(theirs, torch.Tensor):
        assert torch.equal(ours, theirs)
        assert ours.dtype == theirs.dtype
    elif isinstance(theirs, dict):
        assert list(ours) == list(theirs)
        for key in theirs:
            assert_same(ours[key], theirs[key])
    else:
        assert ours == theirs


@pytest.mark.parametrize("kl_coef", [0.0, 0.2])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"reward.clip_range": (-0.25, 0.25)},
        {"reward.stop_properly_penalty_coef": 0.5, "reward.overlong_buffer_len": 12},
        {"algo.advantage.gamma": 0.9, "algo.advantage.no_std_norm": True},
    ],
    ids=["plain", "clipped", "penalties", "discounted"],
)
@pytest.mark.parametrize("estimator", UPSTREAMS)
def test_every_other_estimator_runs_upstreams_code_to_the_last_bit(
    estimator, changes, dynamic, kl_coef, rollout_args, answers, to_samples, make_maker, patched_class, original_class
):
    results = []
    for maker_class in (original_class, patched_class):
        size = 1 if estimator in WITHOUT_GROUPS else 4
        args = rollout_args(estimator, G=size, **{"train.dynamic_batch_enable": dynamic, **changes})
        maker = make_maker(maker_class, args, kl_coef)
        samples = to_samples(answers(REWARDS).responses(), args)
        for sample in samples:
            del sample.info[INFO_KEY]  # our generator's; upstream's maker knows nothing of it
        results.append(maker.make_experience_batch(samples))
    theirs, ours = results
    assert len(ours) == len(theirs) > 1
    for our, their in zip(ours, theirs, strict=True):
        for name in vars(their):
            assert_same(getattr(our, name), getattr(their, name))
        assert their.returns.data_ptr() != their.advantages.data_ptr()


def test_another_estimators_result_is_read_for_the_run_log(
    rollout_args, answers, to_samples, make_maker, patched_class
):
    args = rollout_args("dr_grpo", G=4)
    maker = make_maker(patched_class, args)
    maker.make_experience_batch(to_samples(answers(REWARDS).responses(), args))
    rewards = torch.tensor(REWARDS).reshape(3, 4)
    result = maker.rollouts.result
    np.testing.assert_allclose(result.rewards, rewards)
    np.testing.assert_allclose(result.advantages, (rewards - rewards.mean(-1, keepdim=True)).clamp(-10, 10), atol=1e-6)
    assert maker.metrics == {
        "ebpo/all_fail_fraction": 0.0,
        "ebpo/all_pass_fraction": 0.0,
        "ebpo/reward_error_fraction": 0.0,
        "ebpo/zero_advantage": 0.0,
    }
    assert maker.estimator is None


def random_batch(size: int, kind: str):
    generator = torch.Generator().manual_seed(size)
    uniform = torch.rand(40, size, generator=generator)
    rewards = {
        "binary": (uniform > 0.7).float(),
        "tenths": (uniform * 10).round() / 10,
        "uniform": uniform,
        "wide": 1e3 * (uniform - 0.5),
    }[kind]
    mask = (torch.rand(rewards.numel(), 12, generator=generator) > 0.4).long()
    mask[:, 3] = 1
    return rewards, mask, torch.randn(mask.shape, generator=generator)


def unshrunk(rewards: torch.Tensor) -> torch.Tensor:
    means = group_mean(rewards.numpy(), np.ones(rewards.shape, bool))
    return torch.tensor(rewards.numpy() - shrunk_baseline(means, 0.123, 0.0)).reshape(-1).float()


@pytest.mark.parametrize("kl_coef", [0.0, 0.001, 0.1])
@pytest.mark.parametrize("kind", ["binary", "tenths", "uniform", "wide"])
@pytest.mark.parametrize("size", [2, 3, 4, 5, 7, 8, 16, 33])
def test_without_shrinkage_and_normalisation_it_is_dr_grpo(size, kind, kl_coef, upstreams_advantages):
    rewards, mask, kl = random_batch(size, kind)
    returns, totals = token_returns(unshrunk(rewards), mask, *([kl.clone(), kl_coef] if kl_coef else []))
    (theirs,) = upstreams_advantages("dr_grpo", rewards, mask, kl, [torch.arange(rewards.numel())], kl_coef)
    scale = max(1.0, float(rewards.abs().max()))  # upstream's means are float32's, ours float64's
    tolerance = (1e-6 if kl_coef else 3e-7) * scale
    for found, expected in ((returns, theirs.advantages), (returns, theirs.returns), (totals, theirs.info["return"])):
        torch.testing.assert_close(found, expected, rtol=0, atol=tolerance)
    assert returns.dtype == theirs.advantages.dtype == torch.float32


def test_the_registry_lists_what_openrlhf_has():
    assert set(UPSTREAMS) <= {name for name in registry.ESTIMATORS if not registry.computed_here(name)}
