"""The same numbers on the GPU as on the CPU, and the seams of a CUDA stack. No training."""

import subprocess
import sys

import pytest
import torch
from estimates import ebpo_step

from openrlhf_ebpo.estimator.config import EstimatorConfig
from openrlhf_ebpo.estimator.prior import Prior
from openrlhf_ebpo.upstream.controller.experience_maker import token_returns
from openrlhf_ebpo.upstream.install import install
from openrlhf_ebpo.upstream.policy.policy_loss import clip_cov, kl_cov, token_covariance

pytestmark = pytest.mark.gpu
CONFIG = EstimatorConfig(n_samples_per_prompt=4)
DEVICES = ("cpu", "cuda")


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def test_the_advantage_stage_gives_the_same_on_cuda_tensors():
    generator = seeded()
    rewards = torch.rand(32, 4, generator=generator)
    valid = torch.rand(32, 4, generator=generator) > 0.1
    on_cpu, on_gpu = (ebpo_step(rewards.to(d), valid.to(d), Prior(), CONFIG) for d in DEVICES)
    torch.testing.assert_close(on_gpu.advantages.cpu(), on_cpu.advantages)
    mask = (torch.rand(128, 50, generator=generator) > 0.3).long()
    kl = torch.randn(128, 50, generator=generator)
    for divergence in (None, kl):
        tensors = (on_cpu.advantages.reshape(-1).float(), mask, divergence)
        expected = token_returns(*tensors, 0.01)
        found = token_returns(*(None if t is None else t.cuda() for t in tensors), 0.01)
        torch.testing.assert_close(found[0].cpu(), expected[0], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(found[1].cpu(), expected[1], atol=1e-5, rtol=1e-5)


def changed(device: str, loss):
    """Return a loss of the same log-probabilities and advantages: (advantages, selected), on the CPU."""
    generator = seeded()
    old, advantages = -torch.rand(16, 40, generator=generator), torch.randn(16, 1, generator=generator).expand(16, 40)
    new = old + 0.1 * torch.randn(16, 40, generator=generator)
    mask = (torch.rand(16, 40, generator=generator) > 0.2).to(device)
    new, old, advantages = new.to(device), old.to(device), advantages.contiguous().to(device)
    return [t.cpu() for t in loss(new - old, advantages, token_covariance(new, advantages, mask), mask)]


def test_clip_cov_and_kl_cov_choose_the_same_tokens_on_cuda_tensors():
    def clip(*tensors):
        how = {"ratio": 0.05, "bounds": (0.0, 5.0), "eps_clip": (0.2, 0.2), "generator": seeded()}
        return clip_cov(*tensors, **how)

    def kl(*tensors):
        return kl_cov(*tensors, ratio=0.05, coef=1.0)

    for loss in (clip, kl):
        (expected, chosen), (found, chosen_there) = (changed(device, loss) for device in DEVICES)
        assert chosen.any() and torch.equal(chosen_there, chosen)
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_packing_gives_the_same_on_cuda_tensors_with_and_without_flash_attn():
    install()
    from openrlhf.models.ring_attn_utils import pad_input, unpad_input

    mask = (torch.rand(5, 9, generator=seeded()) > 0.3).long()
    hidden = torch.randn(5, 9, 3, generator=seeded())
    tokens, indices, cumulative, longest, *_ = unpad_input(hidden.cuda(), mask.cuda())
    assert tokens.is_cuda and longest == int(mask.sum(1).max())
    assert cumulative.tolist() == [0, *mask.sum(1).cumsum(0).tolist()] and cumulative.dtype == torch.int32
    assert torch.equal(pad_input(tokens, indices, 5, 9).cpu(), hidden * mask[..., None])


EVERY_ROW = """
import importlib, sys, torch
from openrlhf_ebpo.upstream.install import all_seams, install
from openrlhf_ebpo.upstream.replacements import SEAMS
assert all_seams() == SEAMS
install()
for seam in SEAMS:
    importlib.import_module(seam.module)
assert not [name for name in sys.modules if name.startswith("openrlhf_ebpo.upstream.cpu")]
names = ("current_device", "set_device", "synchronize", "current_stream")
assert not any(hasattr(getattr(torch.cuda, name), "_ebpo_seams") for name in names)
print("inactive")
"""


def test_no_row_of_the_cpu_backend_is_applied():
    """In a process of its own: other tests may have imported the backend in this one."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", EVERY_ROW], capture_output=True, text=True, timeout=300
    )
    assert done.stdout.strip().endswith("inactive"), done.stderr[-3000:]
