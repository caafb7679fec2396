"""Check that the model goes with a training: with the flags, by its config.json and tokenizer files (`ModelUse`), and
with the end, by saving all but the weights once (`ModelSaving`): what transformers refuses to write there would lose
the trained weights. Nothing is downloaded.

A model in a folder is checked in full; a name on the Hub as far as its files are in the local cache.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from openrlhf_ebpo.command import one_line
from openrlhf_ebpo.errors import UsageError, raise_problems
from openrlhf_ebpo.extension import models_trusted
from openrlhf_ebpo.hub_models import local_folder
from openrlhf_ebpo.model_folder import TOKENIZERS, read_json

MODEL = "actor.model_name_or_path"
CAUSAL_LM = ("ForCausalLM", "LMHeadModel")  # endings of the classes that AutoModelForCausalLM builds
TEMPLATES = ("chat_template.jinja", "chat_template.json", "additional_chat_templates")
GENERATION = "generation_config.json"
MAX_CAUSE_CHARS = 300
STRETCHED = ("yarn", "linear", "dynamic")  # kinds of RoPE for which vLLM reads more than max_position_embeddings


@dataclass(frozen=True)
class ModelUse:
    """Requirements of a training on its model.

    max_len: tokens of prompt and response together; max_new_tokens: None for as many as that leaves. gpus: of the
    policy. tensor_parallel, ring, ring_stride: how the trainer splits it; engine_gpus: how vLLM does. dtype: of the
    policy's weights, "bf16" or "fp16". max_images: of a prompt.
    """

    model: str
    chat_template: bool
    max_len: int
    max_new_tokens: int | None
    gpus: int
    tensor_parallel: int
    ring: int
    ring_stride: int
    engine_gpus: int
    dtype: str
    max_images: int

    @classmethod
    def from_args(cls, args) -> ModelUse:
        """From upstream's nested arguments."""
        return cls(
            model=args.actor.model_name_or_path,
            chat_template=args.data.apply_chat_template,
            max_len=args.data.max_len,
            max_new_tokens=args.rollout.max_new_tokens,
            gpus=args.actor.num_nodes * args.actor.num_gpus_per_node,
            tensor_parallel=args.ds.tensor_parallel_size,
            ring=args.ds.ring_attn_size,
            ring_stride=args.ds.ring_attn_head_stride,
            engine_gpus=args.vllm.tensor_parallel_size,
            dtype=args.ds.param_dtype,
            max_images=args.data.max_images_per_prompt,
        )

    def check(self) -> None:
        """Compare with the files of the model, if they are on this machine.

        Raises:
            UsageError: all problems found, one per line; or a file of the model cannot be read.
        """
        if self.dtype != "bf16":
            raise UsageError(
                f"--ds.param_dtype {self.dtype}: OpenRLHF's engines hold bf16 weights and take no others from the "
                "policy; leave it at bf16"
            )
        folder = local_folder(self.model)
        if folder is None:
            return
        config = read_json(folder / "config.json")
        text = config.get("text_config") or config  # image-text models have their language half there
        problems = [
            f"--{MODEL} {self.model}: {problem}" for problem in file_problems(self.model, folder, self.chat_template)
        ]
        if self.max_images and "vision_config" not in config:
            problems.append(
                f"--data.max_images_per_prompt is {self.max_images}, and {self.model} reads only text (its config.json "
                "has no vision_config): leave the flag out, or name a model that sees"
            )
        raise_problems([*problems, *_length_problems(text, self), *_split_problems(text, self)])


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


