"""Which model it is, told by its weights: a folder, a copy of it and the Hub's name for it are the same one, however the
weights are split into files. The configuration and the tokenizer do not count, since saving them again changes them.

Of every tensor the first bytes are read, some hundred kilobytes of a model of any size. A few steps of training change some of
them: what differs nowhere there is the same model.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

from openrlhf_ebpo.models.weights import WeightsError, read_index, tensors_of

INDEX = "model.safetensors.index.json"
BYTES = 256  # of each tensor


def weights_identity(folder: Path) -> str | None:
    """16 hex digits. None: the folder has no weights in safetensors, or not all of them, as with a model that is being fetched."""
    files = weight_files(folder)
    if not files:
        return None
    try:
        samples = sorted(sample for file in files for sample in _samples(file))
    except (OSError, WeightsError):
        return None
    return hashlib.sha256(json.dumps(samples).encode()).hexdigest()[:16]


def weight_files(folder: Path) -> list[Path]:
    """The files that hold the model; none if one of them is missing."""
    index = folder / INDEX
    if not index.is_file():
        return sorted(folder.glob("*.safetensors"))
    try:
        files = [folder / name for name in sorted(set(read_index(index).values()))]
    except (OSError, WeightsError):
        return []
    return files if all(file.is_file() for file in files) else []


def _samples(path: Path) -> Iterator[tuple[str, str, list, str]]:
    """Of each tensor name, dtype, shape and its first bytes."""
    tensors = tensors_of(path)
    start = path.stat().st_size - max((tensor["data_offsets"][1] for tensor in tensors.values()), default=0)
    with open(path, "rb") as file:
        for name, tensor in tensors.items():
            begin, end = tensor["data_offsets"]
            file.seek(start + begin)
            yield name, tensor["dtype"], tensor["shape"], file.read(min(BYTES, end - begin)).hex()
