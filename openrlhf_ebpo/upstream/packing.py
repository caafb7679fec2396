"""The four functions that `openrlhf.models.ring_attn_utils` imports from flash-attn, in plain torch.

Shapes as in flash_attn.bert_padding; B batch, T padded length, N tokens that count.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from einops import rearrange


def index_first_axis(tensor: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """Rows of `tensor` (B·T, ...) at `indices` (N,)."""
    return tensor[indices]


def unpad_input(hidden: torch.Tensor, attention_mask: torch.Tensor):
    """Drop padding. hidden: (B, T, ...), attention_mask: (B, T).

    Returns the tokens (N, ...), their indices (N,) in B·T, cumulative lengths (B + 1,) int32, the longest length,
    and the lengths (B,) int32.
    """
    lengths = attention_mask.sum(-1, dtype=torch.int32)
    indices = attention_mask.flatten().nonzero().flatten()
    cumulative = F.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
    return rearrange(hidden, "b t ... -> (b t) ...")[indices], indices, cumulative, int(lengths.max()), lengths


def pad_input(tokens: torch.Tensor, indices: torch.Tensor, batch: int, length: int) -> torch.Tensor:
    """Put tokens (N, ...) back to their places in (B, T, ...), zeros elsewhere; differentiable."""
    padded = tokens.new_zeros(batch * length, *tokens.shape[1:]).index_copy(0, indices, tokens)
    return rearrange(padded, "(b t) ... -> b t ...", b=batch)


def all_gather(*_args, **_kwargs):
    raise RuntimeError("--ds.ring_attn_size > 1 needs flash-attn, which is not installed: leave it at 1")
