"""OpenRLHF where flash-attn is not installed: on a machine without a GPU, and on one whose torch it is not built for.

One module of upstream imports four functions of it when it is loaded. Ours, in plain torch, are offered only meanwhile:
transformers and vLLM look for `flash_attn` too, and must still find nothing. Shapes are those of
flash_attn.bert_padding; B batch, T padded length, N tokens that count. Not every process with this module loads torch:
it is imported where it is needed.
"""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from typing import TYPE_CHECKING

from openrlhf_ebpo.errors import UsageError

if TYPE_CHECKING:
    import torch

TARGET = "openrlhf.models.ring_attn_utils"


def is_installed() -> bool:
    return importlib.util.find_spec("flash_attn") is not None


def offer_stand_in() -> None:
    """Let upstream's module be imported without flash-attn. Idempotent."""
    if not is_installed() and not any(isinstance(finder, FlashAttnStandIn) for finder in sys.meta_path):
        sys.meta_path.insert(0, FlashAttnStandIn())


def adapt_args(args) -> list[str]:
    """Change, in place, the attention that needs it, and say so; nothing where it is installed.

    Raises:
        UsageError: a flag asks for what only flash-attn does.
    """
    if is_installed():
        return []
    if args.ds.ring_attn_size > 1:
        raise UsageError(
            f"--ds.ring_attn_size {args.ds.ring_attn_size}: ring attention needs flash-attn, which is not "
            f"installed; leave it at 1"
        )
    if args.ds.attn_implementation != "flash_attention_2":
        return []
    args.ds.attn_implementation = "sdpa"
    return ["--ds.attn_implementation flash_attention_2 -> sdpa: flash-attn is not installed"]


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
    from einops import rearrange

    functions = {each.__name__: each for each in (index_first_axis, pad_input, unpad_input, rearrange)}
    contents = {
        "flash_attn": {},
        "flash_attn.bert_padding": functions,
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


def index_first_axis(tensor: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """Rows of `tensor` (B·T, ...) at `indices` (N,)."""
    return tensor[indices]


def unpad_input(hidden: torch.Tensor, attention_mask: torch.Tensor):
    """Drop padding. hidden: (B, T, ...), attention_mask: (B, T).

    Returns the tokens (N, ...), their indices (N,) in B·T, cumulative lengths (B + 1,) int32, the longest length,
    and the lengths (B,) int32.
    """
    import torch

    lengths = attention_mask.sum(-1, dtype=torch.int32)
    indices = attention_mask.flatten().nonzero().flatten()
    cumulative = torch.nn.functional.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
    return hidden.flatten(0, 1)[indices], indices, cumulative, int(lengths.max()), lengths


def pad_input(tokens: torch.Tensor, indices: torch.Tensor, batch: int, length: int) -> torch.Tensor:
    """Put tokens (N, ...) back to their places in (B, T, ...), zeros elsewhere; differentiable."""
    padded = tokens.new_zeros(batch * length, *tokens.shape[1:]).index_copy(0, indices, tokens)
    return padded.unflatten(0, (batch, length))


def all_gather(*_args, **_kwargs):
    raise RuntimeError("--ds.ring_attn_size > 1 needs flash-attn, which is not installed: leave it at 1")
