"""What goes up: bytes, or files of this machine, with their hashes; and the filter that all of it passes."""

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
from pathlib import PurePath

import pyarrow as pa
import pyarrow.compute as pc

from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.hub import tables
from openrlhf_ebpo.hub.local_files import LocalFile
from openrlhf_ebpo.hub.tables import CleanTable
from openrlhf_ebpo.redact import REDACTED, find_private, own_homes, private_pattern, redacted_text, without_homes

Content = LocalFile | bytes
TEXT = (".json", ".jsonl", ".md", ".txt", ".jinja", ".py", ".js", ".css", ".html", ".yaml", ".toml", ".svg", "")
TOKENIZER = (".model", ".spm", ".bpe", ".tiktoken")  # not all of them texts, and looked through all the same
WEIGHTS, TABLE, PICTURE = ".safetensors", ".parquet", ".png"
PACKED = ".gz"
VENDORED = re.compile(r"(.*/)?static/vendor/.+(\.woff2|\.js\.gz)")  # of the Space's package, and nowhere else
NO_SECRET = "If it is not a secret, say so: hub push --repo … --not_secret FILE"
EPOCH = (1980, 1, 1, 0, 0, 0)
PICKLES = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".joblib")
LOOKED_THROUGH_AT_ONCE = 64 << 20  # bytes
MAX_HEADER_BYTES = 100_000_000  # as safetensors itself
KINDS = (*TEXT, *TOKENIZER, WEIGHTS, TABLE, PICTURE)
EVAL_RESULTS = ".eval_results"  # where the Hub looks for them; every other hidden name stays


class Publishable(Mapping[str, Content]):
    """Files by their path in a repo that may leave this machine. Making one is the filter, and nothing else is sent.

    Looked through: paths, texts, the tokenizer's files, headers of weights, texts in tables. Not looked into: the numbers
    of weights, pictures (we draw them), the Space's fonts, pickles.

    Raises:
        UsageError: a kind of file that is never published, or a secret or this user's home folder in one; names the
            file, never what was found.
    """

    def __init__(self, files: Mapping[str, Content], allow_pickle: bool = False):
        self._files = dict(files)
        for path, content in self._files.items():
            if not (isinstance(content, PublishableZip) and path.endswith(".zip")):
                _check_path(path, allow_pickle)
        for files in _at_once({path: file for path, file in self._files.items() if not _is_cleared(file)}):
            _check_contents(files)

    def with_manifest(self, name: str, manifest: bytes) -> Publishable:
        """Add a list of these files' own names and hashes, which have been looked through already."""
        self._files[name] = manifest
        return self

    def __getitem__(self, path: str) -> Content:
        return self._files[path]

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)


def _is_cleared(content: Content) -> bool:
    return isinstance(content, PublishableZip) or (isinstance(content, LocalFile) and content.cleared)


class PublishableZip(bytes):
    """A zip archive of files that passed the filter; the same files make the same bytes."""

    @classmethod
    def of(cls, files: Mapping[str, Content]) -> PublishableZip:
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
            for path, content in sorted(Publishable(files).items()):
                archive.writestr(
                    zipfile.ZipInfo(path, EPOCH), content if isinstance(content, bytes) else content.read_bytes()
                )
        return cls(packed.getvalue())


def _check_path(path: str, allow_pickle: bool) -> None:
    kind = _kind(path)
    if redacted_text(path) != path or without_homes(f"/{path}") != f"/{path}":
        shown = without_homes(redacted_text(path))
        raise UsageError(f"{shown}: the name of this file holds what looks like a secret; rename it")
    if kind in PICKLES and not allow_pickle:
        raise UsageError(f"{path} is a pickle, which can run code where it is loaded: only safetensors are pushed")
    hidden = any(part.startswith(".") for part in path.removeprefix(f"{EVAL_RESULTS}/").split("/"))
    if (kind not in (*KINDS, *PICKLES) and not VENDORED.fullmatch(path)) or hidden or path.startswith("/"):
        raise UsageError(f"{ascii(path)[1:-1]} is no kind of file that is published (`hf upload` takes any file)")


def _kind(path: str) -> str:
    name = PurePath(path).name
    if name in ("LICENSE", "NOTICE"):
        return ""
    return ".model" if name.startswith("tokenizer.model.v") else PurePath(name).suffix


