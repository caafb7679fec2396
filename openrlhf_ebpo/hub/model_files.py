"""Choose the files of a model's folder that are published: those that are known to make up a model, by their names."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path

from openrlhf_ebpo import model_folder
from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.hub.content import (
    Content,
    Publishable,
    local_file,
    named,
    print_left_out,
    read_bytes,
    size,
)
from openrlhf_ebpo.hub.public import json_bytes, last_part, public_run
from openrlhf_ebpo.hub_client import run_with_timeout
from openrlhf_ebpo.redact import HOME
from openrlhf_ebpo.run.run_log import read_run

WEIGHTS, INDEX, TEMPLATES = "*.safetensors", "*.safetensors.index.json", "additional_chat_templates"
COMPARE_SECONDS = 300.0  # imports transformers, which no timeout of the Hub is about
MODEL = (
    *(WEIGHTS, INDEX, "config.json", "generation_config.json", "adapter_config.json", "prior.json"),
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "tekken.json"),
    *("*.model", "tokenizer.model.v*", "*.spm", "*.tiktoken", "vocab.json", "vocab.txt", "vocab.bpe", "merges.txt"),
    *("chat_template.jinja", "chat_template.json", f"{TEMPLATES}/*.jinja"),
    *("preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json"),
    *("README.md", "LICENSE", "LICENSE.txt", "LICENSE.md", "NOTICE", "NOTICE.txt", "USE_POLICY.md"),
)
CONFIGS = (
    *("config.json", "generation_config.json", "tokenizer_config.json", "special_tokens_map.json"),
    *("adapter_config.json", "processor_config.json", "preprocessor_config.json"),
)
BASES = ("_name_or_path", "base_model_name_or_path")  # keys of the model that another one was made from


def model_content(model: Path) -> dict[str, Content]:
    """Path in the repo -> file or bytes of what of a model's folder is published; not scanned yet.

    Raises:
        UsageError: `model` has no weights in safetensors; a file of it is a link out of the folder, or cannot be read.
    """
    paths = [path.relative_to(model) for path in (*model.glob("*"), *model.glob(f"{TEMPLATES}/*")) if not path.is_dir()]
    names = sorted(path.as_posix() for path in paths if named(path, MODEL))
    if not any(named(name, [WEIGHTS]) for name in names):
        there = ", ".join(sorted(p.name for p in model.iterdir())[:8]) if model.is_dir() else "no such folder"
        raise UsageError(f"{model} holds no model in safetensors ({there})")
    files: dict[str, Content] = {name: local_file(model / name, model) for name in names}
    for name in set(CONFIGS) & set(names):
        try:
            config = json.loads(read_bytes(files[name]))
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{model / name} is damaged, and is not published: {error}") from error
        if (public := _without_folders(config)) != config:
            files[name] = json_bytes(public)
    return files


def contents(run_dir: Path, model: Path, not_secret: Collection[str] = ()) -> Publishable:
    """`model_content` and run.json: what a step consists of, but for its card.

    Args:
        not_secret: names of files that the user has checked; they go as they are.

    Raises:
        UsageError: as `model_content`; or the model is not complete and inert, or a file of it holds a secret.
    """
    files = model_content(model)
    if unknown := sorted(set(not_secret) - set(files)):
        raise UsageError(f"--not_secret {unknown[0]}: {model} has no such file that would be pushed")
    doing, total = f"comparing {model} with its configuration", sum(map(size, files.values()))
    if found := run_with_timeout(lambda: incomplete(model), doing, total, least=COMPARE_SECONDS):
        raise UsageError("\n".join(f"{model}: {problem}" for problem in found))
    files |= {name: local_file(model / name, model) for name in not_secret}
    return Publishable({**files, "run.json": json_bytes(public_run(read_run(run_dir) or {}))}, not_secret=not_secret)


def incomplete(model: Path, code: bool = True) -> list[str]:
    """List what keeps a model from being complete and inert, its architecture included. It imports transformers and
    torch: a process that ends does, since whoever pushes waits next to a training.

    Args:
        code: False if the model's own code does not count, because nothing is loaded.
    """
    found = model_folder.problems(model, code)
    return found or [*model_folder.missing_files(model)] or [*model_folder.missing_weights(model)]


def print_skipped(run_dir: Path, model: Path) -> None:
    """Name the files that do not go."""
    others = [path for path in sorted(model.iterdir()) if path.absolute() != run_dir.absolute()]
    left = [path.name + "/" * path.is_dir() for path in others if not named(path.name, (*MODEL, TEMPLATES))]
    print_left_out(left, "files of a model (`hf upload` takes any file)")
    if any(name.endswith(".py") for name in left):
        print("the model's own code stays here too: who loads the repo needs it, so upload it with `hf upload`")


def _without_folders(value, key: str = ""):
    """A JSON value; of a folder of this machine (its base model), or of anybody's home, the last part only."""
    if isinstance(value, dict):
        return {name: _without_folders(each, name) for name, each in value.items()}
    if isinstance(value, list):
        return [_without_folders(each, key) for each in value]
    local = isinstance(value, str) and (HOME.match(value) or (key in BASES and value.startswith("/")))
    return last_part(value) if local and "\n" not in value else value
