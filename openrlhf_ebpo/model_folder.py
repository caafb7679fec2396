"""Check that the model in a folder is complete and inert: the one check before a model is loaded, published or pulled.

Complete: safetensors opens every file of weights (it refuses files that are cut, padded, empty or Git LFS pointers),
every shard of the index exists with its tensors, configuration and tokenizer can be read; `missing_weights` compares
the tensors with the configuration. Inert: nothing of it runs code when it is loaded (weights only as pickles, or a
model that needs its own code, unless --trust_remote_code is given), and no link leads out of the folder. Never loaded,
so not checked: .py files, pickles next to the same weights in safetensors, subfolders.

`auto_map` in a file gives, for a class of transformers such as AutoConfig, a class in a module of the model's folder
("module.Class") or of another repository ("owner/name--module.Class"). If transformers has the class that the files
name anyway (`model_type`, `architectures`, `tokenizer_class`), the model loads without that code. What is not found
here, such as the code of a processor, does not run either: upstream/remote_code.py refuses it when it is loaded.
"""

from __future__ import annotations

import importlib.util
import json
import math
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from safetensors import SafetensorError, safe_open

from openrlhf_ebpo.command import one_line
from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.extension import TRUST, models_trusted

CONFIG = "config.json"
TOKENIZER = "tokenizer_config.json"
AUTO_CLASSES = ("AutoConfig", "AutoTokenizer", "AutoModelForCausalLM")  # by OpenRLHF and vLLM
CAUSAL_LM = ("ForCausalLM", "LMHeadModel")  # endings of the classes that AutoModelForCausalLM builds
JSON = re.compile(r"(.*config|tokenizer|special_tokens_map|added_tokens|vocab)\.json")
INDEX = ".safetensors.index.json"
SHARD = re.compile(r"(.+)-\d{5,}-of-(\d{5,})\.safetensors")
WEIGHT_PICKLES = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt")
LOADED = re.compile(r"(adapter_)?model(-\d{5,}-of-\d{5,})?\.safetensors")  # names that loaders look for
TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model", "tekken.json")
PARTS, MAX_PARTS = re.compile("layer|expert|block|depth|stage|heads"), 2048  # settings of a configuration
MAX_PROBLEMS = 8  # of one folder
MAX_PROBLEM_CHARS = 600


class CustomCode(NamedTuple):
    """One entry of an auto_map: the file that holds it, the class of transformers, references to the code."""

    file: str
    auto_class: str
    references: tuple[str, ...]

    def __str__(self) -> str:
        # untrusted text: escape sequences must not reach the terminal
        named = ", ".join(each if each.isprintable() else repr(each) for each in (self.auto_class, *self.references))
        return f"{self.file}: {named}"


def problems(folder: str | Path, code: bool = True) -> list[str]:
    """List what keeps the model in `folder` from being complete and inert; each problem begins with the file's name,
    and is one printable line of MAX_PROBLEM_CHARS at most.

    code: False if the model's own code does not count, because nothing is loaded.
    """
    return [one_line(each, MAX_PROBLEM_CHARS) for each in _problems(Path(folder), code)[:MAX_PROBLEMS]]


def _problems(folder: Path, code: bool) -> list[str]:
    try:
        files = sorted(path for path in folder.iterdir() if not path.is_dir())
    except OSError as error:
        return [f"the folder cannot be read ({error.strerror})"]
    if found := [problem for path in files for problem in _link_problems(path)]:
        return found  # nothing else of such a folder is opened
    names = [path.name for path in files]
    unread = []
    for name in filter(JSON.fullmatch, names):
        try:
            read_json(folder / name)
        except UsageError as error:
            unread.append(str(error))
    own = code_problems(folder) if code and not unread else []
    weights = list(_weight_problems(folder, names))
    return [*own, *unread, *weights, *_pickle_problems(names)]


def _link_problems(path: Path) -> Iterator[str]:
    if not path.is_symlink():
        return
    target, root = path.resolve(), path.parent.resolve()
    if root.parent.name == "snapshots":  # of huggingface_hub: links to the blobs of the same model
        root = root.parents[1]
    if not target.is_relative_to(root):
        yield f"{path.name} leads to {target}, out of the folder, through a link: put the file itself there"
    elif not target.exists():
        yield f"{path.name} is a link to nowhere"


