"""Change the arguments of a training that this machine cannot serve as given."""

from __future__ import annotations

from openrlhf_ebpo.upstream import flash_attn
from openrlhf_ebpo.upstream.stack import is_cpu_stack


def adapt_args(args) -> list[str]:
    """Change, in place, what this machine cannot do as requested; returns the changes. args: upstream's, of `train` or
    `sft`.

    Raises:
        UsageError: this machine cannot do what is requested.
    """
    changes = []
    if is_cpu_stack():
        from openrlhf_ebpo.upstream import cpu

        cpu.prepare_driver()
        changes = [f"no CUDA: {change}" for change in cpu.adapt_args(args)]
    return changes + flash_attn.adapt_args(args)
