"""Which code a model brings along, read from its small files; nothing is imported from it and no weights are fetched.

`auto_map` in a file gives, for a class of transformers such as AutoConfig, a class in a module of the model's folder
("module.Class") or of another repository ("owner/name--module.Class"). Where transformers has the class that the files
name anyway (`model_type`, `architectures`, `tokenizer_class`), the model loads without that code.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from openrlhf_ebpo.seams.install import install
from openrlhf_ebpo.seams.remote_code import FLAG

CONFIG = "config.json"
TOKENIZER = "tokenizer_config.json"
MAX_JSON_BYTES = 256 << 20  # of a tokenizer
# Classes that OpenRLHF and vLLM load a text model by, and one that also sees.
TEXT = {"AutoConfig", "AutoTokenizer", "AutoModelForCausalLM"}
MEDIA = {"AutoProcessor", "AutoImageProcessor", "AutoVideoProcessor", "AutoFeatureExtractor"}
VISION = {"AutoConfig", "AutoTokenizer", "AutoModelForImageTextToText"} | MEDIA
PROCESSORS = ("processor_config.json", "preprocessor_config.json", "video_preprocessor_config.json")
Reader = Callable[[str], dict]  # name of a file -> what it holds; {} where the model has none


class ModelFileError(ValueError):
    """A file of a model is not what it should be; the message names it."""


@dataclass(frozen=True)
class OwnCode:
    """One entry of an auto_map. file: that it is in. auto_class: of transformers. references: to the code."""

    file: str
    auto_class: str
    references: tuple[str, ...]

    def __str__(self) -> str:
        # untrusted text: escape sequences must not reach the terminal
        named = ", ".join(each if each.isprintable() else repr(each) for each in (self.auto_class, *self.references))
        return f"{self.file}: {named}"


def folder_reader(folder: Path) -> Reader:
    return lambda name: read_file(folder / name) if (folder / name).is_file() else {}


def read_file(path: Path) -> dict:
    """The JSON object in a file.

    Raises:
        ModelFileError: it cannot be read, is too large, or does not hold a JSON object.
    """
    try:
        size = path.stat().st_size
        found = json.loads(path.read_text()) if size <= MAX_JSON_BYTES else None
    except (OSError, ValueError, RecursionError) as error:
        raise ModelFileError(f"{path} cannot be read as JSON ({error}); a Git LFS pointer, not fetched?") from None
    if size > MAX_JSON_BYTES:
        raise ModelFileError(f"{path.name} has {size} bytes; no model's is above {MAX_JSON_BYTES}")
    if not isinstance(found, dict):
        raise ModelFileError(f"{path} holds a JSON {type(found).__name__}, not an object")
    return found


def own_code(read: Reader) -> list[OwnCode]:
    """All code that the files name, needed or not.

    Raises:
        ModelFileError: a file is damaged.
    """
    files = (CONFIG, TOKENIZER, *(PROCESSORS if _sees(read) else ()))
    return [code for file in files for code in _entries(file, read(file).get("auto_map"))]


def _sees(read: Reader) -> bool:
    return "vision_config" in read(CONFIG)  # OpenRLHF then loads an image-text model and its processor


def _entries(file: str, auto_map: object) -> Iterator[OwnCode]:
    if isinstance(auto_map, list) and file == TOKENIZER:
        auto_map = {"AutoTokenizer": auto_map}  # an older form: the slow and the fast class
    if not isinstance(auto_map or {}, dict):
        raise ModelFileError(f"{file} has an auto_map that is no object")
    for auto_class, references in (auto_map or {}).items():
        references = references if isinstance(references, list) else [references]
        yield OwnCode(file, auto_class, tuple(str(each) for each in references if each is not None))


def needed_code(read: Reader) -> list[OwnCode]:
    """The code without which the model, its tokenizer or its processor does not load as what its files say. Where there
    is no transformers to ask, that is all that they name.

    Raises:
        ModelFileError: a file is damaged.
    """
    found = own_code(read)
    used = VISION if _sees(read) else TEXT
    found = [code for code in found if code.auto_class in used]
    if not found or importlib.util.find_spec("transformers") is None:
        return found
    install()  # transformers is imported next, and rows for it come first
    return [code for code in found if not _is_known(code, read(CONFIG), read(code.file))]


def refusal(code: OwnCode) -> str:
    return (
        f"the model brings code of its own, which would run on this machine ({code}; transformers itself has no such "
        f"class). Nothing of it was fetched or run. Read that code, and add {FLAG} if you trust it; or take a model that "
        "needs none"
    )


def _is_known(code: OwnCode, config: dict, settings: dict) -> bool:
    """Whether transformers has the class itself."""
    from transformers.models.auto import configuration_auto, modeling_auto, processing_auto, tokenization_auto

    model_type = str(config.get("model_type"))
    if code.auto_class == "AutoConfig":
        return model_type in configuration_auto.CONFIG_MAPPING_NAMES
    if code.auto_class == "AutoTokenizer":
        named = str(settings.get("tokenizer_class") or tokenization_auto.TOKENIZER_MAPPING_NAMES.get(model_type))
        return any(tokenization_auto.tokenizer_class_from_name(name) for name in (named, f"{named}Fast"))
    if code.auto_class in MEDIA:
        return model_type in processing_auto.PROCESSOR_MAPPING_NAMES
    names = {
        "AutoModelForCausalLM": modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        "AutoModelForImageTextToText": modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
    }[code.auto_class]
    known = names.get(model_type)
    return known is not None and known in (config.get("architectures") or [known])
