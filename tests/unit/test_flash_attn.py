"""Without flash-attn: attention is PyTorch's, what needs it is refused, vLLM needs no FlashInfer."""

import os
import sys
from types import SimpleNamespace

import pytest

from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.train import upstream_main as machine
from openrlhf_ebpo.upstream import flash_attn
from openrlhf_ebpo.upstream import install as installing


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
    with pytest.raises(UsageError, match=r"--ds\.ring_attn_size 2: .*flash-attn"):
        flash_attn.adapt_args(arguments(ring=2))


def test_where_it_is_installed_nothing_changes(monkeypatch):
    monkeypatch.setattr(flash_attn, "is_installed", lambda: True)
    args = arguments(ring=2)
    assert flash_attn.adapt_args(args) == [] and args == arguments(ring=2)
    monkeypatch.setattr(sys, "meta_path", [])
    flash_attn.offer_stand_in()
    assert sys.meta_path == []


def test_a_training_beside_cuda_is_told(absent, monkeypatch):
    monkeypatch.setattr(machine, "is_cpu_stack", lambda: False)
    args = arguments()
    (notice,) = machine.adapt_args(args)
    assert notice.startswith("--ds.attn_implementation") and args.ds.attn_implementation == "sdpa"


@pytest.mark.parametrize(("found", "before", "after"), [(None, None, "0"), (None, "1", "1"), ("there", None, None)])
def test_vllm_is_told_where_flashinfer_is_not_there(monkeypatch, found, before, after):
    monkeypatch.setattr(installing.importlib.util, "find_spec", lambda name: found)
    monkeypatch.delenv("VLLM_USE_FLASHINFER_SAMPLER", raising=False)
    if before:
        monkeypatch.setenv("VLLM_USE_FLASHINFER_SAMPLER", before)
    installing.vllm_without_flashinfer()
    assert os.environ.get("VLLM_USE_FLASHINFER_SAMPLER") == after
    monkeypatch.delenv("VLLM_USE_FLASHINFER_SAMPLER", raising=False)
