"""Forecast the memory that a GPU needs for the policy's training and for vLLM, from the model's configuration and the flags."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from openrlhf_ebpo.checks.model_check import MODEL, model_folder
from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.seams import flash_attn
from openrlhf_ebpo.seams.remote_code import trusted

GB = 1e9


@dataclass(frozen=True)
class Size:
    """The sizes that memory is counted from; parameters as transformers builds the model, tied weights once."""

    name: str
    parameters: int
    hidden: int
    layers: int
    vocabulary: int
    cache_per_token: int  # bytes of keys and values in bfloat16


def model_config(folder: Path):
    """The model's configuration as transformers reads it.

    Raises:
        UsageError: transformers cannot read it; a training could not either.
    """
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(folder, trust_remote_code=trusted())
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        reason = str(error).partition("\n")[0].partition(" Checkout ")[0]
        raise UsageError(f"--{MODEL}: {folder}: transformers cannot read its configuration: {reason}") from error


def size_of(folder: Path) -> Size:
    """Build the model without memory for its weights, and count.

    Raises:
        UsageError: as `model_config`. OSError, ValueError: it cannot be built.
    """
    import torch
    from transformers import AutoModelForCausalLM

    config = model_config(folder)
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
    shards = {name: ranks if args.ds.zero_stage >= stage else 1 for name, stage in (("adam", 1), ("grad", 2), ("w", 3))}
    weights = size.parameters / split
    tokens = micro_batch_tokens(args)
    reference = args.algo.kl.init_coef > 0 and not args.ref.offload
    length = tokens if args.ds.packing_samples else args.data.max_len
    return {
        "weights": 2 * weights / shards["w"],
        "gradients": 2 * weights / shards["grad"],
        "Adam": 0 if args.ds.adam_offload else 12 * weights / shards["adam"],
        "reference": 2 * weights / shards["w"] if reference else 0,
        "logits": logit_bytes(args) * tokens * size.vocabulary / split,
        "activations": 2 * tokens * size.hidden * size.layers if args.actor.gradient_checkpointing_enable else 0,
        # of every token and every other in its row: transformers' mask of bools, and sdpa's copy in bfloat16
        "attention mask": 3 * tokens * length if args.ds.attn_implementation == "sdpa" else 0,
    }


def micro_batch_tokens(args) -> int:
    """The most that one GPU takes at a time."""
    return (
        args.train.max_tokens_per_gpu
        if args.train.dynamic_batch_enable
        else args.train.micro_batch_size * args.data.max_len
    )


def logit_bytes(args) -> int:
    """Peak of log_probs_from_logits in openrlhf/models/utils.py, forward and backward (tests/contract/test_logit_memory.py).

    With flash-attn's cross-entropy 10: float32, their gradient, and that cast to bfloat16. Its fallback takes 16: float32, a
    gradient from `gather`, one from the chunks of `logsumexp`, and one of full size for every chunk that is added to it.
    """
    return 10 if args.ds.attn_implementation == "flash_attention_2" or flash_attn.is_installed() else 16


def memory_on_top(size: Size, args, gigabytes: float) -> dict[str, float]:
    """Bytes that a GPU of `gigabytes` has to hold beside `training_memory`. Estimates from reading; none was measured."""
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
    """args: upstream's, nested. gigabytes: what one GPU has, where that is known.

    Raises:
        UsageError: the micro-batches do not fit, and are part of the loss (the released track), so that others are no way out.
    """
    folder = model_folder(args.actor.model_name_or_path)
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
        lines += training_notices(size, args, gigabytes)
    per_engine = args.vllm.tensor_parallel_size
    engine, share = 2 * size.parameters / per_engine, args.vllm.gpu_memory_utilization
    if gigabytes and engine > share * gigabytes * GB:
        lines.append(
            f"warning: vLLM's weights take more than {share:.0%} of {gigabytes:.0f} GB: raise --vllm.tensor_parallel_size"
        )
    return [
        *lines,
        f"vLLM, each GPU: {engine / GB:.1f} GB of weights and "
        f"{size.cache_per_token * args.data.max_len / per_engine / GB:.2f} GB of cache for every full sequence, within "
        f"{share:.0%} of its memory",
    ]


def training_notices(size: Size, args, gigabytes: float | None) -> list[str]:
    """Raises UsageError: as `memory_notices`."""
    memory, gpus = training_memory(size, args), args.actor.num_nodes * args.actor.num_gpus_per_node
    needed = f"training, each of {gpus} GPUs: about {parts(memory)}"
    if not gigabytes:
        return [f"{needed}, and about 12 GB on top"]
    top = memory_on_top(size, args, gigabytes)
    needed = f"{needed}, and on top about {parts(top)}"
    if sum(memory.values()) + sum(top.values()) <= gigabytes * GB:
        return [needed]
    more = f"that is more than the {gigabytes:.0f} GB of a GPU"
    less = "--ds.adam_offload, or more GPUs with --ds.zero_stage 3"
    if logit_bytes(args) > 10:
        less += ", or flash-attn (docs/gpu.md), with which logits take 10 bytes for 16"
    if args.actor.loss_mean == "micro_batch":
        raise UsageError(
            f"{needed}: {more}. In the released track (--actor.loss_mean micro_batch) the {args.train.micro_batch_size} responses "
            f"of a micro-batch are part of the loss: give {less}; or --track paper"
        )
    flags = "--train.max_tokens_per_gpu, --train.micro_batch_size, --data.max_len"
    return [needed, f"warning: {more}: give fewer tokens ({flags}), {less}"]


def parts(memory: dict[str, float]) -> str:
    names = " + ".join(f"{name} {size / GB:.1f}" for name, size in memory.items() if size)
    return f"{sum(memory.values()) / GB:.0f} GB ({names})"