def _length_problems(config: dict, use: ModelUse) -> Iterator[str]:
    longest = config.get("max_position_embeddings")
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if rope.get("rope_type", rope.get("type")) in STRETCHED or os.environ.get("VLLM_ALLOW_LONG_MAX_MODEL_LEN") == "1":
        longest = None  # vLLM decides
    if longest and use.max_len > longest:
        yield (
            f"--data.max_len is {use.max_len} (prompt and response), and the model reads {longest} tokens at most "
            f"(max_position_embeddings): give {longest} or less"
        )
    if use.max_new_tokens and use.max_new_tokens >= use.max_len:
        yield (
            f"--rollout.max_new_tokens is {use.max_new_tokens}, which leaves no room for the prompt in --data.max_len "
            f"{use.max_len}: raise --data.max_len by the longest prompt"
        )


def _split_problems(config: dict, use: ModelUse) -> Iterator[str]:
    """Compare attention heads with how engines and trainer split them."""
    heads = config.get("num_attention_heads")
    if not heads:
        return
    groups = config.get("num_key_value_heads") or heads
    engine, trainer = use.engine_gpus, use.tensor_parallel
    if heads % engine:
        yield f"--vllm.tensor_parallel_size is {engine}: it must divide the model's {heads} attention heads"
    elif max(groups, engine) % min(groups, engine):
        yield (
            f"--vllm.tensor_parallel_size is {engine}: it must divide the model's {groups} key-value heads, or they it"
        )
    if trainer > groups:
        yield f"--ds.tensor_parallel_size is {trainer}: the model has {groups} key-value heads, and each rank needs one"
    if use.ring > 1 and groups % use.ring_stride:
        yield f"--ds.ring_attn_head_stride is {use.ring_stride}: it must divide the model's {groups} key-value heads"
    if use.gpus % (use.ring * trainer):
        yield (
            f"--ds.ring_attn_size {use.ring} times --ds.tensor_parallel_size {trainer} must divide the policy's "
            f"{use.gpus} GPUs"
        )


@dataclass(frozen=True)
class ModelSaving:
    """Settings of saving a model. flag: names it. has_adapter: with LoRA no generation_config.json is written."""

    flag: str
    model: str
    has_adapter: bool
    use_fast_tokenizer: bool

    @classmethod
    def from_args(cls, args, flag: str) -> ModelSaving:
        """From the nested arguments of `train` or `sft`."""
        section = getattr(args, flag.partition(".")[0])
        return cls(flag, section.model_name_or_path, args.ds.lora.rank > 0, not args.data.disable_fast_tokenizer)

    def check(self) -> None:
        """Save all but the weights into a temporary folder. A model that is not on this machine is not checked.

        Raises:
            UsageError: something cannot be loaded or saved; one file a line.
        """
        folder = local_folder(self.model)
        if folder is None:
            return
        from openrlhf.utils.utils import get_tokenizer
        from transformers import AutoConfig, GenerationConfig

        loaders: dict[str, Callable] = {
            "config.json": lambda: AutoConfig.from_pretrained(folder, trust_remote_code=models_trusted()),
            "tokenizer_config.json or another file of the tokenizer": lambda: get_tokenizer(
                str(folder), None, use_fast=self.use_fast_tokenizer
            ),
        }
        if not self.has_adapter:  # as `from_pretrained` of a model does
            if (folder / GENERATION).exists():
                loaders[GENERATION] = lambda: GenerationConfig.from_pretrained(folder)
            else:
                loaders["config.json (settings of generation)"] = lambda: GenerationConfig.from_pretrained(
                    folder, config_file_name="config.json", _from_model_config=True
                )
        problems = []
        with tempfile.TemporaryDirectory() as target:
            for file, load in loaders.items():
                failed = "loaded"
                try:
                    part = load()
                    failed = "saved, and the trained weights would be lost at the end"
                    part.save_pretrained(target)
                except Exception as error:  # other people's files: any exception of any reader or writer
                    cause = one_line(f"{type(error).__name__}: {error}", MAX_CAUSE_CHARS)
                    wrong = f"{file} cannot be {failed} ({cause}). Correct the file (of a model on the Hub, in a copy)"
                    problems.append(f"--{self.flag} {self.model}: {wrong}")
        raise_problems(problems)
