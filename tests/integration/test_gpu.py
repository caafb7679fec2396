"""What only CUDA can show. Everything here skips without it; on a GPU machine: `pytest -m gpu`."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from estimates import ebpo_step

from openrlhf_ebpo.estimator.config import EstimatorConfig
from openrlhf_ebpo.estimator.prior import Prior
from openrlhf_ebpo.record.run_log import read_metrics
from openrlhf_ebpo.training.returns import token_returns

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU and a CUDA build of torch"),
]
CONFIG = EstimatorConfig(n_samples_per_prompt=4)


def test_the_advantage_stage_gives_the_same_on_cuda_tensors():
    generator = torch.Generator().manual_seed(0)
    rewards = torch.rand(32, 4, generator=generator)
    valid = torch.rand(32, 4, generator=generator) > 0.1
    on_cpu, on_gpu = (ebpo_step(rewards.to(d), valid.to(d), Prior(), CONFIG) for d in ("cpu", "cuda"))
    torch.testing.assert_close(on_gpu.advantages.cpu(), on_cpu.advantages)
    mask = (torch.rand(128, 50, generator=generator) > 0.3).long()
    kl = torch.randn(128, 50, generator=generator)
    for divergence in (None, kl):
        tensors = (on_cpu.advantages.reshape(-1).float(), mask, divergence)
        expected = token_returns(*tensors, 0.01)
        found = token_returns(*(None if t is None else t.cuda() for t in tensors), 0.01)
        torch.testing.assert_close(found[0].cpu(), expected[0], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(found[1].cpu(), expected[1], atol=1e-5, rtol=1e-5)


def test_lora_reaches_vllm_through_shared_gpu_memory(command, tmp_path):
    argv = command(
        tmp_path,
        train__colocate_all=True,
        vllm__gpu_memory_utilization=0.3,
        vllm__enforce_eager=True,
        ds__zero_stage=3,
        ds__lora__rank=4,
        actor__lr_scheduler="constant",
        algo__advantage__is_correction_level="token",
    )
    process = [sys.executable, "-m", "openrlhf_ebpo.cli.train_ppo_ray", *argv]
    environment = {**os.environ, "RAY_ADDRESS": "local"}
    result = subprocess.run(process, env=environment, capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, result.stderr[-5000:]
    metrics = read_metrics(tmp_path / "model" / "run")
    assert metrics[0]["policy/kl_per_step"] > 0.01 and all(abs(row["vllm_kl"]) < 0.05 for row in metrics)


def test_the_real_stack_trains_on_one_gpu_and_imports_nothing_of_the_cpu_backend(command, tmp_path):
    argv = command(tmp_path, train__colocate_all=True, vllm__gpu_memory_utilization=0.3, vllm__enforce_eager=True)
    environment = {**os.environ, "RAY_ADDRESS": "local"}
    process = [sys.executable, "-X", "importtime", "-m", "openrlhf_ebpo.cli.train_ppo_ray", *argv]
    result = subprocess.run(process, env=environment, capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, result.stderr[-5000:]
    assert "openrlhf_ebpo.seams.cpu" not in result.stderr
    assert [row["step"] for row in read_metrics(tmp_path / "model" / "run")] == [1, 2, 3]
