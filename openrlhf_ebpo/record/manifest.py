"""What a complete checkpoint is: a folder whose manifest, written last, lists every file with its size and checksum.

A checkpoint is a folder, its tag, that DeepSpeed fills: one file or more per rank. While it is being saved, manifest.json says
so; when all files are on disk, it lists them. A checkpoint without one does not count: nothing says that its saving had ended.

The checksum is CRC-32. It has to find what disks and copies damage, not what somebody forges, who would write the manifest
anew too. One core reads 2.7 GB/s with it, 1.4 GB/s with SHA-256 where the processor has instructions for that, and under
0.5 GB/s where it has not; beside the fsync that saving waits for anyway it costs next to nothing.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import stat
import zlib
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from openrlhf_ebpo.files import sync, write_json

MANIFEST = "manifest.json"
SCHEMA = 1
REPLACED = ".replaced"  # ends the name of a checkpoint whose tag is being saved again
SIDE_FILES = (".json", ".py")  # DeepSpeed loads without them
SHARD = ".pt"  # ends the name of every file that DeepSpeed loads
TAG = re.compile(rf"(best_)?global_step(\d{{1,12}})({re.escape(REPLACED)})?", re.ASCII)
CRC = re.compile("[0-9a-f]{8}")
LARGEST = 2**26  # bytes of a manifest
THREADS = 8
BLOCK = 2**22
WORTH_A_LINE = 4e9  # bytes whose checking takes seconds
_checked: dict[tuple, str] = {}  # file as it was -> its checksum, so that no file is read twice by a process


class Saved(NamedTuple):
    """One file. elsewhere: it lies on another node's own disk."""

    size: int
    crc32: str
    elsewhere: bool = False


class Manifest(NamedTuple):
    """problem: what is wrong with it itself. prior: `state_hash` of the estimator's state. attempt: which start of the command
    saved it; None by train_sft."""

    complete: bool = False
    files: Mapping[str, Saved] = {}
    attempt: str | None = None
    prior: str | None = None
    problem: str | None = None


# Writing


def begin(checkpoint: Path) -> None:
    """From now on, until `complete`, the folder is no checkpoint."""
    write_json(checkpoint / MANIFEST, {"schema": SCHEMA, "complete": False})


def complete(checkpoint: Path, files: Mapping[str, Saved] | None = None, prior: dict | None = None, **facts) -> None:
    """After all its files are on disk: from now on it counts.

    Args:
        files: what ranks have listed already; all others in the folder are listed now.
        prior: the estimator's state in it.
        facts: more to say, such as `attempt` and `settings`.
    """
    known = dict(files or {})
    rest = (path for path in sorted(checkpoint.rglob("*")) if path.is_file() and path.suffix not in SIDE_FILES)
    known |= listed(checkpoint, [path for path in rest if path.relative_to(checkpoint).as_posix() not in known])
    content = {
        "schema": SCHEMA,
        "complete": True,
        "tag": checkpoint.name,
        "step": step_of(checkpoint.name),
        "saved": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        **facts,
        "prior": state_hash(prior) if prior else None,
        "files": {name: _entry(checkpoint / name, saved) for name, saved in sorted(known.items())},
    }
    write_json(checkpoint / MANIFEST, content)
    for folder in (checkpoint, checkpoint.parent):  # the names too, before an older checkpoint makes room
        sync(folder)


def listed(checkpoint: Path, paths: Iterable[Path]) -> dict[str, Saved]:
    """name -> size and checksum of files in the folder; read in threads."""
    paths = list(paths)
    with _threads(len(paths)) as threads:
        found = list(threads.map(_look, paths))
    return {path.relative_to(checkpoint).as_posix(): saved for path, saved in zip(paths, found, strict=True)}


def state_hash(state: Any) -> str:
    """SHA-256 of an estimator's state, whatever the order of its fields."""
    return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()


def _entry(path: Path, saved: Saved) -> dict:
    here = path.is_file()  # several nodes without a shared disk: every rank writes to its own
    return {"size": saved.size, "crc32": saved.crc32, **({} if here else {"elsewhere": True})}


# Reading


def read(checkpoint: Path) -> Manifest | None:
    """None for a checkpoint that has no manifest."""
    path = checkpoint / MANIFEST
    try:
        found = _object(path)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        return Manifest(problem=f"its {MANIFEST} is damaged ({_short(error)})")
    if found.get("schema") != SCHEMA or type(found.get("complete")) is not bool:
        return Manifest(
            problem=f"its {MANIFEST} is of schema {_short(found.get('schema'))}; this version reads {SCHEMA}"
        )
    if not found["complete"]:
        return Manifest()
    if found.get("tag") != checkpoint.name.removesuffix(REPLACED):
        return Manifest(problem=f"its {MANIFEST} is that of {_short(found.get('tag'))}")
    try:
        files = _files(found.get("files"))
    except ValueError as error:
        return Manifest(problem=f"its {MANIFEST} is damaged ({error})")
    attempt, prior = (each if isinstance(each := found.get(name), str) else None for name in ("attempt", "prior"))
    return Manifest(True, files, attempt, prior)


def settings(checkpoint: Path) -> dict:
    """What the manifest says of the settings that the checkpoint was saved with; {} where it says nothing."""
    with contextlib.suppress(OSError, ValueError, RecursionError):
        found = _object(checkpoint / MANIFEST).get("settings")
        return found if isinstance(found, dict) else {}
    return {}


def _object(path: Path) -> dict:
    with _opened(path) as file:
        text = file.read(LARGEST + 1)
    if len(text) > LARGEST:
        raise ValueError(f"more than {LARGEST >> 20} MiB")
    found = json.loads(text)
    if not isinstance(found, dict):
        raise ValueError("no object")
    return found


