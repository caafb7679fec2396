"""Check that the model goes with a training: with the flags, by its config.json and tokenizer files (`check_model`);
and with the end, by saving all but the weights once (`check_saving`): what transformers refuses to write there would
lose the trained weights. Nothing is downloaded.

A model in a folder is checked in full; a name on the Hub as far as its files are in the local cache.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from openrlhf_ebpo.command import one_line
from openrlhf_ebpo.errors import UsageError, raise_problems
from openrlhf_ebpo.extension import models_trusted
from openrlhf_ebpo.hub_models import local_folder
from openrlhf_ebpo.model_folder import CAUSAL_LM, TOKENIZERS, read_json

MODEL = "actor.model_name_or_path"
TEMPLATES = ("chat_template.jinja", "chat_template.json", "additional_chat_templates")
GENERATION = "generation_config.json"
MAX_CAUSE_CHARS = 300
STRETCHED = ("yarn", "linear", "dynamic")  # kinds of RoPE for which vLLM reads more than max_position_embeddings


def check_model(args) -> None:
    """Compare the flags with the files of the model, if they are on this machine. args: upstream's, nested.

    Raises:
        UsageError: all problems found, one per line; or a file of the model cannot be read.
    """
    model, images = args.actor.model_name_or_path, args.data.max_images_per_prompt
    if args.ds.param_dtype != "bf16":
        raise UsageError(
            f"--ds.param_dtype {args.ds.param_dtype}: OpenRLHF's engines hold bf16 weights and take no others from the "
            "policy; leave it at bf16"
        )
    folder = local_folder(model)
    if folder is None:
        return
    config = read_json(folder / "config.json")
    text = config.get("text_config") or config  # image-text models have their language half there
    problems = [f"--{MODEL} {model}: {each}" for each in file_problems(model, folder, args.data.apply_chat_template)]
    if images and "vision_config" not in config:
        problems.append(
            f"--data.max_images_per_prompt is {images}, and {model} reads only text (its config.json has no "
            "vision_config): leave the flag out, or name a model that sees"
        )
    raise_problems([*problems, *_length_problems(text, args), *_split_problems(text, args)])


def file_problems(model: str, folder: Path, chat_template: bool) -> Iterator[str]:
    """List what the files of a model that generates text lack. folder: of `model`; chat_template: it is used.

    Raises:
        UsageError: a file cannot be read.
    """
    config = read_json(folder / "config.json")
    classes = config.get("architectures") or []
    classes = [classes] if isinstance(classes, str) else classes
    other = "vision_config" in config or "AutoModelForCausalLM" in (config.get("auto_map") or {})
    if classes and not other and not any(name.endswith(CAUSAL_LM) for name in classes):
        yield f"its config.json says {', '.join(classes)}, and a model that generates text (…ForCausalLM) is needed"
    if Path(model).is_dir() and not any((folder / name).is_file() for name in TOKENIZERS):
        yield f"the folder has no tokenizer (none of {', '.join(TOKENIZERS)}); copy the files of the original"
    settings = read_json(folder / "tokenizer_config.json")
    if chat_template and settings and not has_chat_template(folder):
        yield (
            "--data.apply_chat_template is given, and its tokenizer has no chat template: a base model takes the "
            "prompt as it is, leave the flag out (CHAT_TEMPLATE=0 for the launch scripts); or put a "
            "chat_template.jinja into the folder"
        )


def has_chat_template(folder: Path) -> bool:
    """Raises UsageError: a file cannot be read."""
    settings = read_json(folder / "tokenizer_config.json")
    return "chat_template" in settings or any((folder / name).exists() for name in TEMPLATES)


def _length_problems(config: dict, args) -> Iterator[str]:
    """Compare the lengths, in tokens, with what the model reads."""
    longest, limit, new = config.get("max_position_embeddings"), args.data.max_len, args.rollout.max_new_tokens
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if rope.get("rope_type", rope.get("type")) in STRETCHED or os.environ.get("VLLM_ALLOW_LONG_MAX_MODEL_LEN") == "1":
        longest = None  # vLLM decides
    if longest and limit > longest:
        yield (
            f"--data.max_len is {limit} (prompt and response), and the model reads {longest} tokens at most "
            f"(max_position_embeddings): give {longest} or less"
        )
    if new and new >= limit:
        yield (
            f"--rollout.max_new_tokens is {new}, which leaves no room for the prompt in --data.max_len {limit}: raise "
            "--data.max_len by the longest prompt"
        )


def _split_problems(config: dict, args) -> Iterator[str]:
    """Compare attention heads with how engines and trainer split them."""
    heads = config.get("num_attention_heads")
    if not heads:
        return
    groups = config.get("num_key_value_heads") or heads
    engine, trainer, ring = args.vllm.tensor_parallel_size, args.ds.tensor_parallel_size, args.ds.ring_attn_size
    gpus, stride = args.actor.num_nodes * args.actor.num_gpus_per_node, args.ds.ring_attn_head_stride
    if heads % engine:
        yield f"--vllm.tensor_parallel_size is {engine}: it must divide the model's {heads} attention heads"
    elif max(groups, engine) % min(groups, engine):
        yield (
            f"--vllm.tensor_parallel_size is {engine}: it must divide the model's {groups} key-value heads, or they it"
        )
    if trainer > groups:
        yield f"--ds.tensor_parallel_size is {trainer}: the model has {groups} key-value heads, and each rank needs one"
    if ring > 1 and groups % stride:
        yield f"--ds.ring_attn_head_stride is {stride}: it must divide the model's {groups} key-value heads"
    if gpus % (ring * trainer):
        yield (
            f"--ds.ring_attn_size {ring} times --ds.tensor_parallel_size {trainer} must divide the policy's {gpus} GPUs"
        )


def check_saving(args, flag: str) -> None:
    """Save all but the weights into a temporary folder. A model that is not on this machine is not checked.

    Args:
        args: the nested arguments of `train` or `sft`. flag: names the model.

    Raises:
        UsageError: something cannot be loaded or saved; one file a line.
    """
    model = getattr(args, flag.partition(".")[0]).model_name_or_path
    folder = local_folder(model)
    if folder is None:
        return
    problems = []
    with tempfile.TemporaryDirectory() as target:
        for file, load in _loaders(folder, not args.data.disable_fast_tokenizer, has_adapter=args.ds.lora.rank > 0):
            failed = "loaded"
            try:
                part = load()
                failed = "saved, and the trained weights would be lost at the end"
                part.save_pretrained(target)
            except Exception as error:  # other people's files: any exception of any reader or writer
                cause = one_line(f"{type(error).__name__}: {error}", MAX_CAUSE_CHARS)
                wrong = f"{file} cannot be {failed} ({cause}). Correct the file (of a model on the Hub, in a copy)"
                problems.append(f"--{flag} {model}: {wrong}")
    raise_problems(problems)


def _loaders(folder: Path, use_fast_tokenizer: bool, has_adapter: bool) -> Iterator[tuple[str, Callable]]:
    """Yield a file's name, and what loads it as `from_pretrained` of a model does."""
    from openrlhf.utils.utils import get_tokenizer
    from transformers import AutoConfig, GenerationConfig

    yield "config.json", lambda: AutoConfig.from_pretrained(folder, trust_remote_code=models_trusted())
    yield (
        "tokenizer_config.json or another file of the tokenizer",
        lambda: get_tokenizer(str(folder), None, use_fast=use_fast_tokenizer),
    )
    if has_adapter:  # with LoRA no generation_config.json is written
        return
    if (folder / GENERATION).exists():
        yield GENERATION, lambda: GenerationConfig.from_pretrained(folder)
    else:
        settings = {"config_file_name": "config.json", "_from_model_config": True}
        yield "config.json (settings of generation)", lambda: GenerationConfig.from_pretrained(folder, **settings)