def _at_once(files: Mapping[str, Content]) -> Iterator[dict[str, Content]]:
    """In their order, so many at a time that their texts fit into memory."""
    taken, total = {}, 0
    for path, content in files.items():
        if taken and total + size(content) > LOOKED_THROUGH_AT_ONCE:
            yield taken
            taken, total = {}, 0
        taken[path] = content
        total += size(content) if _kind(path) in (*TEXT, *TOKENIZER, PACKED) else 0
    yield taken


def _check_contents(files: Mapping[str, Content]) -> None:
    is_table = {path: _kind(path) == TABLE and not isinstance(files[path], CleanTable) for path in files}
    texts = {path: _text_of(path, content) for path, content in files.items() if not is_table[path]}
    lines = dict(zip(texts, lines_with_secrets(texts.values()), strict=True))
    for path, content in files.items():
        if is_table[path]:
            found = tables.private_column(content)
            where = f", column {found}," if found else ""
        else:
            where = f", line {lines[path]}," if lines[path] else ""
        if where:
            place = content.path if isinstance(content, LocalFile) else path
            raise UsageError(
                f"{place}{where} holds what looks like a secret (a token, a private key, or a password in an address) or names "
                f"your home folder, which all who can read the repo would read: take it out, and push again. {NO_SECRET}"
            )


def _text_of(path: str, content: Content) -> bytes:
    kind = _kind(path)
    if kind == WEIGHTS:
        return header_of(content)
    if kind in (PICTURE, ".woff2", *PICKLES):
        return b""
    found = content if isinstance(content, bytes) else content.read_bytes()
    if kind != PACKED:
        return found
    try:
        return gzip.decompress(found)
    except (OSError, EOFError, zlib.error) as error:
        raise UsageError(f"{path} is damaged: it cannot be unpacked ({error}), and so not be looked through") from error


def header_of(content: Content) -> bytes:
    """The JSON at the start of a safetensors file, after 8 bytes with its length; {} if there is none."""
    with io.BytesIO(content) if isinstance(content, bytes) else content.open() as opened:
        length = int.from_bytes(opened.read(8), "little")
        return (opened.read(length) if length <= MAX_HEADER_BYTES else b"") or b"{}"


def lines_with_secrets(texts: Iterable[bytes]) -> list[int | None]:
    """Of each text, the number of the first line with something private that has not been made unreadable already; None if
    it has none. Many at once: RE2 takes longer to read the pattern than most files."""
    texts = [_plain(text).replace(REDACTED.encode(), b"") for text in texts]
    found = pc.match_substring_regex(pa.array(texts, pa.large_binary()), private_pattern(own_homes())).to_pylist()
    return [_line(text.decode(errors="replace")) if is_so else None for text, is_so in zip(texts, found, strict=True)]


def _line(text: str) -> int | None:
    start = find_private(text, own_homes())
    return None if start is None else 1 + text.count("\n", 0, start)


def _plain(text: bytes) -> bytes:
    """As its reader will see it: of UTF-16, and with the letters that JSON has written as numbers."""
    if text.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        text = text.decode("utf-16", "replace").encode()
    return re.sub(rb"\\u00([2-7][0-9A-Fa-f])", lambda match: bytes([int(match[1], 16)]), text)


def size(content: Content) -> int:
    return len(content) if isinstance(content, bytes) else content.size


def sha256(content: Content) -> str:
    if isinstance(content, bytes):
        return hashlib.sha256(content).hexdigest()
    return content.sha256 or _sha256_of_file(content)


@functools.lru_cache(maxsize=4096)
def _sha256_of_file(file: LocalFile) -> str:
    digest = hashlib.sha256()
    with file.open() as opened:
        while block := opened.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def git_hash(content: Content) -> str:
    """As git names a file. Files in git itself are small (large ones are LFS files), if they are what the Hub says."""
    digest = hashlib.sha1(b"blob %d\0" % size(content))
    if isinstance(content, bytes):
        digest.update(content)
        return digest.hexdigest()
    with content.open() as opened:
        while block := opened.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def matches(content: Content, remote) -> bool:
    """Whether a local file is what the listing's RepoFile says: sha256 for LFS files, the git hash otherwise."""
    if remote.size != size(content):
        return False
    return sha256(content) == remote.lfs.sha256 if remote.lfs else git_hash(content) == remote.blob_id
