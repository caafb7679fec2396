"""OpenRLHF where flash-attn is not installed: on a machine without a GPU, and on one whose torch it is not built for.

One module of upstream imports four functions of it when it is loaded. Those of transformers, in plain torch, are
offered only meanwhile: transformers and vLLM look for `flash_attn` too, and must still find nothing.
"""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.machinery
import importlib.util
import operator
import sys
import types

from openrlhf_ebpo.errors import UsageError

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
        load = spec.loader.exec_module

        def exec_module(module):
            with _flash_attn_in_sys_modules():
                load(module)

        spec.loader.exec_module = exec_module
        return spec


@contextlib.contextmanager
def _flash_attn_in_sys_modules():
    from einops import rearrange
    from transformers import modeling_flash_attention_utils as padding  # before the modules can be found

    contents = {
        "flash_attn": {},
        "flash_attn.bert_padding": {
            "index_first_axis": operator.getitem,
            "pad_input": padding._pad_input,
            "unpad_input": padding._unpad_input,
            "rearrange": rearrange,
        },
        "flash_attn.utils": {},
        "flash_attn.utils.distributed": {"all_gather": None},  # of ring attention, which adapt_args refuses
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
