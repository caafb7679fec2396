"""Where the models of a benchmark run: policy and engine on one GPU, or on this machine's processor."""

from __future__ import annotations

import importlib.util
import os
import platform

from openrlhf_ebpo.seams.stack import is_cpu_stack


def flags(engine_share: float) -> dict:
    """Of a training. engine_share: of the GPU's memory, what vLLM may take."""
    found: dict = {"actor.num_gpus_per_node": 1, "ref.num_gpus_per_node": 1, "vllm.num_engines": 1}
    if is_cpu_stack():
        return {**found, "ds.zero_stage": 0}
    found |= {"train.colocate_all": True, "vllm.gpu_memory_utilization": engine_share, "ds.zero_stage": 2}
    if importlib.util.find_spec("flash_attn") is None:
        found["ds.attn_implementation"] = "sdpa"
    return found


def machine() -> str:
    """In words, for a report."""
    processor = f"{os.cpu_count()} cores, {platform.machine()}"
    if is_cpu_stack():
        return f"{processor}, no GPU"
    import torch

    return f"{torch.cuda.get_device_name() if torch.cuda.is_available() else 'no GPU'}, {processor}"
