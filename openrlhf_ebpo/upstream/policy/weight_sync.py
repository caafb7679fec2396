"""The policy's side of a weight sync: it waits for its engines before it makes the group, and merges LoRA adapters.

vLLM holds the base model's weights, so each sync of a LoRA policy sends W + (alpha/r)·B·A. The adapters are merged into
copies, one weight at a time: the frozen base weights keep their exact values, and no second model has to fit into
memory.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import torch
from safetensors.torch import save_file

from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.files import replace_file
from openrlhf_ebpo.upstream.engine_errors import LOAD_SECONDS, EngineError


class BoundedEngineWait:
    """Mixin over ActorPPOTrainer."""

    def _init_vllm_sync_group(self, backend: str) -> None:
        """Raises EngineError where the engines have not started within LOAD_SECONDS."""
        import ray

        up = [engine.get_num_unfinished_requests.remote() for engine in self.vllm_engines]
        try:
            ray.get(up, timeout=LOAD_SECONDS)
        except ray.exceptions.GetTimeoutError:
            raise EngineError(
                f"the rollout engines did not start within {LOAD_SECONDS / 60:.0f} minutes after the policy had loaded"
            ) from None
        super()._init_vllm_sync_group(backend)


class SyncedWeight(NamedTuple):
    """One weight as vLLM knows it: `name` in the base model, the frozen `weight`, the LoRA layer around it, if any."""

    name: str
    weight: torch.nn.Parameter
    layer: torch.nn.Module | None

    @property
    def parameters(self) -> list[torch.nn.Parameter]:
        """Everything that `merged` reads; under ZeRO-3 these have to be gathered."""
        return (
            [self.weight, *(p for p in self.layer.parameters() if p is not self.weight)]
            if self.layer
            else [self.weight]
        )

    @torch.no_grad()
    def merged(self) -> torch.Tensor:
        """The weight with its adapter, in the weight's type; the sum is taken in float32."""
        if self.layer is None:
            return self.weight.data
        (adapter,) = self.layer.active_adapters
        return (self.weight.float() + self.layer.get_delta_weight(adapter).float()).to(self.weight.dtype)


def synced_weights(model) -> list[SyncedWeight]:
    """The weights of a PeftModel's base model, adapters left out, names as in the Hugging Face model.

    Raises:
        ValueError: an adapter is on a tied weight, which embedding and head share.
    """
    from peft.tuners.lora import LoraLayer

    base = model.get_base_model()
    layers = {id(m.get_base_layer().weight): m for m in base.modules() if isinstance(m, LoraLayer)}
    if base.config.tie_word_embeddings and id(base.get_input_embeddings().weight) in layers:
        raise ValueError(
            "--ds.lora.target_modules names the embedding or the head of a model that ties them: vLLM has one weight "
            "for both and cannot adapt one alone. Leave them out"
        )
    return [
        SyncedWeight(name.replace(".base_layer.", "."), parameter, layers.get(id(parameter)))
        for name, parameter in base.named_parameters()
        if not any(f".{part}." in name for part in LoraLayer.adapter_layer_names)
    ]


class MergedWeightSync:
    """Mixin over ActorPPOTrainer: `broadcast_to_vllm` for a policy with LoRA adapters."""

    def broadcast_to_vllm(self):
        if not self.args.ds.lora.rank:
            return super().broadcast_to_vllm()
        import deepspeed
        import ray
        from openrlhf.utils.distributed_util import torch_dist_barrier_and_cuda_sync

        sender = torch.distributed.get_rank() == 0
        if sender and self.args.vllm.enable_prefix_caching:
            ray.get([engine.reset_prefix_cache.remote() for engine in self.vllm_engines])
        torch.cuda.empty_cache()
        weights = synced_weights(self.actor.model.module)
        for number, weight in enumerate(weights, 1):
            with deepspeed.zero.GatheredParameters(weight.parameters, enabled=self.args.ds.zero_stage == 3):
                if sender or self.use_cuda_ipc:
                    call = self._send_by_ipc if self.use_cuda_ipc else self._send
                    call(weight.name, weight.merged(), last=number == len(weights))
        torch.cuda.empty_cache()
        torch_dist_barrier_and_cuda_sync()

    def _send(self, name: str, weight: torch.Tensor, last: bool) -> None:
        """Broadcast from rank 0 to all engines, over upstream's process group for weight updates."""
        import ray

        refs = self._announce("update_weight", name, weight, last)
        if self.args.vllm.sync_with_ray:
            from ray.util import collective

            collective.broadcast(weight, 0, group_name=self._model_update_group)
        else:
            self._model_update_group.broadcast(weight, src=0, stream=torch.cuda.current_stream())
        ray.get(refs)

    def _send_by_ipc(self, name: str, weight: torch.Tensor, last: bool) -> None:
        """CUDA IPC, for --train.colocate_all: an engine maps the memory of the rank that it shares its GPU with."""
        import ray
        from openrlhf.trainer.ray.utils import get_physical_gpu_id
        from openrlhf.utils.distributed_util import torch_dist_barrier_and_cuda_sync
        from torch.multiprocessing.reductions import reduce_tensor

        own = weight.clone()  # a separate allocation: an IPC handle exports the complete allocation
        handles: list = [None] * torch.distributed.get_world_size()
        torch.distributed.all_gather_object(handles, (get_physical_gpu_id(), reduce_tensor(own)))
        if torch.distributed.get_rank() == 0:
            ray.get(self._announce("update_weight_cuda_ipc", name, own, last, ipc_handles=dict(handles)))
        torch_dist_barrier_and_cuda_sync()

    def _announce(self, method: str, name: str, weight: torch.Tensor, last: bool, **more) -> list:
        return [
            getattr(engine, method).remote(name, dtype=weight.dtype, shape=weight.shape, empty_cache=last, **more)
            for engine in self.vllm_engines
        ]


def check_lora(args) -> None:
    """Raises UsageError for what upstream would only meet in the middle of the run. args: upstream's, nested."""
    rank = args.ds.lora.rank
    if rank < 0:
        raise UsageError(f"--ds.lora.rank is {rank}; give 1 or more, or 0 to train all weights")
    if rank and args.ds.tensor_parallel_size > 1:
        raise UsageError("--ds.lora.rank does not work with --ds.tensor_parallel_size above 1: adapters are not split")
    if rank and args.ds.load_in_4bit:
        raise UsageError(
            "--ds.lora.rank does not work with --ds.load_in_4bit: packed weights cannot be merged for vLLM"
        )
    if rank and args.train.enable_ema:
        raise UsageError("--ds.lora.rank does not work with --train.enable_ema: the averaged model has no adapters")


def adapter_as_safetensors(folder: str | Path) -> None:
    """Convert an exported adapter from a pickle, which upstream writes under ZeRO stage 3 or tensor parallelism and
    nothing here loads or pushes (model_folder.py), to safetensors."""
    pickle = Path(folder, "adapter_model.bin")
    if not pickle.is_file():
        return
    weights = torch.load(pickle, map_location="cpu", weights_only=True)
    with replace_file(pickle.with_suffix(".safetensors")) as temporary:
        save_file({name: weight.contiguous() for name, weight in weights.items()}, temporary, {"format": "pt"})
    pickle.unlink()
