"""Content to be published: bytes, or files of this machine; and the filter that all of it passes."""

from __future__ import annotations

import functools
import hashlib
import io
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path, PurePath
from typing import BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.hub_client import HubError
from openrlhf_ebpo.model_folder import WEIGHT_PICKLES
from openrlhf_ebpo.redact import find_private, own_homes, private_pattern, redacted_text, without_homes

WEIGHTS, TABLE = ".safetensors", ".parquet"
NOT_SCANNED = (".png", ".woff2", ".gz")  # our pictures, and public fonts and scripts of the Space
PICKLES = (*WEIGHT_PICKLES, ".joblib")
ESCAPE = re.compile(rb'\\(?:(["\\/bfnrt])|u([0-9A-Fa-f]{4}))')
MAX_HEADER_BYTES = 100_000_000  # as safetensors itself
FILES_AT_ONCE = 100  # that are scanned together
MAX_NAMES = 10  # in a message


# Files of this machine


@dataclass(frozen=True)
class LocalFile:
    """A regular file, as `local_file` found it. size: bytes. modified: ns."""

    path: Path
    size: int
    modified: int

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


Content = LocalFile | bytes


def opened(content: Content) -> BinaryIO:
    return io.BytesIO(content) if isinstance(content, bytes) else content.open()


def read_bytes(content: Content) -> bytes:
    with opened(content) as file:
        return file.read()


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
            f"{path} leads to {real}, outside of {root}, through a link, and is not published: put the file itself "
            "there, or take the link away"
        )
    status = real.stat()
    return LocalFile(real, status.st_size, status.st_mtime_ns)


def named(path: str | PurePath, patterns: Iterable[str]) -> bool:
    """True if a path matches one of the patterns part by part; "*" matches no slash and no hidden file."""
    parts = PurePath(path).parts
    same = (pattern for pattern in patterns if len(PurePath(pattern).parts) == len(parts))
    return not any(part.startswith(".") for part in parts) and any(PurePath(path).match(pattern) for pattern in same)


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


# The filter


class Publishable(Mapping[str, Content]):
    """Files by their path in a repo that may leave this machine. Making one is the filter, and nothing else is sent.

    Scanned: paths, headers of weights, texts in tables, and all of every other file. Not scanned: the numbers of
    weights, NOT_SCANNED, and files that the user calls `not_secret`.

    Args:
        parts: later ones replace files of earlier ones; those that are Publishable have been scanned.

    Raises:
        UsageError: a pickle, or a secret or this user's home folder in a file or its name; names the file, never what
            was found.
    """

    def __init__(self, *parts: Mapping[str, Content], not_secret: Collection[str] = ()):
        self._files: dict[str, Content] = {}
        for part in parts:
            self._files.update(part)
            if isinstance(part, Publishable):
                continue
            for path in part:
                if (public := without_homes(redacted_text(f"/{path}"))) != f"/{path}":
                    raise UsageError(f"{public[1:]}: the name of this file holds what looks like a secret; rename it")
                if PurePath(path).suffix in PICKLES:
                    raise UsageError(f"{path} is a pickle, which can run code: only safetensors are pushed")
            _check_contents([each for each in part.items() if each[0] not in not_secret])

    def __getitem__(self, path: str) -> Content:
        return self._files[path]

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)


def _check_contents(files: Sequence[tuple[str, Content]]) -> None:
    """Scan the texts of many files at once: RE2 takes longer to read its pattern than most files. Placeholders fit the
    pattern too, which `find_private` tells apart."""
    homes, remaining = own_homes(), iter(files)
    while some := list(islice(remaining, FILES_AT_ONCE)):
        texts = [(path, content, text) for path, content in some for text in _texts_of(path, content)]
        column = pa.array([text for _, _, text in texts], pa.large_binary())
        mask = pc.match_substring_regex(column, private_pattern(homes)).to_pylist()
        for path, content, encoded in (each for each, found in zip(texts, mask, strict=True) if found):
            text = encoded.decode(errors="replace")
            if (start := find_private(text, homes)) is None:
                continue
            place = content.path if isinstance(content, LocalFile) else path
            line = "" if path.endswith(TABLE) else f", line {1 + text.count(chr(10), 0, start)},"
            raise UsageError(
                f"{place}{line} holds what looks like a secret (a token, a private key, or a password in an address) "
                "or names your home folder, which all who can read the repo would read: take it out, and push again. "
                f"If it is not a secret, say so: --not_secret {path}"
            )


def _texts_of(path: str, content: Content) -> list[bytes]:
    """The texts to scan, as their reader will see them: JSON escapes replaced; of a table the schema with its notes,
    and all values that are not numbers."""
    kind = PurePath(path).suffix
    if kind in NOT_SCANNED:
        return []
    if kind != TABLE:
        text = header_of(content) if kind == WEIGHTS else read_bytes(content)
        return [ESCAPE.sub(_unescape, text) if kind in (".json", ".jsonl", WEIGHTS) else text]
    try:
        with opened(content) as source:
            table = pq.read_table(source)
    except (pa.ArrowException, OSError) as error:
        raise UsageError(f"{path} cannot be read as Parquet: {error}; move it away, or repair it") from error
    columns = [column for column in table.columns if not pa.types.is_primitive(column.type)]
    values = (str(value) for column in columns for value in column.to_pylist() if value is not None)
    return [text.encode(errors="replace") for text in (table.schema.to_string(truncate_metadata=False), *values)]


def _unescape(match: re.Match) -> bytes:
    """A sign that JSON escapes. A new line becomes a carriage return, which leaves the number of every line as it
    is."""
    if code := match[2]:
        return chr(int(code, 16)).encode(errors="replace").replace(b"\n", b"\r")
    return {b"n": b"\r", b"t": b"\t", b"r": b"\r", b"b": b" ", b"f": b" "}.get(match[1], match[1])


def header_of(content: Content) -> bytes:
    """The JSON at the start of a safetensors file, after 8 bytes with its length; {} if the file is shorter."""
    with opened(content) as file:
        length = int.from_bytes(file.read(8), "little")
        return (file.read(length) if length <= MAX_HEADER_BYTES else b"") or b"{}"


# Sizes and hashes


def size(content: Content) -> int:
    return len(content) if isinstance(content, bytes) else content.size


@functools.lru_cache(maxsize=4096)
def digest(content: Content, git: bool = False) -> str:
    """SHA-256; with `git` the SHA-1 by which git names a file."""
    found = hashlib.sha1(b"blob %d\0" % size(content)) if git else hashlib.sha256()
    with opened(content) as file:
        while block := file.read(1 << 20):
            found.update(block)
    return found.hexdigest()


def matches(content: Content, remote) -> bool:
    """True if a local file is what the listing's RepoFile says: sha256 for LFS files, the git hash otherwise."""
    wanted = remote.lfs.sha256 if remote.lfs else remote.blob_id
    return remote.size == size(content) and digest(content, git=not remote.lfs) == wanted
