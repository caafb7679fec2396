"""Choose the files of a model's folder that are published: those that are known to make up a model, by their names."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path, PurePath

from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.hub.content import (
    NO_SECRET,
    Content,
    LocalFile,
    Publishable,
    files_below,
    header_of,
    local_file,
    named,
    print_left_out,
    read_bytes,
)
from openrlhf_ebpo.hub.public import edited_json, last_part, public_run
from openrlhf_ebpo.hub_client import in_time
from openrlhf_ebpo.models import model_folder
from openrlhf_ebpo.redact import HOME, holds_secret
from openrlhf_ebpo.run.run_log import read_run

WEIGHTS, INDEX, TEMPLATES = "*.safetensors", "*.safetensors.index.json", "additional_chat_templates"
MODEL = (
    *(WEIGHTS, INDEX, "config.json", "generation_config.json", "adapter_config.json", "prior.json"),
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "tekken.json"),
    *("*.model", "tokenizer.model.v*", "*.spm", "*.tiktoken", "vocab.json", "vocab.txt", "vocab.bpe", "merges.txt"),
    *("chat_template.jinja", "chat_template.json", f"{TEMPLATES}/*.jinja"),
    *("preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json"),
    *("README.md", "LICENSE", "LICENSE.txt", "LICENSE.md", "NOTICE", "NOTICE.txt", "USE_POLICY.md"),
)
INHERITED = ("config.json", "generation_config.json", "tokenizer_config.json", "special_tokens_map.json")
CONFIGS = (*INHERITED, "adapter_config.json", "processor_config.json", "preprocessor_config.json")
BASES = ("_name_or_path", "base_model_name_or_path")  # keys of the model that another one was made from


def model_content(model: Path, not_secret: Collection[str] = ()) -> dict[str, Content]:
    """Path in the repo -> file or bytes of what of a model's folder is published; not scanned yet.

    Args:
        not_secret: names of files that the user has checked.

    Raises:
        UsageError: `model` has no weights in safetensors; a file of it is a link out of the folder, or cannot be read.
    """
    names = [path.as_posix() for path in files_below(model, skip=is_deep) if named(path, MODEL)]
    if not any(named(name, [WEIGHTS]) for name in names):
        found = ", ".join(sorted(p.name for p in model.iterdir())[:8]) if model.is_dir() else "no such folder"
        raise UsageError(f"{model} holds no model in safetensors ({found})")
    files: dict[str, Content] = {
        name: replace(local_file(model / name, model), cleared=name in not_secret) for name in names
    }
    return files | {name: public_config(files[name]) for name in CONFIGS if name in names and name not in not_secret}


def contents(run_dir: Path, model: Path, not_secret: Collection[str] = ()) -> Publishable:
    """`model_content` and run.json: what a step consists of, but for its card.

    Raises:
        UsageError: as `model_content`; or the model is not complete and inert, or a file of it holds a secret.
    """
    files = model_content(model, not_secret)
    model_folder.check(model)
    if unknown := sorted(set(not_secret) - set(files)):
        raise UsageError(f"--not_secret {unknown[0]}: {model} has no such file that would be pushed")
    own = {name: replace(local_file(model / name, model), cleared=name in not_secret) for name in files}
    _refuse(model, model_folder.missing_files(model))
    _refuse(model, _missing_weights(model, frozenset(own.values())))
    refuse_kept_secrets(own, model)
    run = read_run(run_dir) or {}
    return Publishable({**files, "run.json": edited_json(run, public_run(run))})


def _refuse(model: Path, problems: Iterable[str]) -> None:
    if found := list(problems):
        raise UsageError("\n".join(f"{model}: {problem}" for problem in found))


@functools.lru_cache(maxsize=64)
def _missing_weights(model: Path, files: frozenset[LocalFile]) -> list[str]:
    """List what `files` lack of their architecture, once for the same files. A process that ends compares them:
    transformers and torch would stay in the memory of this one, which waits next to a training."""
    size = sum(file.size for file in files)
    return in_time(lambda: list(model_folder.missing_weights(model)), f"comparing {model} with its configuration", size)


def is_deep(path: PurePath) -> bool:
    """A model's folder may hold a run, checkpoints, anything."""
    return len(path.parts) > 1 and path.parts[0] != TEMPLATES


