"""Weights in safetensors as their headers tell: no tensor is loaded.

A file is 8 bytes (the header's length), the header (JSON: tensor -> dtype, shape, begin and end), and the tensors without
a gap. The library compares the header with the length of the file, so that one that was cut, padded or emptied, or is a Git
LFS pointer, is refused; the numbers in a tensor are not looked at.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

from safetensors import SafetensorError, safe_open

MAX_HEADER_BYTES = 100_000_000  # as safetensors itself
MAX_INDEX_BYTES = 64 << 20
MAX_NAME_CHARS = 100


class WeightsError(ValueError):
    """A file of weights is damaged; says how, without its name."""


def read_header(file: BinaryIO) -> bytes:
    """The JSON at the start of a file.

    Raises:
        WeightsError: it says that it is longer than the library takes.
    """
    length = int.from_bytes(file.read(8), "little")
    if length > MAX_HEADER_BYTES:
        raise WeightsError(f"announces a header of {length} bytes; safetensors takes no more than {MAX_HEADER_BYTES}")
    return file.read(length)


def tensors_of(path: Path) -> dict[str, dict]:
    """Tensor -> dtype, shape and offsets of a file whose size is what they say.

    Raises:
        WeightsError: it is not. OSError: it cannot be read.
    """
    try:
        with safe_open(path, "np"), open(path, "rb") as file:
            tensors = json.loads(read_header(file))
    except SafetensorError as error:
        reason = shown(str(error).removeprefix("Error while deserializing header: "))
        raise WeightsError(
            f"is damaged or cut off, a Git LFS pointer, or not a safetensors file: {reason}; fetch it again"
        ) from None
    tensors.pop("__metadata__", None)
    return tensors


def read_index(path: Path) -> dict[str, str]:
    """Tensor -> name of the file that has it.

    Raises:
        WeightsError: it is not an index, too large for one, or names a file elsewhere. OSError: it cannot be read.
    """
    if (size := path.stat().st_size) > MAX_INDEX_BYTES:
        raise WeightsError(f"has {size} bytes; no model's index is above {MAX_INDEX_BYTES}")
    try:
        found = json.loads(path.read_bytes())["weight_map"]
    except (ValueError, RecursionError, KeyError, TypeError) as error:
        raise WeightsError(f"cannot be read as an index ({type(error).__name__}: {error})") from None
    if not isinstance(found, dict) or not all(isinstance(name, str) for name in found.values()):
        raise WeightsError("has a weight_map that does not map names to names")
    for name in set(found.values()):
        if "/" in name or "\\" in name or not name.endswith(".safetensors") or name.startswith("."):
            raise WeightsError(f"names {shown(name)}, which is not a file of weights in this folder")
    return found


def index_problems(index: Mapping[str, str], files: Mapping[str, Mapping | None]) -> Iterator[str]:
    """Shards that are missing, and tensors that are not where the index says. files: name -> its tensors, None where
    the file is damaged, which is reported elsewhere."""
    for file in sorted(set(index.values()) - set(files)):
        yield f"names {shown(file)}, which is missing"
    lost = [name for name, file in index.items() if files.get(file) is not None and name not in files[file]]
    if lost:
        more = f" and {len(lost) - 1} more" if len(lost) > 1 else ""
        yield f"puts {shown(lost[0])}{more} into {shown(index[lost[0]])}, which has no such tensor"


def shown(name: object) -> str:
    """A name of anybody's for the terminal."""
    text = str(name)
    text = text if text.isprintable() else ascii(text)[1:-1]
    return text if len(text) <= MAX_NAME_CHARS else f"{text[: MAX_NAME_CHARS - 3]}..."
