"""Content to be published: bytes, or files of this machine; and the filter that all of it passes."""

from __future__ import annotations

import codecs
import functools
import gzip
import hashlib
import io
import os
import re
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath
from typing import BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.hub_client import HubError
from openrlhf_ebpo.redact import REDACTED, find_private, own_homes, private_pattern, redacted_text, without_homes

TEXT = (".json", ".jsonl", ".md", ".txt", ".jinja", ".py", ".js", ".css", ".html", ".yaml", ".toml", ".svg", "")
TOKENIZER = (".model", ".spm", ".bpe", ".tiktoken")  # scanned for secrets too, though some are binary
WEIGHTS, TABLE, PICTURE, PACKED = ".safetensors", ".parquet", ".png", ".gz"
KINDS = (*TEXT, *TOKENIZER, WEIGHTS, TABLE, PICTURE)
PICKLES = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".joblib")
VENDORED = re.compile(r"(.*/)?static/vendor/.+(\.woff2|\.js\.gz)")  # of the Space's package, and nowhere else
NO_SECRET = "If it is not a secret, say so: hub push --repo … --not_secret FILE"
EPOCH = (1980, 1, 1, 0, 0, 0)
ESCAPE = re.compile(rb'\\(?:(["\\/bfnrt])|u([0-9A-Fa-f]{4}))')
MAX_NESTED = 3  # JSON in strings of JSON
MAX_HEADER_BYTES = 100_000_000  # as safetensors itself
MAX_NAMES = 10  # in a message


