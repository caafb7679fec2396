"""Check that the model goes with the flags, by its config.json and tokenizer files; nothing is loaded or downloaded.

A model in a folder is checked in full; a name on the Hub as far as its files are in the local cache.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from openrlhf_ebpo.errors import raise_problems
from openrlhf_ebpo.models.auto_map import read_json
from openrlhf_ebpo.models.hub_models import local_folder

MODEL = "actor.model_name_or_path"
CAUSAL_LM = ("ForCausalLM", "LMHeadModel")  # endings of the classes that AutoModelForCausalLM builds
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")
TEMPLATES = ("chat_template.jinja", "chat_template.json", "additional_chat_templates")
STRETCHED = ("yarn", "linear", "dynamic")  # kinds of RoPE for which vLLM reads more than max_position_embeddings


def check_model(args: dict) -> None:
    """Refuse what would fail later. args: by flag, without the dashes.

    Raises:
        UsageError: all problems found, one per line; or a file of the model cannot be read.
    """
    folder = local_folder(args[MODEL])
    if folder is None:
        return
    config = read_json(folder / "config.json")
    text = config.get("text_config") or config  # image-text models have their language half there
    problems = [f"--{MODEL} {args[MODEL]}: {problem}" for problem in _file_problems(folder, config, args)]
    raise_problems([*problems, *_length_problems(text, args), *_split_problems(text, args)])


def _file_problems(folder: Path, config: dict, args: dict) -> Iterator[str]:
    classes = config.get("architectures") or []
    classes = [classes] if isinstance(classes, str) else classes
    other = "vision_config" in config or "AutoModelForCausalLM" in (config.get("auto_map") or {})
    if classes and not other and not any(name.endswith(CAUSAL_LM) for name in classes):
        yield f"its config.json says {', '.join(classes)}, and a model that generates text (…ForCausalLM) is needed"
    if Path(args[MODEL]).is_dir() and not any((folder / name).is_file() for name in TOKENIZER_FILES):
        yield f"the folder has no tokenizer (none of {', '.join(TOKENIZER_FILES)}); copy the files of the original"
    settings = read_json(folder / "tokenizer_config.json")
    has_template = "chat_template" in settings or any((folder / name).exists() for name in TEMPLATES)
    if args.get("data.apply_chat_template") and settings and not has_template:
        yield (
            "--data.apply_chat_template is given, and its tokenizer has no chat template: a base model takes "
            "the prompt as it "
            "is, leave the flag out (CHAT_TEMPLATE=0 for the launch scripts); or put a chat_template.jinja into "
            "the folder"
        )


def _length_problems(config: dict, args: dict) -> Iterator[str]:
    longest, asked, new = (
        config.get("max_position_embeddings"),
        args["data.max_len"],
        args.get("rollout.max_new_tokens"),
    )
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if rope.get("rope_type", rope.get("type")) in STRETCHED or os.environ.get("VLLM_ALLOW_LONG_MAX_MODEL_LEN") == "1":
        longest = None  # vLLM decides
    if longest and asked > longest:
        yield (
            f"--data.max_len is {asked} (prompt and response), and the model reads {longest} tokens at most "
            f"(max_position_embeddings): give {longest} or less"
        )
    if new and new >= asked:
        yield (
            f"--rollout.max_new_tokens is {new}, which leaves no room for the prompt in --data.max_len {asked}: raise "
            "--data.max_len by the longest prompt"
        )


def _split_problems(config: dict, args: dict) -> Iterator[str]:
    """Compare attention heads with how engines and trainer split them."""
    heads = config.get("num_attention_heads")
    if not heads:
        return
    groups = config.get("num_key_value_heads") or heads
    engine, ring = args["vllm.tensor_parallel_size"], args["ds.ring_attn_size"]
    trainer, stride = args["ds.tensor_parallel_size"], args["ds.ring_attn_head_stride"]
    gpus = args["actor.num_nodes"] * args["actor.num_gpus_per_node"]
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