def _weight_problems(folder: Path, names: list[str]) -> Iterator[str]:
    tensors: dict[str, set[str] | None] = {}  # by file; None if it is damaged
    for name in (name for name in names if name.endswith(".safetensors") and not name.startswith(".")):
        try:
            with safe_open(folder / name, "np") as file:
                tensors[name] = set(file.keys())
        except (SafetensorError, OSError) as error:
            tensors[name] = None
            yield (
                f"{name} is damaged or cut off, a Git LFS pointer, or not a safetensors file: {error}; fetch it again"
            )
    indexes = [name for name in names if name.endswith(INDEX)]
    for name in indexes:
        yield from (f"{name} {problem}" for problem in _index_problems(folder / name, tensors))
    shards = Counter(match.groups() for match in map(SHARD.fullmatch, tensors) if match)
    for (stem, count), there in shards.items() if not indexes else ():
        if there < int(count):
            yield f"{stem}: {there} of {int(count)} files of weights are there, without an index"


def _index_problems(path: Path, tensors: dict[str, set[str] | None]) -> Iterator[str]:
    """Compare an index with the files next to it. tensors: names of the tensors of each file."""
    try:
        index = {str(tensor): str(file) for tensor, file in json.loads(path.read_bytes())["weight_map"].items()}
    except (OSError, ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        yield f"cannot be read as an index ({type(error).__name__}: {error})"
        return
    for file in sorted({*index.values()} - {*tensors}):  # also a path: only names of this folder are known
        yield f"names {file}, which is missing"
    lost = [tensor for tensor, file in index.items() if tensors.get(file) is not None and tensor not in tensors[file]]
    if lost:
        more = f" and {len(lost) - 1} more" if len(lost) > 1 else ""
        yield f"puts {lost[0]}{more} into {index[lost[0]]}, which has no such tensor"


def _pickle_problems(names: list[str]) -> Iterator[str]:
    """Loaders take a pickle only if the same weights are not there in safetensors, under the name that they look
    for."""
    inert = [name for name in names if name.endswith((".safetensors", ".gguf"))]
    pickles = [name for name in names if name.endswith(WEIGHT_PICKLES)]
    if not inert and not pickles:
        yield f"the folder has no weights (*.safetensors). Of a model on the Hub, pickles are fetched only with {TRUST}"
    taken = [name for name in pickles if not inert or name.startswith(("pytorch_model", "adapter_model"))]
    replaced = {bool(match[1]) for match in map(LOADED.fullmatch, inert) if match}  # weights of: an adapter, or a model
    taken = [name for name in taken if name.startswith("adapter_model") not in replaced]
    if taken and not models_trusted():
        yield (
            f"{taken[0]} has weights as a pickle, which can run code where it is loaded: convert them to "
            f"safetensors, or add {TRUST} if you trust whoever made it"
        )
    if inert and not taken and not any(LOADED.fullmatch(name) or name.endswith(".gguf") for name in inert):
        yield f"{inert[0]} is not a name that loaders look for: model.safetensors, or shards and their index"


def read_json(path: Path) -> dict:
    """Read the JSON object in a file; {} if the file does not exist.

    Raises:
        UsageError: it cannot be read, or does not hold a JSON object.
    """
    try:
        found = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{path} cannot be read as JSON ({error}); a Git LFS pointer, not fetched?") from None
    if not isinstance(found, dict):
        raise UsageError(f"{path} holds a JSON {type(found).__name__}, not an object")
    return found


def custom_code(folder: Path) -> list[CustomCode]:
    """List all code that the files of a model name, needed or not.

    Raises:
        UsageError: a file is damaged.
    """
    found = []
    for file in (CONFIG, TOKENIZER):
        auto_map = read_json(folder / file).get("auto_map") or {}
        if isinstance(auto_map, list) and file == TOKENIZER:
            auto_map = {"AutoTokenizer": auto_map}  # an older form: the slow and the fast class
        if not isinstance(auto_map, dict):
            raise UsageError(f"{file} has an auto_map that is not an object")
        for auto_class, references in auto_map.items():
            references = references if isinstance(references, list) else [references]
            found.append(CustomCode(file, auto_class, tuple(str(each) for each in references if each is not None)))
    return found


def needed_code(folder: Path) -> list[CustomCode]:
    """List the code without which the model or its tokenizer does not load as what its files say; all code that they
    name if transformers is not installed. Imports transformers: a process that then loads a model calls
    upstream.install.install() before, so that the rows for transformers come first.

    Raises:
        UsageError: a file is damaged.
    """
    config = read_json(folder / CONFIG)
    loaded = (
        AUTO_CLASSES[:2] if "vision_config" in config else AUTO_CLASSES
    )  # OpenRLHF loads such a model by another class
    found = [code for code in custom_code(folder) if code.auto_class in loaded]
    if not found or importlib.util.find_spec("transformers") is None:
        return found
    return [code for code in found if not _transformers_has(code.auto_class, config, read_json(folder / code.file))]


def code_problems(folder: Path) -> list[str]:
    """List what forbids to load the model in `folder`: code that it needs and that may not run, or a damaged file."""
    try:
        needed = [] if models_trusted() else needed_code(folder)
    except UsageError as error:
        return [str(error)]
    return [
        f"the model brings its own code, which would run on this machine ({code}; transformers itself has no such "
        f"class). Nothing of it was fetched or run. Read that code, and add {TRUST} if you trust it; or take a model "
        "that needs none"
        for code in needed[:1]
    ]


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


def missing_files(folder: str | Path) -> Iterator[str]:
    """List what a model that is published lacks besides weights; each problem begins with the file's name."""
    names = [path.name for path in Path(folder).iterdir()]
    if "adapter_config.json" in names or any(name.endswith(".gguf") for name in names):
        return  # the base model has them, or the file itself
    if CONFIG not in names:
        yield "config.json is missing"
    if not any(name in TOKENIZERS or name.endswith(".tiktoken") for name in names):
        yield f"the tokenizer is missing ({', '.join(TOKENIZERS[:3])} or the like)"


def missing_weights(folder: str | Path) -> Iterator[str]:
    """Compare a model's weights with transformers' class of its configuration, by name and shape; each problem begins
    with the file's name. Imports transformers and torch; without them, and for a class that transformers does not have,
    nothing is compared."""
    folder = Path(folder)
    shapes = tensor_shapes(folder) if (folder / CONFIG).is_file() else None
    expected = expected_shapes(read_json(folder / CONFIG)) if shapes is not None else {}
    wrong = {
        name: shape for name, shape in expected.items() if list(shapes.get(name, ())) != shape or name not in shapes
    }
    if not wrong:
        return
    if not any(name in shapes for name in expected):
        needed, found = (sum(map(math.prod, each.values())) for each in (expected, shapes))
        if found < needed:
            yield f"config.json is of a model with {needed:,} weights, and the files hold {found:,}"
        return
    name, shape = min(wrong.items(), key=lambda item: item[0] in shapes)
    problem = f"is {shapes[name]}" if name in shapes else "is missing"
    more = f" ({len(wrong) - 1} others differ too)" if len(wrong) > 1 else ""
    yield f"config.json has {name} of {shape}, which {problem}{more}"


def tensor_shapes(folder: Path) -> dict[str, list[int]] | None:
    """Return tensor -> shape of all files that loaders take; None for an adapter, or a model of another format."""
    files = [path.name for path in folder.iterdir() if LOADED.fullmatch(path.name)]
    if not files or any(name.startswith("adapter_") for name in files):
        return None
    shapes: dict[str, list[int]] = {}
    for name in files:
        with safe_open(folder / name, "np") as file:
            shapes |= {tensor: file.get_slice(tensor).get_shape() for tensor in file.keys()}  # noqa: SIM118  not a dict
    return shapes


def expected_shapes(config: dict) -> dict[str, list[int]]:
    """Return name -> shape of every weight that transformers' class of the configuration loads, from the class built
    without memory; {} if the class is not installed, or its files have other names than it."""
    classes = config.get("architectures")
    if not config.get("model_type") or not classes or config.get("quantization_config") or is_huge(config):
        return {}
    try:
        import transformers
        from transformers.conversion_mapping import get_checkpoint_conversion_mapping

        if get_checkpoint_conversion_mapping(config["model_type"]):
            return {}
        settings = transformers.AutoConfig.for_model(**config)
        build = getattr(transformers, classes[0])._from_config
        import torch

        with torch.device("meta"):
            model = build(settings)
    except Exception:  # not installed, no such class, or a configuration that it does not take
        return {}
    tied = model.all_tied_weights_keys  # empty where the configuration ties none
    ignored = [re.compile(pattern) for pattern in getattr(model, "_keys_to_ignore_on_load_missing", None) or ()]
    return {
        name: list(tensor.shape)
        for name, tensor in model.state_dict().items()
        if name not in tied and not any(pattern.search(name) for pattern in ignored)
    }


def is_huge(value: object, name: str = "") -> bool:
    """Return True if a configuration asks for so many parts of a model that building it would not end."""
    if isinstance(value, dict):
        return any(is_huge(each, str(key)) for key, each in value.items())
    if isinstance(value, list):
        return len(value) > MAX_PARTS or any(is_huge(each, name) for each in value)
    return isinstance(value, (int, float)) and value > MAX_PARTS and bool(PARTS.search(name))
