"""Everything that only a machine without CUDA needs, and nothing else. Never imported with a CUDA torch.

OpenRLHF names CUDA in about 60 lines; they come down to the rows in cpu_replacements.py, and a way to carry weights
into vLLM's CPU backend.
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from types import ModuleType

from openrlhf_ebpo.errors import UsageError, raise_problems
from openrlhf_ebpo.upstream.cpu import native

# The first two shorten the start (research/overhead.py), with the small KV cache of gloo_sync.engine_arguments; the
# third keeps vLLM from binding itself to cores that others use.
WORKER_ENV = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "TORCHDYNAMO_DISABLE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}
# <asm/unistd_64.h>, <asm/prctl.h> and arch/x86/include/asm/fpu/types.h of Linux
SYS_ARCH_PRCTL, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILE_DATA = 158, 0x1023, 18


# Ask Linux for the AMX tiles of the processor; ignored without them, or if the kernel refuses. vLLM's attention uses
# them wherever the processor has them, and never asks: without the permission the first tile instruction is a SIGILL.
# oneDNN asks at its first large bfloat16 product, which a short first batch lacks. At import, as a fork inherits the
# permission and an exec loses it: AsyncLLM spawns its EngineCore and workers (the first of WORKER_ENV is LLM's),
# where the only code of ours before the model is the import of their extension (gloo_sync.py).
if platform.machine() == "x86_64":
    ctypes.CDLL(None).syscall(SYS_ARCH_PRCTL, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILE_DATA)


def prepare_process() -> None:
    """Let vLLM be imported without its corrections of torch's compiler, which is off here: they alone import all of it,
    over a second of a process. Idempotent."""
    sys.modules.setdefault("vllm.env_override", ModuleType("vllm.env_override"))


def prepare_driver() -> None:
    """Environment that torch and vLLM read when they are imported. What the user has set stays.

    Raises:
        UsageError: the system lacks a library that vLLM's kernels need.
    """
    if missing := native.missing_libraries():
        raise UsageError("\n".join(f"vLLM needs {native.with_remedy(cause)}" for cause in missing))
    os.environ.setdefault("TORCHDYNAMO_DISABLE", WORKER_ENV["TORCHDYNAMO_DISABLE"])
    if os.environ.get("CUDA_VISIBLE_DEVICES") == "":
        del os.environ["CUDA_VISIBLE_DEVICES"]  # the empty string breaks Ray's mapping of its logical GPUs


def adapt_args(args) -> list[str]:
    """Change, in place, the settings that cannot work without CUDA, and say what was changed.

    Raises:
        UsageError: a flag requests what this machine cannot do; names the flag.
    """
    changes = []

    def change(section, name: str, new, flag: str, why: str) -> None:
        old = getattr(section, name, new)
        if old != new:
            setattr(section, name, new)
            changes.append(f"--{flag} {old} -> {new}: {why}")

    if "flash" in args.ds.attn_implementation:
        change(args.ds, "attn_implementation", "sdpa", "ds.attn_implementation", "flash attention needs CUDA")
    if hasattr(args, "vllm"):  # not of `sft`
        impossible = [
            (args.ds.ring_attn_size > 1, "ds.ring_attn_size", "ring attention needs flash-attn; leave it at 1"),
            (args.ds.tensor_parallel_size > 1, "ds.tensor_parallel_size", "leave it at 1"),
            (args.vllm.tensor_parallel_size > 1, "vllm.tensor_parallel_size", "use more engines: --vllm.num_engines"),
            (args.ds.load_in_4bit, "ds.load_in_4bit", "4-bit weights need bitsandbytes and CUDA"),
            (args.train.enable_ema, "train.enable_ema", "OpenRLHF averages weights on a GPU"),
        ]
        raise_problems([f"--{flag}: {why} (this machine has no CUDA)" for found, flag, why in impossible if found])
        change(args.vllm, "sync_backend", "gloo", "vllm.sync_backend", "NCCL needs CUDA")
        change(args.vllm, "sync_with_ray", False, "vllm.sync_with_ray", "weights go over a gloo group")
        change(args.vllm, "enforce_eager", True, "vllm.enforce_eager", "compiling costs more than it saves here")
        change(args.vllm, "enable_sleep", False, "vllm.enable_sleep", "a CPU has no GPU memory to free")
        change(args.ds, "enable_sleep", False, "ds.enable_sleep", "a CPU has no GPU memory to free")
    return changes
