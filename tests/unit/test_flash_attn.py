"""The stand-in for flash-attn's padding functions."""

from types import SimpleNamespace

import pytest
import torch

from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.seams import flash_attn
from openrlhf_ebpo.seams.flash_attn import all_gather, index_first_axis, pad_input, unpad_input

MASK = torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1], [0, 1, 1, 0]])


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


def arguments(**ds):
    return SimpleNamespace(
        ds=SimpleNamespace(**{"attn_implementation": "flash_attention_2", "ring_attn_size": 1, **ds})
    )


def test_where_flash_attn_is_not_installed_attention_is_pytorchs_and_it_is_said(monkeypatch):
    monkeypatch.setattr(flash_attn, "has_flash_attn", lambda: False)
    args = arguments()
    (said,) = flash_attn.adapt_args(args)
    assert args.ds.attn_implementation == "sdpa" and said.startswith(
        "--ds.attn_implementation flash_attention_2 -> sdpa"
    )
    assert flash_attn.adapt_args(args) == []


@pytest.mark.parametrize("own", ["eager", "sdpa", "kernels-community/vllm-flash-attn3"])
def test_an_implementation_that_brings_its_own_kernels_stays(own, monkeypatch):
    monkeypatch.setattr(flash_attn, "has_flash_attn", lambda: False)
    args = arguments(attn_implementation=own)
    assert flash_attn.adapt_args(args) == [] and args.ds.attn_implementation == own


def test_ring_attention_without_flash_attn_is_refused_at_the_start(monkeypatch):
    monkeypatch.setattr(flash_attn, "has_flash_attn", lambda: False)
    with pytest.raises(UsageError, match=r"^--ds\.ring_attn_size: .* not installed; leave it at 1"):
        flash_attn.adapt_args(arguments(ring_attn_size=2))


def test_with_flash_attn_nothing_is_changed(monkeypatch):
    monkeypatch.setattr(flash_attn, "has_flash_attn", lambda: True)
    args = arguments(ring_attn_size=2)
    assert flash_attn.adapt_args(args) == [] and args.ds.attn_implementation == "flash_attention_2"
