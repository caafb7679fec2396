"""The stand-in for flash-attn's padding functions."""

import pytest
import torch

from openrlhf_ebpo.seams.cpu.packing import all_gather, index_first_axis, pad_input, unpad_input

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
