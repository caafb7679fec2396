"""Write and check the manifest of a checkpoint, which is written last and lists the files that DeepSpeed loads.

A checkpoint is a folder, its tag, that DeepSpeed fills: one file or more per rank. While it is saved or deleted,
manifest.json says "complete": false; when all files are on disk, it lists those that are loaded, with size and
checksum. A folder without a manifest does not count: nothing says that its saving had ended.

The checksum is CRC-32. It has to find what disks and copies damage, not a forgery, whose author would write the
manifest too. One core reads 2.7 GB/s with it, 1.4 GB/s with SHA-256 where the processor has instructions for that, and
under 0.5 GB/s where it has not; next to the fsync that saving waits for it costs almost nothing.
"""

from __future__ import annotations

import hashlib
import json
import re
import zlib
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from openrlhf_ebpo.files import sync, write_json

MANIFEST = "manifest.json"
SCHEMA = 1
SIDE_FILES = (".json", ".py")  # DeepSpeed loads without them
TAG = re.compile(r"(best_)?global_step(\d{1,12})", re.ASCII)
CRC = re.compile("[0-9a-f]{8}")
THREADS = 8
BLOCK_BYTES = 2**22
MIN_BYTES_ANNOUNCED = 4e9  # checking them takes seconds


class SavedFile(NamedTuple):
    """One file. elsewhere: it lies on another node's own disk."""

    size: int
    crc32: str
    elsewhere: bool = False


class Manifest(NamedTuple):
    """problem: why it cannot be used. attempt: which start of the command saved the checkpoint; None by train_sft.
    prior: `state_hash` of the estimator's state. settings: of the optimizer, by the flags' names. data: number and hash
    of the rows that were trained on (train/trained_rows.py). run: the `id` of run.json."""

    complete: bool = False
    files: Mapping[str, SavedFile] = {}
    attempt: str | None = None
    prior: str | None = None
    settings: Mapping[str, Any] = {}
    data: Mapping[str, Any] = {}
    run: str | None = None
    problem: str | None = None


def step_of(tag: str) -> int | None:
    match = TAG.fullmatch(tag)
    return int(match[2]) if match else None


def state_hash(state: Any) -> str:
    """Return the SHA-256 of an estimator's state, whatever the order of its fields."""
    return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()


# Writing


def begin(checkpoint: Path) -> None:
    """Mark the folder as incomplete, until `complete`."""
    write_json(checkpoint / MANIFEST, {"schema": SCHEMA, "complete": False})


def complete(
    checkpoint: Path, files: Mapping[str, SavedFile] | None = None, prior: dict | None = None, **facts
) -> None:
    """Write the manifest, after all files are on disk: from now on the checkpoint counts.

    Args:
        files: what ranks have listed already; all others in the folder are listed now.
        prior: the estimator's state in it.
        facts: more fields: `attempt`, `settings`, `data`, `run`.
    """
    known = dict(files or {})
    rest = (path for path in sorted(checkpoint.rglob("*")) if path.is_file() and path.suffix not in SIDE_FILES)
    known |= list_files(checkpoint, [path for path in rest if path.relative_to(checkpoint).as_posix() not in known])
    entries = {}
    for name, saved in sorted(known.items()):
        here = (checkpoint / name).is_file()  # several nodes without a shared disk: every rank writes to its own
        entries[name] = {"size": saved.size, "crc32": saved.crc32, **({} if here else {"elsewhere": True})}
    content = {
        "schema": SCHEMA,
        "complete": True,
        "tag": checkpoint.name,
        "step": step_of(checkpoint.name),
        "saved": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        **facts,
        "prior": state_hash(prior) if prior else None,
        "files": entries,
    }
    write_json(checkpoint / MANIFEST, content)
    for folder in (checkpoint, checkpoint.parent):  # the names too, before an older checkpoint makes room
        sync(folder)


def list_files(checkpoint: Path, paths: Iterable[Path]) -> dict[str, SavedFile]:
    """Return name -> size and checksum of files in the folder, read in threads."""
    paths = list(paths)
    with ThreadPoolExecutor(THREADS) as threads:
        checksums = list(threads.map(_crc32, paths))
    return {
        path.relative_to(checkpoint).as_posix(): SavedFile(path.stat().st_size, crc)
        for path, crc in zip(paths, checksums, strict=True)
    }


# Reading


def read(checkpoint: Path) -> Manifest | None:
    """Read a manifest; None without one. It may have been pulled from anywhere: no name leads out of the folder."""
    try:
        return _parse(json.loads((checkpoint / MANIFEST).read_bytes()), checkpoint.name)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        return Manifest(problem=f"its {MANIFEST} is damaged ({_shorten(error)})")


