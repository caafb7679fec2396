"""Where flash-attn is not installed: attention is PyTorch's, what needs it is refused, vLLM does without FlashInfer."""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace

import pytest

from openrlhf_ebpo.cli import train_notices
from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.seams import flash_attn
from openrlhf_ebpo.seams import install as installing


def arguments(attention: str = "flash_attention_2", ring: int = 1) -> SimpleNamespace:
    return SimpleNamespace(ds=SimpleNamespace(attn_implementation=attention, ring_attn_size=ring))


@pytest.fixture
def absent(monkeypatch):
    monkeypatch.setattr(flash_attn, "is_installed", lambda: False)


def test_attention_is_pytorchs_and_it_is_said(absent):
    args = arguments()
    assert flash_attn.adapt_args(args) == [
        "--ds.attn_implementation flash_attention_2 -> sdpa: flash-attn is not installed"
    ]
    assert args.ds.attn_implementation == "sdpa"
    assert flash_attn.adapt_args(args) == []


@pytest.mark.parametrize("attention", ["eager", "sdpa", "kernels-community/vllm-flash-attn3"])
def test_attention_that_does_not_need_it_stays(absent, attention):
    args = arguments(attention)
    assert flash_attn.adapt_args(args) == [] and args.ds.attn_implementation == attention


def test_ring_attention_is_refused_at_the_start(absent):
    with pytest.raises(UsageError, match=r"--ds\.ring_attn_size 2: ring attention needs flash-attn, which is not inst"):
        flash_attn.adapt_args(arguments(ring=2))


def test_where_it_is_installed_nothing_changes(monkeypatch):
    monkeypatch.setattr(flash_attn, "is_installed", lambda: True)
    args = arguments(ring=2)
    assert flash_attn.adapt_args(args) == [] and args == arguments(ring=2)
    monkeypatch.setattr(sys, "meta_path", [])
    flash_attn.offer_stand_in()
    assert sys.meta_path == []


def test_a_training_beside_cuda_is_told_and_a_command_for_another_machine_is_not(absent, monkeypatch):
    monkeypatch.setattr(train_notices, "is_cpu_stack", lambda: False)
    for part in ("estimator_notices", "batch_notices", "stale_notices"):
        monkeypatch.setattr(train_notices, part, lambda _: [])
    monkeypatch.setattr(train_notices.policy_loss, "notices", lambda _: [])
    args = arguments()
    args.ckpt, args.algo = SimpleNamespace(), SimpleNamespace(advantage=SimpleNamespace(estimator="group_norm"))
    assert train_notices.adapt(args, elsewhere=True) == [] and args.ds.attn_implementation == "flash_attention_2"
    (notice,) = train_notices.adapt(args)
    assert notice.endswith("-> sdpa: flash-attn is not installed") and args.ds.attn_implementation == "sdpa"


@pytest.mark.parametrize(("found", "before", "after"), [(None, None, "0"), (None, "1", "1"), ("there", None, None)])
def test_vllm_is_told_where_flashinfer_is_not_there(monkeypatch, found, before, after):
    monkeypatch.setattr(installing.importlib.util, "find_spec", lambda name: found)
    monkeypatch.delenv("VLLM_USE_FLASHINFER_SAMPLER", raising=False)
    if before:
        monkeypatch.setenv("VLLM_USE_FLASHINFER_SAMPLER", before)
    installing.vllm_without_flashinfer()
    assert os.environ.get("VLLM_USE_FLASHINFER_SAMPLER") == after
    monkeypatch.delenv("VLLM_USE_FLASHINFER_SAMPLER", raising=False)
