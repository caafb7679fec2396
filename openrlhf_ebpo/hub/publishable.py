"""Content to be published, bytes or files of this machine, with its hashes; and the filter that all of it passes."""

from __future__ import annotations

import codecs
import functools
import gzip
import hashlib
import io
import re
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import PurePath

import pyarrow as pa

from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.hub.local_files import LocalFile, opened
from openrlhf_ebpo.hub.response_tables import suspicious, text_of
from openrlhf_ebpo.redact import REDACTED, find_private, own_homes, redacted_text, without_homes

Content = LocalFile | bytes
TEXT = (".json", ".jsonl", ".md", ".txt", ".jinja", ".py", ".js", ".css", ".html", ".yaml", ".toml", ".svg", "")
TOKENIZER = (".model", ".spm", ".bpe", ".tiktoken")  # scanned for secrets too, though some are binary
WEIGHTS, TABLE, PICTURE = ".safetensors", ".parquet", ".png"
PACKED = ".gz"
VENDORED = re.compile(r"(.*/)?static/vendor/.+(\.woff2|\.js\.gz)")  # of the Space's package, and nowhere else
NO_SECRET = "If it is not a secret, say so: hub push --repo … --not_secret FILE"
EPOCH = (1980, 1, 1, 0, 0, 0)
PICKLES = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".joblib")
ESCAPE = re.compile(rb'\\(?:(["\\/bfnrt])|u([0-9A-Fa-f]{4}))')
MAX_NESTED = 3  # JSON in strings of JSON
MAX_HEADER_BYTES = 100_000_000  # as safetensors itself
KINDS = (*TEXT, *TOKENIZER, WEIGHTS, TABLE, PICTURE)


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

    def with_manifest(self, name: str, manifest: bytes) -> Publishable:
        """Add a list of the names and hashes of these files, which have been scanned already."""
        self._files[name] = manifest
        return self

    def without(self, paths: Iterable[str]) -> Publishable:
        """The same files but for these."""
        left = Publishable({})
        left._files = {path: content for path, content in self._files.items() if path not in tuple(paths)}
        return left

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
                archive.writestr(zipfile.ZipInfo(path, EPOCH), opened(content).read())
        return cls(packed.getvalue())


def _check_path(path: str) -> None:
    kind = _kind(path)
    if redacted_text(path) != path or without_homes(f"/{path}") != f"/{path}":
        shown = without_homes(redacted_text(path))
        raise UsageError(f"{shown}: the name of this file holds what looks like a secret; rename it")
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
        if where := found and _line(texts[path]):
            place = files[path].path if isinstance(files[path], LocalFile) else path
            raise UsageError(
                f"{place}, {where}, holds what looks like a secret (a token, a private key, or a password in an "
                f"address) or "
                f"names your home folder, which all who can read the repo would read: take it out, and push "
                f"again. {NO_SECRET}"
            )


def _text_of(path: str, content: Content) -> bytes:
    """The text to scan, as its reader will see it: unpacked, decoded from UTF-16, JSON escapes replaced, without what
    has been redacted already."""
    kind = _kind(path)
    if kind in (PICTURE, ".woff2"):
        return b""
    if kind == TABLE:
        return text_of(content).encode()
    text = header_of(content) if kind == WEIGHTS else opened(content).read()
    try:
        text = gzip.decompress(text) if kind == PACKED else text
    except (OSError, EOFError, zlib.error) as error:
        raise UsageError(f"{path} is damaged and cannot be scanned: it cannot be unpacked ({error})") from error
    if text.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        text = text.decode("utf-16", "replace").encode()
    if kind in (".json", ".jsonl", WEIGHTS):
        text = without_escapes(text)
    return text.replace(REDACTED.encode(), b"")


def without_escapes(text: bytes) -> bytes:
    """JSON whose strings are read as their text, and JSON in these strings too. A new line becomes a carriage return,
    which leaves the number of every line as it is."""
    for _ in range(MAX_NESTED):
        before, text = text, ESCAPE.sub(_unescape, text)
        if text == before:
            break
    return text


def _unescape(match: re.Match) -> bytes:
    if code := match[2]:
        return chr(int(code, 16)).encode(errors="replace").replace(b"\n", b"\r")
    return {b"n": b"\r", b"t": b"\t", b"r": b"\r", b"b": b" ", b"f": b" "}.get(match[1], match[1])


def _line(text: bytes) -> str | None:
    text = text.decode(errors="replace")
    start = find_private(text, own_homes())
    return None if start is None else f"line {1 + text.count(chr(10), 0, start)}"


def header_of(content: Content) -> bytes:
    """The JSON at the start of a safetensors file, after 8 bytes with its length; {} if there is none."""
    with opened(content) as file:
        length = int.from_bytes(file.read(8), "little")
        return (file.read(length) if length <= MAX_HEADER_BYTES else b"") or b"{}"


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
