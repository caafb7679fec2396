"""Without flash-attn: attention is PyTorch's, what needs it is refused, padding has a stand-in, vLLM needs no
FlashInfer."""

import os
import sys
from types import SimpleNamespace

import pytest
import torch

from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.train import upstream_main as machine
from openrlhf_ebpo.upstream import flash_attn
from openrlhf_ebpo.upstream import install as installing
from openrlhf_ebpo.upstream.flash_attn import all_gather, index_first_axis, pad_input, unpad_input

MASK = torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1], [0, 1, 1, 0]])


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


@pytest.mark.parametrize("tail", [(), (2,), (2, 3)])
@pytest.mark.parametrize("dtype", [torch.long, torch.bool])
def test_what_is_unpadded_and_padded_comes_back_with_zeros_for_the_padding(tail, dtype):
    hidden = torch.randn(3, 4, *tail, generator=torch.Generator().manual_seed(0))
    tokens, indices, cumulative, longest, lengths = unpad_input(hidden, MASK.to(dtype))
    assert torch.equal(tokens, hidden[MASK.bool()])
    assert indices.tolist() == [0, 1, 4, 5, 6, 7, 9, 10]
    assert (cumulative.tolist(), cumulative.dtype) == ([0, 2, 6, 8], torch.int32)
    assert (longest, lengths.tolist()) == (4, [2, 4, 2])
    padded = pad_input(tokens, indices, 3, 4)
    assert torch.equal(padded, hidden * MASK.reshape(3, 4, *[1] * len(tail)))


def test_gradients_reach_exactly_the_tokens_that_count():
    hidden = torch.randn(3, 4, 2, requires_grad=True)
    weights = torch.arange(24.0).reshape(3, 4, 2)
    tokens, indices, *_ = unpad_input(hidden, MASK)
    (pad_input(tokens, indices, 3, 4) * weights).sum().backward()
    assert torch.equal(hidden.grad, weights * MASK[..., None])


def test_gradients_pass_through_choosing_rows():
    rows = torch.ones(4, 2, requires_grad=True)
    index_first_axis(rows, torch.tensor([1, 1, 3])).sum().backward()
    assert rows.grad.sum(-1).tolist() == [0.0, 4.0, 0.0, 2.0]


def test_ring_attention_is_refused_with_its_flag():
    with pytest.raises(RuntimeError, match=r"--ds\.ring_attn_size"):
        all_gather()