def _parse(found: Any, tag: str) -> Manifest:
    if not isinstance(found, dict):
        raise ValueError("not an object")
    if found.get("schema") != SCHEMA:
        raise ValueError(f"schema {_shorten(found.get('schema'))}; this version reads {SCHEMA}")
    if type(found.get("complete")) is not bool:
        raise ValueError(f"complete is {_shorten(repr(found.get('complete')))}, and not true or false")
    if not found["complete"]:
        return Manifest()
    if found.get("tag") != tag:
        raise ValueError(f"it is that of {_shorten(found.get('tag'))}")
    files, settings = found.get("files"), found.get("settings")
    if not isinstance(files, dict) or not files:
        raise ValueError("it lists no file")
    attempt, prior, run = (
        each if isinstance(each := found.get(name), str) else None for name in ("attempt", "prior", "run")
    )
    settings = settings if isinstance(settings, dict) else {}
    data = data if isinstance(data := found.get("data"), dict) and type(data.get("rows")) is int else {}
    saved = {name: _saved(name, entry) for name, entry in files.items()}
    return Manifest(True, saved, attempt, prior, settings, data, run)


def _saved(name: str, entry: Any) -> SavedFile:
    path = PurePosixPath(name)
    if not name.isprintable() or str(path) != name or not path.name or path.is_absolute() or ".." in path.parts:
        raise ValueError(f"it lists {_shorten(name)}, which is not a file in it")
    size, crc = (entry.get("size"), entry.get("crc32")) if isinstance(entry, dict) else (None, None)
    if type(size) is not int or size < 0 or not (isinstance(crc, str) and CRC.fullmatch(crc)):
        raise ValueError(f"it lacks the size or the checksum of {_shorten(name)}")
    return SavedFile(size, crc, entry.get("elsewhere") is True)


def attempt_of(checkpoint: Path) -> str | None:
    found = read(checkpoint)
    return found.attempt if found else None


# Checking


def is_unfinished(checkpoint: Path) -> bool:
    """Return True for a save or a deletion that was interrupted."""
    found = read(checkpoint)
    if found is None:
        return not any(checkpoint.glob("*.pt"))
    return not found.complete and not found.problem


def damage(checkpoint: Path, contents: bool = False) -> str | None:
    """Describe the fault for which a checkpoint cannot be loaded; None if sizes and, with `contents`, checksums are
    those that were saved."""
    if not checkpoint.is_dir():
        return "the folder is missing"
    if is_unfinished(checkpoint):
        return "its saving was interrupted"
    found = read(checkpoint)
    if found is None:
        return f"it has no {MANIFEST}: it was saved by OpenRLHF alone, or copied in part"
    if found.problem:
        return found.problem
    try:
        return _compare(checkpoint, found.files, contents)
    except OSError as error:  # the critic's process or the policy's deletes it at this moment, or the disk is damaged
        return f"it cannot be read ({_shorten(error)})"


def _compare(checkpoint: Path, files: Mapping[str, SavedFile], contents: bool) -> str | None:
    """Return the first difference, by name of the file."""
    here = {
        checkpoint / name: saved for name, saved in files.items() if not saved.elsewhere or (checkpoint / name).exists()
    }
    for path, saved in here.items():
        if not path.is_file():
            return f"{_shorten(path.name)} is {'not a file' if path.exists() else 'missing'}"
        if (size := path.stat().st_size) != saved.size:
            return f"{_shorten(path.name)} has {size} bytes, and {_shorten(saved.size)} were saved"
    shards = {path.relative_to(checkpoint).as_posix() for path in checkpoint.rglob("*.pt")}  # DeepSpeed loads them
    if unlisted := min(shards - files.keys(), default=None):
        return f"{_shorten(unlisted)} is not listed in its {MANIFEST}: its checksum is not known"
    if not contents:
        return None
    size = sum(saved.size for saved in here.values())
    if size > MIN_BYTES_ANNOUNCED:
        print(f"checking {size / 1e9:,.0f} GB of the checkpoint {checkpoint}", flush=True)
    with ThreadPoolExecutor(THREADS) as threads:
        checksums = list(threads.map(_crc32, here))
    wrong_names = (path.name for path, crc in zip(here, checksums, strict=True) if crc != here[path].crc32)
    return next(
        (f"{_shorten(name)} has other contents than were saved (its checksum differs)" for name in wrong_names), None
    )


def _crc32(path: Path) -> str:
    buffer, value = memoryview(bytearray(BLOCK_BYTES)), 0
    with open(path, "rb", buffering=0) as file:
        while count := file.readinto(buffer):
            value = zlib.crc32(buffer[:count], value)
    return f"{value:08x}"


def _shorten(value: Any) -> str:
    """Shorten untrusted text for a message."""
    return ascii(value if isinstance(value, str) else str(value)[:300])[1:-1][:120]
