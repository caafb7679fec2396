"""Does the model go with the flags? Its config.json and tokenizer files are read; nothing is loaded or downloaded.

A model in a folder is checked in full; a name on the Hub as far as its files are in the local cache.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.models.auto_map import ModelFileError, read_file
from openrlhf_ebpo.seams.remote_code import trusted

MODEL = "actor.model_name_or_path"
CAUSAL_LM = ("ForCausalLM", "LMHeadModel")  # endings of the classes that AutoModelForCausalLM builds
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")
LENGTHS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "max_sequence_length")  # vLLM's list
GB = 1e9


def check_model(args: dict) -> None:
    """Refuse what can be seen not to work. args: by flag, without the dashes.

    Raises:
        UsageError: all problems found, one per line.
    """
    folder = model_folder(args[MODEL])
    if folder is None:
        return
    model = f"--{MODEL} {args[MODEL]}"
    config = read_object(folder / "config.json")
    text = config.get("text_config") or config  # models that also see have their language half there
    problems = [
        *_architecture_problems(config),
        *_tokenizer_problems(folder, text, local=Path(args[MODEL]).is_dir()),
        *_chat_template_problems(folder, args),
    ]
    problems = [f"{model}: {problem}" for problem in problems]
    problems += [*_length_problems(text, args), *_head_problems(text, args)]
    if problems:
        raise UsageError("\n".join(problems))


def model_folder(name: str) -> Path | None:
    """The folder with the model's config.json, if there is one on this machine.

    Raises:
        UsageError: no folder and no Hub name can be called that.
    """
    if (Path(name) / "config.json").is_file():
        return Path(name)
    if Path(name).exists() or name.count("/") > 1:
        return None
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        found = try_to_load_from_cache(name, "config.json")
    except HFValidationError as error:
        raise UsageError(f"--{MODEL} {name}: no such folder, and no name on the Hub either ({error})") from None
    return Path(found).parent if isinstance(found, str) else None


def read_object(path: Path) -> dict:
    """A JSON file of the model that holds an object.

    Raises:
        UsageError: it is not there, or holds something else.
    """
    try:
        return read_file(path)
    except ModelFileError as error:
        raise UsageError(f"--{MODEL}: {error}") from None


def _architecture_problems(config: dict) -> list[str]:
    classes = config.get("architectures") or []
    classes = [classes] if isinstance(classes, str) else classes
    sees = "vision_config" in config  # OpenRLHF then loads an image-text model
    own_code = "AutoModelForCausalLM" in (config.get("auto_map") or {})
    if not classes or sees or own_code or any(name.endswith(CAUSAL_LM) for name in classes):
        return []
    return [f"its config.json says {', '.join(classes)}, and a model that generates text (…ForCausalLM) is needed"]


def _tokenizer_problems(folder: Path, config: dict, local: bool) -> list[str]:
    if not any((folder / name).is_file() for name in TOKENIZER_FILES):
        missing = f"the folder has no tokenizer (none of {', '.join(TOKENIZER_FILES)}); copy the files of the original"
        return [missing] if local else []
    size, largest = config.get("vocab_size"), _largest_token_id(folder / "tokenizer.json")
    if size is None or largest < size:
        return []
    return [
        f"the tokenizer has token ids up to {largest}, and the model {size} embeddings (vocab_size); take the "
        "tokenizer that the model was trained with, or resize the embeddings"
    ]


def _largest_token_id(path: Path) -> int:
    """Of tokenizer.json. Special tokens that stand for other media may lie beyond a text model's vocabulary, and do not
    count. -1: not known."""
    if not path.is_file():
        return -1
    tokenizer = read_object(path)
    vocabulary = tokenizer.get("model", {}).get("vocab", ())
    ids = vocabulary.values() if isinstance(vocabulary, dict) else [len(vocabulary) - 1]
    added = (token["id"] for token in tokenizer.get("added_tokens", ()) if not token.get("special"))
    return max([*ids, *added], default=-1)


def _chat_template_problems(folder: Path, args: dict) -> list[str]:
    settings = folder / "tokenizer_config.json"
    if not args.get("data.apply_chat_template") or not settings.is_file():
        return []
    files = ("chat_template.jinja", "chat_template.json", "additional_chat_templates")
    if "chat_template" in read_object(settings) or any((folder / name).exists() for name in files):
        return []
    return [
        "--data.apply_chat_template is given, and its tokenizer has no chat template: a base model takes the prompt as it "
        "is, leave the flag out (CHAT_TEMPLATE=0 for the launch scripts); or put a chat_template.jinja into the folder"
    ]


def _length_problems(config: dict, args: dict) -> list[str]:
    longest, asked, new = _longest(config), args["data.max_len"], args.get("rollout.max_new_tokens")
    problems = []
    if longest and asked > longest and os.environ.get("VLLM_ALLOW_LONG_MAX_MODEL_LEN") != "1":
        problems.append(
            f"--data.max_len is {asked} (prompt and response), and the model reads {longest} tokens at most "
            f"(max_position_embeddings): give {longest} or less"
        )
    if new and new >= asked:
        problems.append(
            f"--rollout.max_new_tokens is {new}, which leaves no room for the prompt in --data.max_len {asked}: raise "
            "--data.max_len by the longest prompt"
        )
    return problems


def _longest(config: dict) -> int | None:
    """Tokens that the model can read, as vLLM derives them."""
    lengths = [config[name] for name in LENGTHS if config.get(name)]
    if not lengths:
        return None
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    kind = rope.get("rope_type", rope.get("type"))
    length = min(lengths)
    if kind == "yarn":
        length = rope.get("original_max_position_embeddings", length)
    stretched = kind not in (None, "default", "su", "longrope", "llama3", "mrope")
    return int(length * (rope.get("factor") or 1)) if stretched else length


def _head_problems(config: dict, args: dict) -> list[str]:
    heads = config.get("num_attention_heads")
    if not heads:
        return []
    groups = config.get("num_key_value_heads") or heads
    engine, ring = args["vllm.tensor_parallel_size"], args["ds.ring_attn_size"]
    trainer, stride = args["ds.tensor_parallel_size"], args["ds.ring_attn_head_stride"]
    problems = []
    if heads % engine:
        problems.append(f"--vllm.tensor_parallel_size is {engine}: it must divide the model's {heads} attention heads")
    elif max(groups, engine) % min(groups, engine):
        problems.append(
            f"--vllm.tensor_parallel_size is {engine}: it must divide the model's {groups} key-value heads, or they it"
        )
    if trainer > groups:
        problems.append(
            f"--ds.tensor_parallel_size is {trainer}: the model has {groups} key-value heads, and each rank needs one"
        )
    if ring > 1 and groups % stride:
        problems.append(f"--ds.ring_attn_head_stride is {stride}: it must divide the model's {groups} key-value heads")
    gpus = args["actor.num_nodes"] * args["actor.num_gpus_per_node"]
    if gpus % (ring * trainer):
        problems.append(
            f"--ds.ring_attn_size {ring} times --ds.tensor_parallel_size {trainer} must divide the policy's {gpus} GPUs"
        )
    return problems


@dataclass(frozen=True)
class Size:
    """What memory is counted from; parameters as transformers builds the model."""

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
    """Bytes on one of the policy's GPUs while it trains, in full-parameter mixed precision.

    args: upstream's, nested. Gathered layers, the kernels' own and NCCL's buffers come on top: some GB.
    """
    split = args.ds.tensor_parallel_size
    ranks = args.actor.num_nodes * args.actor.num_gpus_per_node // split
    shards = {name: ranks if args.ds.zero_stage >= stage else 1 for name, stage in (("adam", 1), ("grad", 2), ("w", 3))}
    weights = size.parameters / split
    tokens = args.train.max_tokens_per_gpu if args.train.dynamic_batch_enable else args.train.micro_batch_size
    tokens *= 1 if args.train.dynamic_batch_enable else args.data.max_len
    reference = args.algo.kl.init_coef > 0 and not args.ref.offload
    return {
        "weights": 2 * weights / shards["w"],
        "gradients": 2 * weights / shards["grad"],
        "Adam": 0 if args.ds.adam_offload else 12 * weights / shards["adam"],
        "reference": 2 * weights / shards["w"] if reference else 0,
        # float32, their gradient, and the gradient cast to bfloat16
        "logits": 10 * tokens * size.vocabulary / split,
        "activations": 2 * tokens * size.hidden * size.layers if args.actor.gradient_checkpointing_enable else 0,
    }


def memory_notices(args, gigabytes: float | None = None) -> list[str]:
    """For --dry_run. args: upstream's, nested. gigabytes: what one GPU has, where that is known."""
    folder = model_folder(args.actor.model_name_or_path)
    if folder is None:
        return [f"model: {args.actor.model_name_or_path} is not on this machine, so its configuration was not checked"]
    try:
        size = size_of(folder)
    except (OSError, ValueError, AttributeError, ImportError) as error:
        return [f"model: its size could not be counted ({error})".splitlines()[0]]
    memory = training_memory(size, args)
    full = not (args.ds.lora.rank or args.ds.load_in_4bit)
    parts = " + ".join(f"{name} {bytes / GB:.1f}" for name, bytes in memory.items() if bytes)
    per_engine = args.vllm.tensor_parallel_size
    gpus = args.actor.num_nodes * args.actor.num_gpus_per_node
    lines = [
        f"model: {size.name}, {size.parameters / 1e9:.2f} B parameters, {2 * size.parameters / GB:.1f} GB in bfloat16"
    ]
    if full:
        lines.append(
            f"training, each of {gpus} GPUs: about {sum(memory.values()) / GB:.0f} GB ({parts}), and a few GB more"
        )
    if full and gigabytes and sum(memory.values()) > gigabytes * GB:
        lines.append(
            f"warning: that is more than the {gigabytes:g} GB of a GPU: give fewer tokens (--train.max_tokens_per_gpu, "
            "--data.max_len), --ds.adam_offload, or more GPUs with --ds.zero_stage 3"
        )
    engine, share = 2 * size.parameters / per_engine, args.vllm.gpu_memory_utilization
    if gigabytes and engine > share * gigabytes * GB:
        lines.append(
            f"warning: vLLM's weights take more than {share:.0%} of {gigabytes:g} GB: raise --vllm.tensor_parallel_size"
        )
    return [
        *lines,
        f"vLLM, each GPU: {engine / GB:.1f} GB of weights and "
        f"{size.cache_per_token * args.data.max_len / per_engine / GB:.2f} GB of cache for every full sequence, within "
        f"{share:.0%} of its memory",
    ]
