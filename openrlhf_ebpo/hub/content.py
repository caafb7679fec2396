"""What goes up: bytes, or files of this machine, with their hashes; and nothing with a secret in it."""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.hub.local_files import LocalFile
from openrlhf_ebpo.redact import REDACTED, SECRETS, redacted_text

Content = LocalFile | bytes
TEXT = (".json", ".jsonl", ".md", ".txt", ".jinja", ".py", ".js", ".css", ".html", ".yaml", ".toml", "")


def refuse_secrets(files: Mapping[str, Content]) -> None:
    """Check that neither a text file nor a path holds what looks like a secret.

    Raises:
        UsageError: one does; names the file, never the secret.
    """
    for path, content in files.items():
        if redacted_text(path) != path:
            raise UsageError(f"{redacted_text(path)}: the name of this file holds what looks like a secret; rename it")
        if Path(path).suffix in TEXT and (line := line_with_secret(content)):
            place = content.path if isinstance(content, LocalFile) else path
            raise UsageError(
                f"{place}, line {line}, holds what looks like a secret (a token, a private key, or a password in an "
                "address), which all who can read the repo would read: take it out, and push again"
            )


def line_with_secret(content: Content) -> int | None:
    """Number of the first line with a secret that has not been made unreadable already; None where there is none."""
    text = content if isinstance(content, bytes) else content.read_bytes()
    text = text.replace(REDACTED.encode(), b"")
    if not pc.match_substring_regex(pa.array([text], pa.large_binary()), SECRETS)[0].as_py():
        return None
    found = re.search(SECRETS.encode(), text)
    return 1 + text.count(b"\n", 0, found.start() if found else 0)


def size(content: Content) -> int:
    return len(content) if isinstance(content, bytes) else content.size


def sha256(content: Content) -> str:
    if isinstance(content, bytes):
        return hashlib.sha256(content).hexdigest()
    return _sha256_of_file(content)


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
