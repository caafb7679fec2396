"""estimator/mirrors.py against the installed OpenRLHF: the same advantages, up to the rounding of float32."""

import numpy as np
import pytest
import torch

from openrlhf_ebpo.estimator import registry
from openrlhf_ebpo.estimator.advantage import estimate
from openrlhf_ebpo.estimator.config import EstimatorConfig
from openrlhf_ebpo.estimator.contract import Batch

MIRRORED = [name for name, entry in registry.ESTIMATORS.items() if entry.upstream and entry.code]
ALONE = {"reinforce", "flash_reinforce"}  # OpenRLHF refuses the others where a prompt has one response
TOKENS = 12


@pytest.fixture
def upstreams(upstreams_advantages):
    """Advantages (M, G) that the real method gives to rewards (M, G) and masks (M·G, A), in two micro-batches."""

    def run(name, rewards, mask, clip_range):
        parts = torch.randperm(rewards.numel(), generator=torch.Generator().manual_seed(1)).tensor_split(2)
        kl = torch.zeros(mask.shape)
        made = upstreams_advantages(name, rewards, mask, kl, parts, clip_range=clip_range or (-10, 10))
        values = torch.empty(rewards.numel())
        for part, experience in zip(parts, made, strict=True):
            values[part] = experience.advantages[range(len(part)), experience.action_mask.long().argmax(-1)]
        return values.reshape(rewards.shape).double().numpy()

    return run


def drawn(size: int, kind: str):
    generator = torch.Generator().manual_seed(size)
    uniform = torch.rand(24, size, generator=generator)
    rewards = {"binary": (uniform > 0.7).float(), "uniform": uniform, "wide": 60 * (uniform - 0.5)}[kind]
    mask = (torch.rand(rewards.numel(), TOKENS, generator=generator) > 0.4).long()
    mask[:, 3] = 1
    return rewards, mask


def mirrored(name, rewards, mask, clip_range=None) -> np.ndarray:
    config = EstimatorConfig(n_samples_per_prompt=rewards.shape[1], reward_clip_range=clip_range)
    lengths = mask.sum(-1).reshape(rewards.shape)
    batch = Batch.of(rewards.numpy(), np.ones(rewards.shape), lengths=lengths.numpy())
    estimator = registry.build_offline(name, config)
    return estimate(estimator, batch, estimator.initial()).advantages


@pytest.mark.parametrize("clip_range", [None, (-0.25, 0.5)], ids=["default", "clipped"])
@pytest.mark.parametrize("kind", ["binary", "uniform", "wide"])
@pytest.mark.parametrize(
    ("name", "size"), [(n, size) for n in MIRRORED for size in (1, 2, 5, 8) if size > 1 or n in ALONE]
)
def test_a_mirror_gives_what_openrlhf_gives(name, size, kind, clip_range, upstreams):
    rewards, mask = drawn(size, kind)
    theirs = upstreams(name, rewards, mask, clip_range)
    ours = mirrored(name, rewards, mask, clip_range)
    assert ours == pytest.approx(theirs, rel=1e-4, abs=2e-5)
    assert np.abs(theirs).max() > 0.1


def test_equal_rewards_leave_openrlhf_a_rounding_error_and_the_mirror_nothing(upstreams):
    rewards, mask = torch.full((1, 8), 0.3), torch.ones(8, TOKENS).long()
    assert np.abs(upstreams("group_norm", rewards, mask, None)).max() > 0.5
    assert (mirrored("group_norm", rewards, mask) == 0).all()


def test_all_of_openrlhfs_but_gae_have_a_mirror():
    assert {name for name, entry in registry.ESTIMATORS.items() if entry.upstream} == {*MIRRORED, "gae"}
