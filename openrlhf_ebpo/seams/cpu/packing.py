"""The four functions that `openrlhf.models.ring_attn_utils` imports from flash-attn, in plain torch.

They are offered only while that one module is imported: transformers and vLLM look for `flash_attn` too, and
must go on finding nothing. Shapes as in flash_attn.bert_padding; B batch, T padded length, N tokens that count.
"""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.machinery
import sys
import types

import torch
import torch.nn.functional as F
from einops import rearrange

TARGET = "openrlhf.models.ring_attn_utils"


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
    raise RuntimeError("--ds.ring_attn_size > 1 needs flash-attn and CUDA: leave it at 1 on a machine without a GPU")


class FlashAttnStandIn(importlib.abc.MetaPathFinder):
    """Finder that wraps the loader of ring_attn_utils, so that its imports from flash_attn succeed."""

    def find_spec(self, fullname, path=None, target=None):
        if fullname != TARGET:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is None:
            return None
        load = spec.loader.exec_module

        def exec_module(module):
            with _flash_attn_in_sys_modules():
                load(module)

        spec.loader.exec_module = exec_module
        return spec


@contextlib.contextmanager
def _flash_attn_in_sys_modules():
    contents = {
        "flash_attn": {},
        "flash_attn.bert_padding": {
            "index_first_axis": index_first_axis,
            "pad_input": pad_input,
            "unpad_input": unpad_input,
            "rearrange": rearrange,
        },
        "flash_attn.utils": {},
        "flash_attn.utils.distributed": {"all_gather": all_gather},
    }
    for name, attributes in contents.items():
        module = types.ModuleType(name)
        module.__path__ = []
        vars(module).update(attributes)
        sys.modules[name] = module
    try:
        yield
    finally:
        for name in contents:
            sys.modules.pop(name, None)