def _files(found: Any) -> dict[str, Saved]:
    """The manifest may have been pulled from somewhere: no name leads out of the folder."""
    if not isinstance(found, dict) or not found:
        raise ValueError("it lists no file")
    return {_safe(name): _saved(name, entry) for name, entry in found.items()}


def _safe(name: str) -> str:
    parts = PurePosixPath(name).parts
    plain = len(name) < 1000 and name.isprintable() and parts and "/".join(parts) == name
    if not plain or name.startswith("/") or ".." in parts:
        raise ValueError(f"it lists {_short(name)}, which is no file in it")
    return name


def _saved(name: str, entry: Any) -> Saved:
    size, crc = (entry.get("size"), entry.get("crc32")) if isinstance(entry, dict) else (None, None)
    if type(size) is not int or size < 0 or not (isinstance(crc, str) and CRC.fullmatch(crc)):
        raise ValueError(f"it lacks the size or the checksum of {_short(name)}")
    return Saved(size, crc, entry.get("elsewhere") is True)


# Checking


def damage(checkpoint: Path, contents: bool = False) -> str | None:
    """Why a checkpoint cannot be loaded, None where nothing speaks against it.

    Args:
        contents: compare checksums too. Otherwise only those that this process knows already.
    """
    if not checkpoint.is_dir():
        return "the folder is missing"
    if is_unfinished(checkpoint):
        return "its saving was interrupted"
    found = read(checkpoint)
    if found is None:
        return f"it has no {MANIFEST}: it was saved by OpenRLHF alone, or copied in part"
    if found.problem:
        return found.problem
    here = {
        name: saved for name, saved in found.files.items() if not (saved.elsewhere and not (checkpoint / name).exists())
    }
    wrong_sizes = (_wrong_size(checkpoint / name, saved.size) for name, saved in here.items())
    try:
        wrong = next(filter(None, wrong_sizes), None) or _unlisted_shard(checkpoint, found.files)
        return wrong or _wrong_contents(checkpoint, here, contents)
    except OSError as error:  # the critic's process or the policy's deletes it at this moment
        return f"it cannot be read ({_short(error)})"


def is_unfinished(checkpoint: Path) -> bool:
    """Whether it never was whole: a save that was interrupted."""
    found = read(checkpoint)
    if found is None:
        return not any(checkpoint.glob("*.pt"))
    return not found.complete and not found.problem


def attempt_of(checkpoint: Path) -> str | None:
    found = read(checkpoint)
    return found.attempt if found else None


def step_of(tag: str) -> int | None:
    match = TAG.fullmatch(tag)
    return int(match[2]) if match else None


def _wrong_size(path: Path, saved: int) -> str | None:
    try:
        status = path.stat()
    except (OSError, ValueError):
        return f"{_short(path.name)} is missing"
    if not stat.S_ISREG(status.st_mode):
        return f"{_short(path.name)} is no file"
    return (
        None
        if status.st_size == saved
        else f"{_short(path.name)} has {status.st_size} bytes, and {_short(saved)} were saved"
    )


def _unlisted_shard(checkpoint: Path, files: Mapping[str, Saved]) -> str | None:
    """DeepSpeed would load it, and nothing says what was saved."""
    names = (path.relative_to(checkpoint).as_posix() for path in sorted(checkpoint.rglob(f"*{SHARD}")))
    name = next((name for name in names if name not in files), None)
    return f"{_short(name)} is not listed in its {MANIFEST}: its checksum is not known" if name else None


def _wrong_contents(checkpoint: Path, files: Mapping[str, Saved], contents: bool) -> str | None:
    """The first file, by name, whose content is another."""
    named = {checkpoint / name: saved.crc32 for name, saved in files.items()}
    unread = [path for path in named if _signature(path) not in _checked] if contents else []
    size = sum(path.stat().st_size for path in unread)
    if size > WORTH_A_LINE:
        print(f"checking {size / 1e9:,.0f} GB of the checkpoint {checkpoint}", flush=True)
    with _threads(len(unread)) as threads:
        problems = list(threads.map(_unreadable, sorted(unread, key=lambda path: -path.stat().st_size)))
    if problem := next(filter(None, problems), None):
        return problem
    wrong = (path for path, crc in named.items() if _checked.get(_signature(path), crc) != crc)
    return next(
        (f"{_short(path.name)} has other contents than were saved (its checksum differs)" for path in wrong), None
    )


def _unreadable(path: Path) -> str | None:
    try:
        _look(path)
    except OSError as error:
        return f"{_short(path.name)} cannot be read ({_short(error)})"
    return None


def _look(path: Path) -> Saved:
    """Size and checksum of a file; of one that this process has read already, from memory."""
    signature = _signature(path)
    if signature not in _checked:
        _checked[signature] = _crc32(path)
    return Saved(signature[-1], _checked[signature])


def _signature(path: Path) -> tuple:
    status = path.stat()
    return str(path), status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size


def _crc32(path: Path) -> str:
    buffer, value = memoryview(bytearray(BLOCK)), 0
    with _opened(path) as file:
        while count := file.readinto(buffer):
            value = zlib.crc32(buffer[:count], value)
    return f"{value:08x}"


def _opened(path: Path):
    return open(
        path, "rb", buffering=0, opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)
    )  # no FIFO waits


@contextlib.contextmanager
def _threads(count: int) -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(max(1, min(THREADS, count, os.cpu_count() or 1))) as threads:
        yield threads


def _short(value: Any) -> str:
    """For a message: it may have been pulled from somewhere."""
    return ascii(value if isinstance(value, str) else str(value)[:300])[1:-1][:120]
