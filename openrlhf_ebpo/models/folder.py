"""Is the model in a folder whole and inert? The one check of whatever loads, publishes or pulls one.

Whole: every shard of the index is there and has the tensors that the index says, safetensors opens every file, configuration
and tokenizer can be read. Inert: nothing of it runs code where it is loaded, and no link leads
out of the folder.

Refused: weights that are only there as pickles, and a model that does not load without code of its own, unless
--trust_remote_code is given. Never loaded, so not looked at: .py files, pickles beside the safetensors of the same
weights, and whatever lies deeper (a run, checkpoints).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.models import auto_map
from openrlhf_ebpo.models.weights import WeightsError, index_problems, read_index, shown, tensors_of
from openrlhf_ebpo.seams.remote_code import FLAG, trusted

JSON = re.compile(
    r"(?:(?:adapter_|generation_|tokenizer_|preprocessor_|processor_|video_preprocessor_)?config|tokenizer|"
    r"special_tokens_map|added_tokens|vocab|tekken|chat_template)\.json"
)
INDEX = ".safetensors.index.json"
MODEL_INDEX = f"model{INDEX}"
SHARD = re.compile(r"(.+)-(\d{5,})-of-(\d{5,})\.safetensors")
PICKLES = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt")
TWINS = {"pytorch_model": "model", "adapter_model": "adapter_model"}  # how the same weights begin in safetensors
MAX_PROBLEMS = 8  # problems of one folder


def problems(folder: str | Path, code: bool = True) -> list[str]:
    """What keeps the model in `folder` from being whole and inert, each in words that begin with the file's name.

    code: False where the model's own code does not count, because nothing is loaded.
    """
    folder = Path(folder)
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError as error:
        return [f"the folder cannot be read ({error.strerror})"]
    unsafe = [problem for entry in entries for problem in _entry_problems(entry, _root(folder))]
    if unsafe:
        return unsafe[:MAX_PROBLEMS]  # nothing else of such a folder is opened
    names = [entry.name for entry in entries if not entry.is_dir()]
    unread = list(_json_problems(folder, names))
    own = _code_problems(folder) if code and not unread and not trusted() else []
    return [*own, *unread, *_weight_problems(folder, names)][:MAX_PROBLEMS]


def check(folder: str | Path, what: str = "", code: bool = True) -> None:
    """The raising form of `problems`. what: stands before every problem, a flag for example.

    Raises:
        UsageError: the model is not whole, or not inert; one problem a line.
    """
    if found := problems(folder, code):
        raise UsageError("\n".join(f"{what or folder}: {problem}" for problem in found))


def _root(folder: Path) -> Path:
    """Where links may lead: into the folder. A snapshot of the Hub's client consists of links to the blobs beside it."""
    real = Path(os.path.realpath(folder))
    cached = real.parent.name == "snapshots" and (real.parents[1] / "blobs").is_dir()
    return real.parents[1] if cached else real


def _entry_problems(entry: os.DirEntry, root: Path) -> Iterator[str]:
    real = Path(os.path.realpath(entry.path))
    if not entry.is_dir() and not real.is_relative_to(root):  # folders in it are not looked into
        yield f"{shown(entry.name)} leads to {shown(real)}, out of the folder, through a link: put the file itself there"
    elif not real.exists() and not entry.name.startswith("."):  # names of files that are being written come and go
        yield f"{shown(entry.name)} is a link to nowhere"


def _weight_problems(folder: Path, names: list[str]) -> Iterator[str]:
    files, found = {}, []
    for name in (name for name in names if name.endswith(".safetensors") and not name.startswith(".")):
        files[name] = _read(tensors_of, folder / name, found)
    for name in (name for name in names if name.endswith(INDEX)):
        if (index := _read(read_index, folder / name, found)) is not None:
            found += [f"{shown(name)} {problem}" for problem in index_problems(index, files)]
    yield from found
    if not any(name.endswith(INDEX) for name in names):
        yield from _lost_shards(files)
    yield from _pickle_problems(names)


def _read(read: Callable[[Path], dict], path: Path, found: list[str]) -> dict | None:
    try:
        return read(path)
    except (WeightsError, OSError) as error:
        found.append(f"{shown(path.name)} {error if isinstance(error, WeightsError) else f'cannot be read ({error})'}")
        return None


def _lost_shards(files: dict) -> Iterator[str]:
    """Of a set that has no index to name them; the names say how many belong to it."""
    for stem, count in {(match[1], match[3]) for match in map(SHARD.fullmatch, files) if match}:
        there = sum(bool(match) and match.group(1, 3) == (stem, count) for match in map(SHARD.fullmatch, files))
        if there < int(count):
            yield f"{shown(stem)}: {there} of {int(count)} files of weights are there, and no index"


def _pickle_problems(names: list[str]) -> list[str]:
    """Loaders take a pickle only where the same weights are not there in safetensors."""
    safe = [name for name in names if name.endswith((".safetensors", ".gguf"))]
    pickles = [name for name in names if name.endswith(PICKLES)]
    if not safe and not pickles:
        return ["the folder has no weights (*.safetensors)"]
    taken = [name for name in pickles if not safe or _is_taken(name, safe)]
    if not taken or trusted():
        return []
    return [
        f"{shown(taken[0])} has weights as a pickle, which can run code where it is loaded: convert them to safetensors, "
        f"or add {FLAG} if you trust whoever made it"
    ]


def _is_taken(pickle: str, safe: list[str]) -> bool:
    """Whether the weights in a pickle, going by its name, have no twin in safetensors."""
    twin = next((twin for stem, twin in TWINS.items() if pickle.startswith(stem)), "")
    return not any(name.startswith(twin) for name in safe)


def _json_problems(folder: Path, names: list[str]) -> Iterator[str]:
    for name in filter(JSON.fullmatch, names):
        try:
            auto_map.read_file(folder / name)
        except auto_map.ModelFileError as error:
            yield str(error)


def _code_problems(folder: Path) -> list[str]:
    try:
        return [auto_map.refusal(code) for code in auto_map.needed_code(auto_map.folder_reader(folder))[:1]]
    except auto_map.ModelFileError as error:
        return [str(error)]
