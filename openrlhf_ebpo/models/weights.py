"""Weights in safetensors as their headers tell: nothing is loaded, and of each file the header alone is read.

A file is 8 bytes (the header's length), the header (JSON: tensor -> dtype, shape, begin and end), and the tensors without
a gap. So the header says how long the file is; one that was cut, padded or emptied does not fit. What the numbers in a
tensor are, it does not say.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

LONGEST_HEADER = 32 << 20  # bytes; 200,000 tensors need 25 MB
LONGEST_INDEX = 64 << 20
MOST_NAMES = 500_000  # of tensors in an index; the largest published models have 140,000
BITS = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 16),
    **dict.fromkeys(("U32", "I32", "F32"), 32),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 64),
    **{"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6},
}
MAX = 1 << 63


class WeightsError(ValueError):
    """A file of weights is damaged; says how, without its name."""


def read_header(file: BinaryIO, size: int) -> bytes:
    """The JSON at the start of a file of `size` bytes.

    Raises:
        WeightsError: it says that it is longer than the file, or than any model's.
    """
    start = file.read(8)
    length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
    if not 2 <= length <= size - 8:
        raise WeightsError(f"is no safetensors file, or cut off: {size} bytes, and a header of {length} is announced")
    if length > LONGEST_HEADER:
        raise WeightsError(f"announces a header of {length} bytes; no model has one above {LONGEST_HEADER}")
    return file.read(length)


def tensors_of(path: Path) -> dict[str, dict]:
    """Tensor -> dtype, shape and offsets of a file whose size is what they say.

    Raises:
        WeightsError: it is not. OSError: it cannot be read.
    """
    size = path.stat().st_size
    with open(path, "rb") as file:
        text = read_header(file, size)
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise WeightsError(f"has a header that is no JSON ({error})") from None
    if not isinstance(found, dict):
        raise WeightsError("has a header that is no JSON object")
    found.pop("__metadata__", None)
    _check_layout(found, size - 8 - len(text))
    return found


def _check_layout(tensors: Mapping[str, object], room: int) -> None:
    """That the tensors fill `room` bytes, one after the other."""
    end = 0
    for begin, stop, name in sorted(_extent(name, tensor) for name, tensor in tensors.items()):
        if begin != end:
            raise WeightsError(
                f"has a header in which {shown(name)} begins at {begin}, and the one before ends at {end}"
            )
        end = stop
    if end != room:
        what = "cut off" if end > room else "padded"
        raise WeightsError(f"is {what}: it has {room} bytes of weights, and its header lists {end}")


def _extent(name: str, tensor: object) -> tuple[int, int, str]:
    """(begin, end, name) of a tensor, as long as its type and shape say."""
    try:
        (begin, end), shape, dtype = tensor["data_offsets"], tensor["shape"], tensor["dtype"]
        numbers = [begin, end, *shape]
    except (KeyError, TypeError, ValueError):
        raise WeightsError(f"has a header in which {shown(name)} is no tensor") from None
    if not all(type(number) is int and 0 <= number < MAX for number in numbers) or begin > end:
        raise WeightsError(f"has a header in which {shown(name)} has no sane place")
    bits = BITS.get(dtype) if isinstance(dtype, str) else None
    if bits and bits * math.prod(shape) != 8 * (end - begin):  # a type that is newer than this list is not measured
        raise WeightsError(f"has a header in which {shown(name)} is not as long as its shape says")
    return begin, end, name


def read_index(path: Path) -> dict[str, str]:
    """Tensor -> name of the file that has it.

    Raises:
        WeightsError: it is no index, too large for one, or names a file elsewhere. OSError: it cannot be read.
    """
    if (size := path.stat().st_size) > LONGEST_INDEX:
        raise WeightsError(f"has {size} bytes; no model's index is above {LONGEST_INDEX}")
    try:
        found = json.loads(path.read_bytes())["weight_map"]
    except (ValueError, RecursionError, KeyError, TypeError) as error:
        raise WeightsError(f"cannot be read as an index ({type(error).__name__}: {error})") from None
    if not isinstance(found, dict) or not all(isinstance(name, str) for name in found.values()):
        raise WeightsError("has a weight_map that is no map of names")
    if len(found) > MOST_NAMES:
        raise WeightsError(f"lists {len(found)} tensors; no model has more than {MOST_NAMES}")
    for name in set(found.values()):
        if "/" in name or "\\" in name or not name.endswith(".safetensors") or name.startswith("."):
            raise WeightsError(f"names {shown(name)}, which is no file of weights in this folder")
    return found


def index_problems(index: Mapping[str, str], files: Mapping[str, Mapping | None]) -> Iterator[str]:
    """Shards that are missing, and tensors that are not where the index says. files: name -> its tensors, None where
    the file is damaged, which is told elsewhere."""
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
    return text if len(text) <= 100 else f"{text[:97]}..."
