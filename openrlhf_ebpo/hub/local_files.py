"""Files of this machine that are to be published: regular ones, inside the folder that was named, and at the upload
still those that were looked at."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import BinaryIO

from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.models.hub_client import HubError

SHOWN = 10  # names of files that are left out


@dataclass(frozen=True)
class LocalFile:
    """A file as `local_file` found it. Nothing but `open` reads it, so nothing that has taken its place since is read."""

    path: Path
    device: int
    inode: int
    size: int
    modified: int  # ns

    def open(self) -> BinaryIO:
        """Open the file, if it is still the one that was listed.

        Raises:
            HubError: it is gone, was replaced or has changed.
        """
        try:
            file = os.fdopen(os.open(self.path, _FLAGS), "rb")
        except OSError as error:
            raise HubError(f"{self.path} is gone or was replaced while it was being pushed ({error})") from error
        if _state(os.fstat(file.fileno())) != (self.device, self.inode, self.size, self.modified):
            file.close()
            raise HubError(f"{self.path} has changed while it was being pushed")
        return file

    def read_bytes(self) -> bytes:
        with self.open() as file:
            return file.read()


_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # a FIFO must not make anybody wait


def local_file(path: str | Path, root: str | Path | None = None) -> LocalFile:
    """The file at `path`, to which links may lead that do not leave `root`, its folder if None.

    Raises:
        UsageError: it, or a folder on the way, is a link to somewhere else; or it is no regular file.
        FileNotFoundError: it is not there.
    """
    path = Path(path)
    root = Path(os.path.realpath(root or path.parent))
    real = Path(os.path.realpath(path))
    _check_inside(path, real, root)
    if not stat.S_ISREG(os.lstat(real).st_mode):
        raise UsageError(f"{path} is not a regular file, and is not published: take it away")
    descriptor = os.open(real, _FLAGS)
    try:
        status = os.fstat(descriptor)
        opened = Path(f"/proc/self/fd/{descriptor}")  # where it really led: folders may have become links since
        _check_inside(path, Path(os.readlink(opened)) if opened.is_symlink() else real, root)
        return LocalFile(real, *_state(status))
    finally:
        os.close(descriptor)


def _check_inside(path: Path, real: Path, root: Path) -> None:
    if not real.is_relative_to(root):
        raise UsageError(
            f"{path} leads to {real}, outside of {root}, through a link, and is not published: put the file itself there, "
            "or take the link away"
        )


def _state(status: os.stat_result) -> tuple[int, int, int, int]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def named(path: str | PurePath, patterns: Iterable[str]) -> bool:
    """Whether a path matches one of the patterns part by part: "*" stands for no slash, nor for a hidden file."""
    parts = PurePath(path).parts
    same = (PurePath(pattern) for pattern in patterns if len(PurePath(pattern).parts) == len(parts))
    return not any(part.startswith(".") for part in parts) and any(PurePath(path).match(str(p)) for p in same)


def files_below(root: Path, skip: Callable[[PurePath], bool] = lambda path: False) -> list[PurePath]:
    """Paths below `root`, relative to it, of all that is no folder, links among them; links to folders are not followed."""
    found = []
    for folder, folders, names in os.walk(root):
        here = Path(folder).relative_to(root)
        links = [name for name in folders if os.path.islink(os.path.join(folder, name))]
        folders[:] = sorted(name for name in folders if not skip(here / name))
        found += [here / name for name in (*names, *links) if not skip(here / name)]
    return sorted(found)


def say_left_out(paths: Iterable[str | PurePath], what: str) -> None:
    """Name what lies in a folder that is pushed and does not go."""
    names = [name if (name := str(path)).isprintable() else repr(name) for path in paths]
    if names:
        more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
        print(f"left out, not being {what}: {', '.join(names[:SHOWN])}{more}", flush=True)
