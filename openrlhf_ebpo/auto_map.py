"""Find the code that a model brings along, from its configuration files; nothing of it is imported.

`auto_map` in a file gives, for a class of transformers such as AutoConfig, a class in a module of the model's folder
("module.Class") or of another repository ("owner/name--module.Class"). If transformers has the class that the files
name anyway (`model_type`, `architectures`, `tokenizer_class`), the model loads without that code. What is not found
here, such as the code of a processor, does not run either: upstream/remote_code.py refuses it when it is loaded.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.extension import TRUST, models_trusted

CONFIG = "config.json"
TOKENIZER = "tokenizer_config.json"
LOADED = ("AutoConfig", "AutoTokenizer", "AutoModelForCausalLM")  # by OpenRLHF and vLLM


class ModelFileError(UsageError):
    """A file of a model cannot be read; the message names it."""


class CustomCode(NamedTuple):
    """One entry of an auto_map: the file that holds it, the class of transformers, references to the code."""

    file: str
    auto_class: str
    references: tuple[str, ...]

    def __str__(self) -> str:
        # untrusted text: escape sequences must not reach the terminal
        named = ", ".join(each if each.isprintable() else repr(each) for each in (self.auto_class, *self.references))
        return f"{self.file}: {named}"


def read_json(path: Path) -> dict:
    """Read the JSON object in a file; {} if the file does not exist.

    Raises:
        ModelFileError: it cannot be read, or does not hold a JSON object.
    """
    try:
        found = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise ModelFileError(f"{path} cannot be read as JSON ({error}); a Git LFS pointer, not fetched?") from None
    if not isinstance(found, dict):
        raise ModelFileError(f"{path} holds a JSON {type(found).__name__}, not an object")
    return found


def custom_code(folder: Path) -> list[CustomCode]:
    """List all code that the files of a model name, needed or not.

    Raises:
        ModelFileError: a file is damaged.
    """
    files = (CONFIG, TOKENIZER)
    return [code for file in files for code in _entries(file, read_json(folder / file).get("auto_map") or {})]


def _entries(file: str, auto_map: object) -> Iterator[CustomCode]:
    if isinstance(auto_map, list) and file == TOKENIZER:
        auto_map = {"AutoTokenizer": auto_map}  # an older form: the slow and the fast class
    if not isinstance(auto_map, dict):
        raise ModelFileError(f"{file} has an auto_map that is not an object")
    for auto_class, references in auto_map.items():
        references = references if isinstance(references, list) else [references]
        yield CustomCode(file, auto_class, tuple(str(each) for each in references if each is not None))


def needed_code(folder: Path) -> list[CustomCode]:
    """List the code without which the model or its tokenizer does not load as what its files say; all code that they
    name if transformers is not installed. Imports transformers: a process that goes on to load a model calls
    upstream.install.install() before, so that the rows for transformers come first.

    Raises:
        ModelFileError: a file is damaged.
    """
    config = read_json(folder / CONFIG)
    loaded = LOADED[:2] if "vision_config" in config else LOADED  # OpenRLHF loads such a model by another class
    found = [code for code in custom_code(folder) if code.auto_class in loaded]
    if not found or importlib.util.find_spec("transformers") is None:
        return found
    return [code for code in found if not _transformers_has(code.auto_class, config, read_json(folder / code.file))]


def code_problems(folder: Path) -> list[str]:
    """Return why the model in `folder` must not be loaded, if it needs code that may not run."""
    try:
        needed = [] if models_trusted() else needed_code(folder)
    except ModelFileError as error:
        return [str(error)]
    return [refusal(code) for code in needed[:1]]


def refusal(code: CustomCode) -> str:
    return (
        f"the model brings its own code, which would run on this machine ({code}; transformers itself has no such "
        f"class). Nothing of it was fetched or run. Read that code, and add {TRUST} if you trust it; or take a model "
        "that needs none"
    )


def _transformers_has(auto_class: str, config: dict, settings: dict) -> bool:
    """settings: the file that names the code."""
    from transformers.models.auto import configuration_auto, modeling_auto, tokenization_auto

    model_type = str(config.get("model_type"))
    if auto_class == "AutoConfig":
        return model_type in configuration_auto.CONFIG_MAPPING_NAMES
    if auto_class == "AutoTokenizer":
        named = str(settings.get("tokenizer_class") or tokenization_auto.TOKENIZER_MAPPING_NAMES.get(model_type))
        return any(tokenization_auto.tokenizer_class_from_name(name) for name in (named, f"{named}Fast"))
    known = modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(model_type)
    return known is not None and known in (config.get("architectures") or [known])