def print_skipped(run_dir: Path, model: Path) -> None:
    """Name the files that do not go."""
    others = [path for path in sorted(model.iterdir()) if path.absolute() != run_dir.absolute()]
    left = [path.name + "/" * path.is_dir() for path in others if not named(path.name, (*MODEL, TEMPLATES))]
    print_left_out(left, "files of a model (`hf upload` takes any file)")
    if any(name.endswith(".py") for name in left):
        print("the model's own code stays here too: who loads the repo needs it, so upload it with `hf upload`")


def public_config(file: LocalFile) -> Content:
    """A configuration; of a folder of this machine (its base model), or of anybody's home, the last part only."""
    try:
        config = json.loads(read_bytes(file))
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{file.path} is damaged, and is not published: {error}") from error
    public = _without_folders(config)
    return file if public == config else edited_json(config, public)


def _without_folders(value, key: str = ""):
    if isinstance(value, dict):
        return {name: _without_folders(each, name) for name, each in value.items()}
    if isinstance(value, list):
        return [_without_folders(each, key) for each in value]
    local = isinstance(value, str) and (HOME.match(value) or (key in BASES and value.startswith("/")))
    return last_part(value) if local and "\n" not in value else value


def refuse_kept_secrets(files: Mapping[str, LocalFile], model: Path) -> None:
    """A model's own files go as they are, so one with a secret in it does not go.

    Raises:
        UsageError: a configuration keeps something under the name of a secret; names file and key.
    """
    found = [(name, key) for name, file in files.items() if not file.cleared for key in secret_keys(name, file)]
    if found:
        kept = "; ".join(f"{model / name} keeps a secret under {key!r}" for name, key in found)
        raise UsageError(
            f"{kept}. All who can read the repo would read it: take it out of the file, and push again. {NO_SECRET}"
        )


def kept_secret(model: str) -> str | None:
    """Say why models trained from the folder `model` could not be pushed; None if they could. Training copies the
    configurations. Links are followed here."""
    files = {name: Path(os.path.realpath(Path(model) / name)) for name in INHERITED}
    try:
        refuse_kept_secrets({name: local_file(path) for name, path in files.items() if path.is_file()}, Path(model))
    except UsageError as error:
        return str(error)
    return None


def secret_keys(name: str, file: LocalFile) -> list[str]:
    """Keys of a JSON file, or of the metadata in a safetensors file, that keep a secret, at any depth and also where a
    key is repeated. None in an index, whose keys are the weights' names.

    Raises:
        UsageError: the file is damaged.
    """
    if named(name, [WEIGHTS]):
        text = header_of(file)
    elif name.endswith(".json") and not named(name, [INDEX]):
        text = read_bytes(file)
    else:
        return []
    found: list[str] = []

    def collect(pairs: list[tuple[str, object]]) -> dict:
        found.extend(key for key, value in pairs if any(holds_secret(key, each) for each in texts_of(value)))
        return dict(pairs)

    try:
        json.loads(text, object_pairs_hook=collect, parse_int=float)  # int() refuses very long ones
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{file.path} is damaged, and is not published: {error}") from error
    return found


def texts_of(value: object) -> Iterator[str]:
    """All texts in a value; of an added token (an object with its text as `content`) that only, of a tensor none."""
    if isinstance(value, str):
        yield value
    if isinstance(value, dict):
        value = [] if "data_offsets" in value else [value["content"]] if "content" in value else [*value.values()]
    if isinstance(value, list):
        for each in value:
            yield from texts_of(each)
