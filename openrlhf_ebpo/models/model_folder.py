"""Check that the model in a folder is complete and inert: the one check before a model is loaded, published or pulled.

Complete: safetensors opens every file of weights (it refuses files that are cut, padded, empty or Git LFS pointers),
every shard of the index is there with its tensors, configuration and tokenizer can be read, and the weights are those
of the
configuration: every layer with its tensors, and embeddings of its size. Inert: nothing of it runs code when it
is loaded (weights only as pickles, or a model that needs its own code, unless --trust_remote_code is given), and no
link leads out of the folder. Never loaded, so not checked: .py files, pickles next to the same weights in safetensors,
subfolders.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from safetensors import SafetensorError, safe_open

from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.extension import TRUST, models_trusted
from openrlhf_ebpo.models import auto_map, model_shapes

JSON = re.compile(r"(.*config|tokenizer|special_tokens_map|added_tokens|vocab)\.json")
INDEX = ".safetensors.index.json"
SHARD = re.compile(r"(.+)-\d{5,}-of-(\d{5,})\.safetensors")
PICKLES = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt")
LOADED = re.compile(r"(adapter_)?model(-\d{5,}-of-\d{5,})?\.safetensors")  # names that loaders look for
TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model", "tekken.json")
LAYER = re.compile(r"(.*\.)?(?:layers|h|blocks)\.(\d+)\.(.+)")
EMBEDDINGS = re.compile(r"(.*\.)?(?:embed_tokens|wte|word_embeddings|tok_embeddings)\.weight")
# In names of settings: models of several parts, or with embeddings of another width; layers that need not be equal.
COMPOSITE = re.compile("_config$|embedding_size|embed_dim|embed_proj|is_encoder_decoder")
UNEQUAL_LAYERS = re.compile("expert|moe|hybrid|mamba|attn_layer|block|nextn|shared")
UNEQUAL_TYPES = re.compile("linear|mamba|conv|recurrent|moe")  # in layer_types
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
    found = [*own, *unread, *weights, *_pickle_problems(names)]
    if not found and "config.json" in names:
        found = [f"config.json {problem}" for problem in _architecture_problems(folder, names)]
    return found[:MAX_PROBLEMS]


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


def _architecture_problems(folder: Path, names: list[str]) -> Iterator[str]:
    """Compare the configuration with the tensors: the shape of the embeddings, and their names by layer. Without torch,
    so not by the architecture itself: what is not a plain stack of layers is compared as far as that is sure."""
    config, shapes = auto_map.read_json(folder / "config.json"), _shapes(folder, names)
    if shapes is None:
        return
    yield from model_shapes.too_few(config, shapes)
    is_plain = not any(COMPOSITE.search(name) and value for name, value in config.items())
    if is_plain:
        yield from _embedding_problems(config, shapes)
    stacks: dict[str, dict[int, set[str]]] = {}
    for match in filter(None, map(LAYER.fullmatch, shapes)):
        stacks.setdefault(match[1], {}).setdefault(int(match[2]), set()).add(match[3])
    count = config.get("num_hidden_layers")
    if is_plain and len(stacks) == 1 and isinstance(count, int):
        differ = any(map(UNEQUAL_LAYERS.search, filter(config.get, config)))
        differ = differ or bool(UNEQUAL_TYPES.search(str(config.get("layer_types"))))
        yield from _layer_problems(count, *stacks.values(), are_equal=not differ)


def missing_weights(folder: str | Path) -> Iterator[str]:
    """Compare a complete model with its architecture, which takes the seconds that importing transformers takes."""
    names = [path.name for path in Path(folder).iterdir()]
    shapes = _shapes(Path(folder), names) if "config.json" in names else None
    if shapes is not None:
        config = auto_map.read_json(Path(folder) / "config.json")
        yield from (f"config.json {problem}" for problem in model_shapes.missing_weights(config, shapes))


def _shapes(folder: Path, names: list[str]) -> dict[str, list[int]] | None:
    """Tensor -> shape of all files that loaders take; None for an adapter, or a model of another format."""
    files = [name for name in names if LOADED.fullmatch(name)]
    if not files or any(name.startswith("adapter_") for name in files):
        return None
    shapes: dict[str, list[int]] = {}
    for name in files:
        with safe_open(folder / name, "np") as file:
            shapes |= {tensor: file.get_slice(tensor).get_shape() for tensor in file.keys()}  # noqa: SIM118  not a dict
    return shapes


def _embedding_problems(config: dict, shapes: dict[str, list[int]]) -> Iterator[str]:
    expected = [config.get("vocab_size"), config.get("hidden_size")]
    embeddings = [tensor for tensor in shapes if EMBEDDINGS.fullmatch(tensor)]
    if len(embeddings) == 1 and all(isinstance(size, int) for size in expected) and shapes[embeddings[0]] != expected:
        found = " x ".join(map(str, shapes[embeddings[0]]))
        yield f"says {expected[0]} tokens x {expected[1]}, and {printable(embeddings[0])} is {found}"


def _layer_problems(count: int, layers: dict[int, set[str]], are_equal: bool) -> Iterator[str]:
    """layers: names of the tensors of each."""
    if lost := [number for number in range(count) if number not in layers]:
        yield f"says {count} layers, and the weights of layer {lost[0]}{' and others' if lost[1:] else ''} are missing"
        return
    every = set().union(*layers.values())
    partly = [number for number in range(count) if layers[number] != every] if are_equal else []
    if partly:
        yield f"has equal layers, and layer {partly[0]} has no {printable(min(every - layers[partly[0]]))}"


def printable(text: object) -> str:
    """Untrusted text for the terminal: control characters as escapes, and shortened."""
    text = str(text)
    text = text if text.isprintable() else ascii(text)[1:-1]
    return text if len(text) <= MAX_NAME_CHARS else f"{text[: MAX_NAME_CHARS - 3]}..."
