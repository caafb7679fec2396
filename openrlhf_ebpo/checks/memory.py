"""Forecast the memory that a GPU needs for the policy's training and for vLLM, from the model's configuration and the flags."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from openrlhf_ebpo.checks.model_check import MODEL
from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.seams import flash_attn
from openrlhf_ebpo.seams.hub_models import local_folder
from openrlhf_ebpo.seams.remote_code import trusted

GB = 1e9


class Size(NamedTuple):
    """The sizes that memory is counted from; parameters as transformers builds the model, tied weights once."""

    name: str
    parameters: int
    hidden: int
    layers: int
    vocabulary: int
    cache_per_token: int  # bytes of keys and values in bfloat16


def size_of(folder: Path) -> Size:
    """Build the model without memory for its weights, and count.

    Raises:
        UsageError: transformers cannot read its configuration. OSError, ValueError, AttributeError: it cannot be built.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=trusted())
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        reason = str(error).partition("\n")[0].partition(" Checkout ")[0]
        raise UsageError(f"--{MODEL}: {folder}: transformers cannot read its configuration: {reason}") from error
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    text = config.get_text_config()
    head = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    groups = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    return Size(
        type(model).__name__,
        sum(weight.numel() for weight in model.parameters()),
        text.hidden_size,
        text.num_hidden_layers,
        text.vocab_size,
        2 * 2 * text.num_hidden_layers * groups * head,
    )


def training_memory(size: Size, args) -> dict[str, float]:
    """Bytes on one of the policy's GPUs while it trains, in full-parameter mixed precision; `memory_on_top` is the rest.

    args: upstream's, nested.
    """
    split = args.ds.tensor_parallel_size
    ranks = args.actor.num_nodes * args.actor.num_gpus_per_node // split
    adam, gradients, weights = (ranks if args.ds.zero_stage >= stage else 1 for stage in (1, 2, 3))
    parameters = size.parameters / split
    tokens = args.train.micro_batch_size * args.data.max_len  # of one GPU at a time
    if args.train.dynamic_batch_enable:
        tokens = args.train.max_tokens_per_gpu
    length = tokens if args.ds.packing_samples else args.data.max_len
    has_reference = args.algo.kl.init_coef > 0 and not args.ref.offload
    return {
        "weights": 2 * parameters / weights,
        "gradients": 2 * parameters / gradients,
        "Adam": 0 if args.ds.adam_offload else 12 * parameters / adam,
        "reference": 2 * parameters / weights if has_reference else 0,
        "logits": logit_bytes(args) * tokens * size.vocabulary / split,
        "activations": 2 * tokens * size.hidden * size.layers if args.actor.gradient_checkpointing_enable else 0,
        # of every token and every other in its row: transformers' mask of bools, and sdpa's copy in bfloat16
        "attention mask": 3 * tokens * length if args.ds.attn_implementation == "sdpa" else 0,
    }


def logit_bytes(args) -> int:
    """Peak of log_probs_from_logits in openrlhf/models/utils.py, forward and backward (tests/contract/test_logit_memory.py).

    With flash-attn's cross-entropy 10: float32, their gradient, and that cast to bfloat16. Its fallback takes 16: float32, a
    gradient from `gather`, one from the chunks of `logsumexp`, and one of full size for every chunk that is added to it.
    """
    return 10 if args.ds.attn_implementation == "flash_attention_2" or flash_attn.is_installed() else 16


def memory_on_top(size: Size, args, gigabytes: float) -> dict[str, float]:
    """Bytes that a GPU of `gigabytes` holds in addition to `training_memory`. Estimates from reading; none was measured."""
    engine = 0.0
    if args.train.colocate_all:
        asleep = 3.0 if args.vllm.tensor_parallel_size == 1 else 7.5
        engine = asleep if args.vllm.enable_sleep else args.vllm.gpu_memory_utilization * gigabytes
    return {
        "vLLM": engine * GB,
        "CUDA and NCCL": 3 * GB,
        "ZeRO's buffers": 4 * GB if args.ds.zero_stage == 3 else 0,  # gathered layers among them
        "gradients of embedding and head": 2 * 2 * size.vocabulary * size.hidden,  # in bfloat16, before they are split
    }


def memory_notices(args, gigabytes: float | None = None) -> list[str]:
    """Compare the forecast with a GPU's memory. args: upstream's, nested. gigabytes: of one GPU, if they are known.

    Raises:
        UsageError: as `size_of`; or the micro-batches do not fit, and are part of the loss (the released track).
    """
    folder = local_folder(args.actor.model_name_or_path)
    if folder is None:
        return [f"model: {args.actor.model_name_or_path} is not on this machine, so its configuration was not checked"]
    try:
        size = size_of(folder)
    except (OSError, ValueError, AttributeError, ImportError) as error:
        return [f"model: its size could not be counted ({error})".splitlines()[0]]
    lines = [
        f"model: {size.name}, {size.parameters / 1e9:.2f} B parameters, {2 * size.parameters / GB:.1f} GB in bfloat16"
    ]
    if not (args.ds.lora.rank or args.ds.load_in_4bit):
        lines += _training_notices(size, args, gigabytes)
    per_engine, share = args.vllm.tensor_parallel_size, args.vllm.gpu_memory_utilization
    engine, cache = 2 * size.parameters / per_engine, size.cache_per_token * args.data.max_len / per_engine
    lines.append(
        f"vLLM, each GPU: {engine / GB:.1f} GB of weights and {cache / GB:.2f} GB of cache for every full sequence, within "
        f"{share:.0%} of its memory"
    )
    if gigabytes and engine > share * gigabytes * GB:
        lines.append(
            f"warning: vLLM's weights take more than {share:.0%} of {gigabytes:.0f} GB: raise --vllm.tensor_parallel_size"
        )
    return lines


def _training_notices(size: Size, args, gigabytes: float | None) -> list[str]:
    memory, gpus = training_memory(size, args), args.actor.num_nodes * args.actor.num_gpus_per_node
    top = memory_on_top(size, args, gigabytes) if gigabytes else {}
    needed = f"training, each of {gpus} GPUs: about {_sum(memory)}, and on top about {_sum(top) if top else '12 GB'}"
    if not gigabytes or sum(memory.values()) + sum(top.values()) <= gigabytes * GB:
        return [needed]
    more = f"that is more than the {gigabytes:.0f} GB of a GPU"
    less = "--ds.adam_offload, or more GPUs with --ds.zero_stage 3"
    if logit_bytes(args) > 10:
        less += ", or flash-attn (docs/gpus.md), with which logits take 10 bytes for 16"
    if args.actor.loss_mean == "micro_batch":
        raise UsageError(
            f"{needed}: {more}. In the released track (--actor.loss_mean micro_batch) the {args.train.micro_batch_size} responses "
            f"of a micro-batch are part of the loss: give {less}; or --track paper"
        )
    flags = "--train.max_tokens_per_gpu, --train.micro_batch_size, --data.max_len"
    return [needed, f"warning: {more}: give fewer tokens ({flags}), {less}"]


def _sum(memory: dict[str, float]) -> str:
    names = " + ".join(f"{name} {size / GB:.1f}" for name, size in memory.items() if size)
    return f"{sum(memory.values()) / GB:.0f} GB ({names})"
