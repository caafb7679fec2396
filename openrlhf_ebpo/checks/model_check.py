"""Check that the model goes with the flags, by its config.json and tokenizer files; nothing is loaded or downloaded.

A model in a folder is checked in full; a name on the Hub as far as its files are in the local cache.
"""

from __future__ import annotations

import os
from pathlib import Path

from openrlhf_ebpo.errors import UsageError, raise_problems
from openrlhf_ebpo.models.auto_map import ModelFileError, read_file

MODEL = "actor.model_name_or_path"
CAUSAL_LM = ("ForCausalLM", "LMHeadModel")  # endings of the classes that AutoModelForCausalLM builds
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")
LENGTHS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "max_sequence_length")  # vLLM's list


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
    raise_problems([*problems, *_length_problems(text, args), *_head_problems(text, args)])


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
