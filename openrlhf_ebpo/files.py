"""Side files that survive a crash: written to a temporary name, flushed, renamed; and text that a file takes."""

from __future__ import annotations

import errno
import fcntl
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

TEMPORARY = ".tmp"  # a killed process leaves it


@contextmanager
def replace_file(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path in the folder of `path`; on success it is synced and takes the name, otherwise it is
    removed."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}{TEMPORARY}")
    try:
        with name_path_in_errors(path):
            yield temporary
            with open(temporary, "rb") as file:
                os.fsync(file.fileno())
            os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def name_path_in_errors(path: str | Path) -> Iterator[None]:
    """An OSError inside says which file it is about: `write` and `fsync` do not know."""
    try:
        yield
    except OSError as error:
        if error.errno and not error.filename:
            error.filename = str(path)
        raise


def write_text(path: str | Path, text: str) -> None:
    with replace_file(path) as temporary:
        temporary.write_text(text)


def write_json(path: str | Path, value) -> None:
    write_text(path, json.dumps(value, indent=2) + "\n")


def overwrite_json(path: str | Path, value) -> None:
    """Write JSON over the bytes of an existing file, not indented: works on a full disk; a crash meanwhile damages it.

    Raises:
        OSError: the value is longer than the file, or the file cannot be written.
    """
    text = json.dumps(value).encode() + b"\n"
    if len(text) > os.path.getsize(path):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
    with open(path, "r+b") as file:
        file.write(text)
        file.truncate()
        os.fsync(file.fileno())


def whole_characters(text: str) -> str:
    """The text without halves of characters, which JSON may hold, and no file."""
    return text.encode(errors="replace").decode()


def sync_folder(folder: str | Path) -> None:
    """Fsync every file and folder below `folder`."""
    for path in [*Path(folder).rglob("*"), Path(folder)]:
        sync(path)


def sync(path: str | Path) -> None:
    """Wait until the disk has a file, or the names in a folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError:
        if not os.path.isdir(path):  # some network disks cannot
            raise
    finally:
        os.close(descriptor)


def try_lock(file, shared: bool = False) -> bool:
    """Acquire the lock (flock) of an open file; False if another process holds it. The kernel releases it when the file
    is closed in every process that shares it, however they end.

    Raises:
        OSError: the disk has no locks, as some network disks.
    """
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def write_json_lines(path: str | Path, rows: Iterable[dict]) -> None:
    write_text(path, "".join(json.dumps(row) + "\n" for row in rows))


def append_json_line(path: str | Path, value) -> None:
    """Append one object and flush it to disk."""
    with name_path_in_errors(path), open(path, "a") as file:
        file.write(json.dumps(value) + "\n")
        file.flush()
        os.fsync(file.fileno())


def read_json_lines(path: str | Path) -> list[dict]:
    """All complete objects; a last line that is still being written, or was torn by a crash, is left out.

    Not pyarrow.dataset(format="json"): it refuses a torn line and a column of two types, takes text like a date for
    one, and gives every row the columns of all.
    """
    try:
        lines = Path(path).read_text().splitlines(keepends=True)
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in lines if line.endswith("\n") and line.strip()]