# Files of this machine


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

    Scanned: paths, texts, the tokenizer's files, headers of weights, texts in tables. Not scanned: the numbers of
    weights, pictures (we draw them), the Space's fonts. A local file is scanned once.

    Raises:
        UsageError: a kind of file that is never published, or a secret or this user's home folder in one; names the
            file, never what was found.
    """

    def __init__(self, files: Mapping[str, Content]):
        for path, content in files.items():
            if not (isinstance(content, PublishableZip) and path.endswith(".zip")):
                _check_path(path)
        _check_contents({path: content for path, content in files.items() if not getattr(content, "cleared", False)})
        self._files = {
            path: replace(content, cleared=True) if isinstance(content, LocalFile) else content
            for path, content in files.items()
        }

    def with_manifest(self, name: str, manifest: bytes, kept: Iterable[str]) -> Publishable:
        """These files without those that stay as they are on the Hub, and with a list of their names and hashes."""
        made = Publishable({})
        made._files = {path: content for path, content in self._files.items() if path not in kept} | {name: manifest}
        return made

    def __getitem__(self, path: str) -> Content:
        return self._files[path]

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)


class PublishableZip(bytes):
    """A zip archive of files that passed the filter; the same files make the same bytes."""

    cleared = True

    @classmethod
    def of(cls, files: Mapping[str, Content]) -> PublishableZip:
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
            for path, content in sorted(Publishable(files).items()):
                archive.writestr(zipfile.ZipInfo(path, EPOCH), read_bytes(content))
        return cls(packed.getvalue())


def _check_path(path: str) -> None:
    kind = _kind(path)
    if redacted_text(path) != path or without_homes(f"/{path}") != f"/{path}":
        public_path = without_homes(redacted_text(path))
        raise UsageError(f"{public_path}: the name of this file holds what looks like a secret; rename it")
    if kind in PICKLES:
        raise UsageError(f"{path} is a pickle, which can run code where it is loaded: only safetensors are pushed")
    hidden = any(part.startswith(".") for part in path.split("/"))
    if (kind not in KINDS and not VENDORED.fullmatch(path)) or hidden or path.startswith("/"):
        raise UsageError(f"{ascii(path)[1:-1]} is an unsupported file type (`hf upload` takes any file)")


def _kind(path: str) -> str:
    name = PurePath(path).name
    if name in ("LICENSE", "NOTICE"):
        return ""
    return ".model" if name.startswith("tokenizer.model.v") else PurePath(name).suffix


def _check_contents(files: Mapping[str, Content]) -> None:
    """Scan all texts at once: RE2 takes longer to read its pattern than most files."""
    texts = {path: _text_of(path, content) for path, content in files.items()}
    mask = suspicious(pa.array(texts.values(), pa.large_binary())).to_pylist()
    for path, found in zip(texts, mask, strict=True):
        text = texts[path].decode(errors="replace") if found else ""
        if (start := find_private(text, own_homes())) is not None:
            place = files[path].path if isinstance(files[path], LocalFile) else path
            raise UsageError(
                f"{place}, line {1 + text.count(chr(10), 0, start)}, holds what looks like a secret (a token, a "
                "private key, or a password in an address) or names your home folder, which all who can read the repo "
                f"would read: take it out, and push again. {NO_SECRET}"
            )


def _text_of(path: str, content: Content) -> bytes:
    """The text to scan, as its reader will see it: unpacked, decoded from UTF-16, JSON escapes replaced, without what
    has been redacted already."""
    kind = _kind(path)
    if kind in (PICTURE, ".woff2"):
        return b""
    if kind == TABLE:
        return _text_of_table(content).encode()
    text = header_of(content) if kind == WEIGHTS else read_bytes(content)
    try:
        text = gzip.decompress(text) if kind == PACKED else text
    except (OSError, EOFError, zlib.error) as error:
        raise UsageError(f"{path} is damaged and cannot be scanned: it cannot be unpacked ({error})") from error
    if text.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        text = text.decode("utf-16", "replace").encode()
    if kind in (".json", ".jsonl", WEIGHTS):
        for _ in range(MAX_NESTED):
            text = ESCAPE.sub(_unescape, text)
    return text.replace(REDACTED.encode(), b"")


def _text_of_table(content: Content) -> str:
    """All of a table as text: its schema with notes, then its values, one a line."""
    try:
        with opened(content) as source:
            table = pq.read_table(source)
    except (pa.ArrowException, OSError) as error:
        raise UsageError(f"a table that is to be published cannot be read as Parquet: {error}") from error
    values = (str(value) for column in table.columns for value in column.to_pylist())
    return "\n".join([table.schema.to_string(truncate_metadata=False), *values])


def suspicious(column: pa.Array) -> pa.Array:
    """Mark the texts that may hold something private; placeholders are marked too."""
    return pc.fill_null(pc.match_substring_regex(column, private_pattern(own_homes())), False)


def _unescape(match: re.Match) -> bytes:
    """A sign that JSON escapes. A new line becomes a carriage return, which leaves the number of every line as it
    is."""
    if code := match[2]:
        return chr(int(code, 16)).encode(errors="replace").replace(b"\n", b"\r")
    return {b"n": b"\r", b"t": b"\t", b"r": b"\r", b"b": b" ", b"f": b" "}.get(match[1], match[1])


def header_of(content: Content) -> bytes:
    """The JSON at the start of a safetensors file, after 8 bytes with its length; {} if there is none."""
    with opened(content) as file:
        length = int.from_bytes(file.read(8), "little")
        return (file.read(length) if length <= MAX_HEADER_BYTES else b"") or b"{}"


# Sizes and hashes


def size(content: Content) -> int:
    return len(content) if isinstance(content, bytes) else content.size


def sha256(content: Content) -> str:
    return hashlib.sha256(content).hexdigest() if isinstance(content, bytes) else _sha256_of_file(content)


@functools.lru_cache(maxsize=4096)
def _sha256_of_file(file: LocalFile) -> str:
    return _digest(file, hashlib.sha256())


def git_hash(content: Content) -> str:
    """Return the SHA-1 by which git names a file."""
    return _digest(content, hashlib.sha1(b"blob %d\0" % size(content)))


def _digest(content: Content, digest) -> str:
    with opened(content) as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def matches(content: Content, remote) -> bool:
    """True if a local file is what the listing's RepoFile says: sha256 for LFS files, the git hash otherwise."""
    if remote.size != size(content):
        return False
    return sha256(content) == remote.lfs.sha256 if remote.lfs else git_hash(content) == remote.blob_id
