"""Check that the model in a folder is complete and inert: the one check before a model is loaded, published or pulled.

Complete: safetensors opens every file of weights (it refuses files that are cut, padded, empty or Git LFS pointers),
every shard of the index is there with its tensors, configuration and tokenizer can be read; `missing_weights` compares
the tensors with the configuration. Inert: nothing of it runs code when it
is loaded (weights only as pickles, or a model that needs its own code, unless --trust_remote_code is given), and no
link leads out of the folder. Never loaded, so not checked: .py files, pickles next to the same weights in safetensors,
subfolders.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from safetensors import SafetensorError, safe_open

from openrlhf_ebpo import auto_map
from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.extension import TRUST, models_trusted

JSON = re.compile(r"(.*config|tokenizer|special_tokens_map|added_tokens|vocab)\.json")
INDEX = ".safetensors.index.json"
SHARD = re.compile(r"(.+)-\d{5,}-of-(\d{5,})\.safetensors")
PICKLES = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt")
LOADED = re.compile(r"(adapter_)?model(-\d{5,}-of-\d{5,})?\.safetensors")  # names that loaders look for
TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model", "tekken.json")
PARTS, MAX_PARTS = re.compile("layer|expert|block|depth|stage|heads"), 2048  # settings of a configuration
MAX_PROBLEMS = 8  # of one folder
MAX_NAME_CHARS = 100


def problems(folder: str | Path, code: bool = True) -> list[str]:
    """List what keeps the model in `folder` from being complete and inert; each problem begins with the file's name.

    code: False if the model's own code does not count, because nothing is loaded.
    """
    folder = Path(folder)
    try:
        files = sorted(path for path in folder.iterdir() if not path.is_dir())
    except OSError as error:
        return [f"the folder cannot be read ({error.strerror})"]
    if found := [problem for path in files for problem in _link_problems(path)]:
        return found[:MAX_PROBLEMS]  # nothing else of such a folder is opened
    names = [path.name for path in files]
    unread = list(_json_problems(folder, names))
    own = auto_map.code_problems(folder) if code and not unread else []
    weights = list(_weight_problems(folder, names))
    return [*own, *unread, *weights, *_pickle_problems(names)][:MAX_PROBLEMS]


def check(folder: str | Path) -> None:
    """Raises UsageError: the model is not complete, or not inert; one problem a line."""
    if found := problems(folder):
        raise UsageError("\n".join(f"{folder}: {problem}" for problem in found))


def _link_problems(path: Path) -> Iterator[str]:
    if not path.is_symlink():
        return
    target, root = path.resolve(), path.parent.resolve()
    if root.parent.name == "snapshots":  # of huggingface_hub: links to the blobs of the same model
        root = root.parents[1]
    if not target.is_relative_to(root):
        yield (
            f"{printable(path.name)} leads to {printable(target)}, out of the folder, through a link: put the file "
            f"itself there"
        )
    elif not target.exists():
        yield f"{printable(path.name)} is a link to nowhere"


def _json_problems(folder: Path, names: list[str]) -> Iterator[str]:
    for name in filter(JSON.fullmatch, names):
        try:
            auto_map.read_json(folder / name)
        except auto_map.ModelFileError as error:
            yield str(error)


def _weight_problems(folder: Path, names: list[str]) -> Iterator[str]:
    tensors: dict[str, set[str] | None] = {}  # by file; None if it is damaged
    for name in (name for name in names if name.endswith(".safetensors") and not name.startswith(".")):
        try:
            with safe_open(folder / name, "np") as file:
                tensors[name] = set(file.keys())
        except (SafetensorError, OSError) as error:
            tensors[name] = None
            yield (
                f"{printable(name)} is damaged or cut off, a Git LFS pointer, or not a safetensors file: "
                f"{printable(error)}; fetch it again"
            )
    indexes = [name for name in names if name.endswith(INDEX)]
    for name in indexes:
        yield from (f"{printable(name)} {problem}" for problem in _index_problems(folder / name, tensors))
    shards = Counter(match.groups() for match in map(SHARD.fullmatch, tensors) if match)
    for (stem, count), there in shards.items() if not indexes else ():
        if there < int(count):
            yield f"{printable(stem)}: {there} of {int(count)} files of weights are there, without an index"


def _index_problems(path: Path, tensors: dict[str, set[str] | None]) -> Iterator[str]:
    """Compare an index with the files next to it. tensors: names of the tensors of each file."""
    try:
        index = {str(tensor): str(file) for tensor, file in json.loads(path.read_bytes())["weight_map"].items()}
    except (OSError, ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        yield f"cannot be read as an index ({type(error).__name__}: {printable(error)})"
        return
    for file in sorted({*index.values()} - {*tensors}):  # also a path: only names of this folder are known
        yield f"names {printable(file)}, which is missing"
    lost = [tensor for tensor, file in index.items() if tensors.get(file) is not None and tensor not in tensors[file]]
    if lost:
        more = f" and {len(lost) - 1} more" if len(lost) > 1 else ""
        yield f"puts {printable(lost[0])}{more} into {printable(index[lost[0]])}, which has no such tensor"


def _pickle_problems(names: list[str]) -> Iterator[str]:
    """Loaders take a pickle only if the same weights are not there in safetensors, under the name that they look
    for."""
    inert = [name for name in names if name.endswith((".safetensors", ".gguf"))]
    pickles = [name for name in names if name.endswith(PICKLES)]
    if not inert and not pickles:
        yield f"the folder has no weights (*.safetensors). Of a model on the Hub, pickles are fetched only with {TRUST}"
    taken = [name for name in pickles if not inert or name.startswith(("pytorch_model", "adapter_model"))]
    taken = [name for name in taken if not any(_replaces(each, name) for each in inert)]
    if taken and not models_trusted():
        yield (
            f"{printable(taken[0])} has weights as a pickle, which can run code where it is loaded: convert them to "
            f"safetensors, or add {TRUST} if you trust whoever made it"
        )
    if inert and not taken and not any(LOADED.fullmatch(name) or name.endswith(".gguf") for name in inert):
        yield f"{printable(inert[0])} is not a name that loaders look for: model.safetensors, or shards and their index"


def _replaces(name: str, pickle: str) -> bool:
    match = LOADED.fullmatch(name)
    return bool(match) and bool(match[1]) == pickle.startswith("adapter_model")


def missing_files(folder: str | Path) -> Iterator[str]:
    """List what a model that is published lacks besides weights; each problem begins with the file's name."""
    names = [path.name for path in Path(folder).iterdir()]
    if "adapter_config.json" in names or any(name.endswith(".gguf") for name in names):
        return  # the base model has them, or the file itself
    if "config.json" not in names:
        yield "config.json is missing"
    if not any(name in TOKENIZERS or name.endswith(".tiktoken") for name in names):
        yield f"the tokenizer is missing ({', '.join(TOKENIZERS[:3])} or the like)"


def missing_weights(folder: str | Path) -> Iterator[str]:
    """Compare a model's weights with transformers' class of its configuration, by name and shape; each problem begins
    with the file's name. Imports transformers and torch; without them, and for a class that transformers does not have,
    nothing is compared."""
    folder = Path(folder)
    shapes = tensor_shapes(folder) if (folder / "config.json").is_file() else None
    expected = expected_shapes(auto_map.read_json(folder / "config.json")) if shapes is not None else {}
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
    without memory; {} if there is no such class here, or its files have other names than it."""
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


def printable(text: object) -> str:
    """Untrusted text for the terminal: control characters as escapes, and shortened."""
    text = str(text)
    text = text if text.isprintable() else ascii(text)[1:-1]
    return text if len(text) <= MAX_NAME_CHARS else f"{text[: MAX_NAME_CHARS - 3]}..."
