"""Files of this machine that are to be published: regular ones, inside the folder that was named."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import BinaryIO

from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.hub_client import HubError

MAX_NAMES = 10  # in a message


@dataclass(frozen=True)
class LocalFile:
    """A regular file, as `local_file` found it. size: bytes. modified: ns. cleared: it was scanned for secrets, or the
    user says that it holds none. places: where something was taken out of it."""

    path: Path
    size: int
    modified: int
    cleared: bool = field(default=False, compare=False)
    places: tuple[str, ...] = ()

    def open(self) -> BinaryIO:
        """Open the file.

        Raises:
            HubError: it is gone, or has changed since it was listed.
        """
        try:
            file = open(self.path, "rb")  # noqa: SIM115  the caller's
        except OSError as error:
            raise HubError(f"{self.path} is gone ({error})") from error
        status = os.fstat(file.fileno())
        if (status.st_size, status.st_mtime_ns) != (self.size, self.modified):
            file.close()
            raise HubError(f"{self.path} has changed while it was being pushed")
        return file

    def read_bytes(self) -> bytes:
        with self.open() as file:
            return file.read()


def opened(content: LocalFile | bytes) -> BinaryIO:
    return io.BytesIO(content) if isinstance(content, bytes) else content.open()


def local_file(path: str | Path, root: str | Path | None = None) -> LocalFile:
    """The file at `path`; links may lead to it within `root` (its folder if None).

    Raises:
        UsageError: it, or a folder on the way, is a link out of `root`.
        FileNotFoundError: it does not exist.
    """
    path = Path(path)
    root = Path(os.path.realpath(root or path.parent))
    real = Path(os.path.realpath(path))
    if not real.is_relative_to(root):
        raise UsageError(
            f"{path} leads to {real}, outside of {root}, through a link, and is not published: put the file "
            f"itself there, "
            "or take the link away"
        )
    status = real.stat()
    return LocalFile(real, status.st_size, status.st_mtime_ns)


def named(path: str | PurePath, patterns: Iterable[str]) -> bool:
    """True if a path matches one of the patterns part by part; "*" matches no slash and no hidden file."""
    parts = PurePath(path).parts
    same = (PurePath(pattern) for pattern in patterns if len(PurePath(pattern).parts) == len(parts))
    return not any(part.startswith(".") for part in parts) and any(PurePath(path).match(str(p)) for p in same)


def files_below(root: Path, skip: Callable[[PurePath], bool] = lambda path: False) -> list[PurePath]:
    """Paths below `root`, relative to it, of files and links; links to folders are not followed."""
    found = []
    for folder, folders, names in os.walk(root):
        here = Path(folder).relative_to(root)
        links = [name for name in folders if os.path.islink(os.path.join(folder, name))]
        folders[:] = sorted(name for name in folders if not skip(here / name))
        found += [here / name for name in (*names, *links) if not skip(here / name)]
    return sorted(found)


def print_left_out(paths: Iterable[str | PurePath], what: str) -> None:
    """Name what lies in a folder that is pushed and does not go."""
    if names := list(map(str, paths)):
        print(f"left out, not being {what}: {escape_names(names)}", flush=True)


def escape_names(names: Sequence[str], most: int = MAX_NAMES) -> str:
    """Join untrusted names, so that no escape sequence reaches the terminal."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(name if name.isprintable() else repr(name) for name in names[:most]) + more
