"""OpenRLHF where flash-attn is not installed: without a GPU, or beside a torch that it has no wheel for.

`openrlhf.models.ring_attn_utils` imports four functions from it whatever the flags say; here they are in plain torch.

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

from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.seams.stack import has_flash_attn

TARGET = "openrlhf.models.ring_attn_utils"
NEEDED = "flash_attention_2"  # the implementation that the package flash-attn has; others bring their own kernels


def stand_in() -> None:
    """Let `openrlhf.models.ring_attn_utils` be imported. Idempotent."""
    if not any(isinstance(finder, FlashAttnStandIn) for finder in sys.meta_path):
        sys.meta_path.insert(0, FlashAttnStandIn())


def adapt_args(args) -> list[str]:
    """Change, in place, what cannot work without flash-attn, and say it; nothing where it is installed.

    Raises:
        UsageError: ring attention is asked for, which nothing else here can do.
    """
    if has_flash_attn():
        return []
    if getattr(args.ds, "ring_attn_size", 1) > 1:
        raise UsageError("--ds.ring_attn_size: ring attention needs flash-attn, which is not installed; leave it at 1")
    if args.ds.attn_implementation != NEEDED:
        return []
    args.ds.attn_implementation = "sdpa"
    return [f"--ds.attn_implementation {NEEDED} -> sdpa: flash-attn is not installed"]


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
