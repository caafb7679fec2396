"""Policy weights into vLLM's CPU backend: over gloo, one sync at a time, and checked.

The CPU backend repacks linear weights when it loads them, so upstream's way (one `load_weights` a tensor)
fails. The tensors of one sync are collected and handed to vLLM's own `reload_weights`. That leaves one thing
stale, a tied `lm_head`: its repacked copy is not refreshed, and vLLM only warns. It is repacked here, and after
every sync the head that samples tokens is compared with the weights that were sent.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
from collections.abc import Iterator

import torch

from openrlhf_ebpo.extension import models_trusted

# Layers that a reload leaves as they were, and rightly: the rotary table is not a weight, the head is repacked here.
HANDLED = {"RotaryEmbedding", "ParallelLMHead"}
KV_CACHE_BYTES = 64 << 20
KV_CACHE_SEQUENCES = 32
HEAD_TOLERANCE = 0.01  # bf16 rounding gives 0.002; a head left stale over the quickstart's training, 0.045


class GlooGroup:
    """Broadcasts between the policy's rank 0 and the vLLM workers, with the signature of vLLM's NCCL communicator."""

    def __init__(self, host: str, port: int, rank: int, world_size: int):
        from vllm.distributed.utils import stateless_init_torch_distributed_process_group

        self.rank = rank
        self.group = stateless_init_torch_distributed_process_group(host, port, rank, world_size, backend="gloo")

    def broadcast(self, tensor: torch.Tensor, src: int, stream=None) -> None:
        options = torch.distributed.BroadcastOptions()
        options.rootRank = src
        buffer = tensor.contiguous()
        self.group.broadcast([buffer], options).wait()
        if self.rank != src and buffer is not tensor:
            tensor.copy_(buffer)


def gloo_group(original):
    @functools.wraps(original)
    def stateless_init_process_group(master_address, master_port, rank, world_size, device):
        return GlooGroup(master_address, master_port, rank, world_size)

    return stateless_init_process_group


class CPURolloutActor:
    """Mixin over RolloutRayActor: engine arguments that the CPU backend understands."""

    async def __init__(self, *args, **kwargs):
        await super().__init__(*args, **engine_arguments(kwargs))


def engine_arguments(kwargs: dict) -> dict:
    """Upstream's engine arguments, adapted: our worker extension, no sleep mode, a small KV cache.

    vLLM would reserve a share of the machine's memory; VLLM_CPU_KVCACHE_SPACE (GiB), where it is set, decides. Else
    there is room for 32 sequences of full length in bf16, 64 MiB at least and 4 GiB at most.
    """
    kwargs = {k: v for k, v in kwargs.items() if k not in ("enable_sleep_mode", "gpu_memory_utilization")}
    kwargs["worker_extension_cls"] = f"{__name__}.ReloadingWorker"
    if "VLLM_CPU_KVCACHE_SPACE" not in os.environ:
        from transformers import AutoConfig

        config = AutoConfig.from_pretrained(kwargs["model"], trust_remote_code=models_trusted()).get_text_config()
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        sequence = 2 * 2 * config.num_hidden_layers * heads * head_dim * kwargs["max_model_len"]
        kwargs["kv_cache_memory_bytes"] = min(max(KV_CACHE_BYTES, sequence * KV_CACHE_SEQUENCES), 4 << 30)
    return kwargs


class ReloadingWorker:
    """vLLM worker extension with the methods of upstream's WorkerWrap that the CPU path calls."""

    def init_process_group(
        self, master_address, master_port, rank_offset, world_size, group_name, backend="gloo", use_ray=False
    ):
        rank = torch.distributed.get_rank() + rank_offset
        self._model_update_group = GlooGroup(master_address, master_port, rank, world_size)
        self._received = []

    def update_weight(self, name, dtype, shape, empty_cache=False):
        """Receive one tensor; upstream marks the last one of a sync with `empty_cache`."""
        if dtype != self.model_config.dtype:
            raise TypeError(f"weight {name} arrives as {dtype}, vLLM holds {self.model_config.dtype}")
        weight = torch.empty(shape, dtype=dtype)
        self._model_update_group.broadcast(weight, src=0)
        self._received.append((name, weight))
        if empty_cache:
            weights, self._received = self._received, []
            load_weights(self.model_runner, weights)


def load_weights(model_runner, weights: list[tuple[str, torch.Tensor]]) -> None:
    """Load one complete sync (names as in the Hugging Face model) and check the head.

    Raises:
        RuntimeError: a layer did not take its weights, or the head still computes with others than those sent.
    """
    with failing_layers() as stale:
        model_runner.reload_weights(weights_iterator=iter(weights))
    if stale - HANDLED:
        raise RuntimeError(f"vLLM kept old weights in {', '.join(sorted(stale - HANDLED))} at a weight sync")
    model = model_runner.get_model()
    repack_heads(model)
    check_head(model, dict(weights))


@contextlib.contextmanager
def failing_layers() -> Iterator[set[str]]:
    """Collect the layers of which vLLM only warns "Failed to load weights", instead of logging them every step."""
    names: set[str] = set()

    def collect(record: logging.LogRecord) -> bool:
        failed = "Failed to load weights" in str(record.msg)
        if failed:
            names.update(map(str, record.args))
        return not failed

    logger = logging.getLogger("vllm.model_executor.model_loader.reload.layerwise")
    logger.addFilter(collect)
    try:
        yield names
    finally:
        logger.removeFilter(collect)


def repack_heads(model) -> None:
    """Refresh the repacked copy of every unquantised embedding and head (10 ms)."""
    from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod

    for module in model.modules():
        method = getattr(module, "quant_method", None)
        if isinstance(method, UnquantizedEmbeddingMethod):
            method.process_weights_after_loading(module)


def check_head(model, weights: dict[str, torch.Tensor]) -> None:
    """Compare the logits of a random hidden state through vLLM's head with those of the weights that were sent."""
    head = getattr(model, "lm_head", None)
    sent = weights.get("lm_head.weight", weights.get("model.embed_tokens.weight"))
    if sent is None or getattr(head, "quant_method", None) is None or torch.distributed.get_world_size() > 1:
        return
    hidden = torch.randn(4, sent.shape[1], generator=torch.Generator().manual_seed(0)).to(sent.dtype)
    found = head.quant_method.apply(head, hidden)[:, : sent.shape[0]].float()
    expected = hidden.float() @ sent.float().T
    if not expected.isfinite().all():  # the weights are finite (upstream/policy/health.py)
        raise RuntimeError(
            "the policy's weights are so large that the logits of its head are not finite: the run stops"
        )
    error = ((found - expected).norm() / expected.norm().clamp(min=1e-6)).item()
    if not error <= HEAD_TOLERANCE:
        raise RuntimeError(
            f"vLLM's lm_head did not take the new weights: its logits are off by {error:.1%} after a weight sync. "
            "Rollouts would come from a stale policy; the run stops instead."
        )
