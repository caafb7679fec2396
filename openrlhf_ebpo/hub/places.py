"""Repos of the Hub as people name them: owner/name, owner/name@revision, or the address of a page."""

from __future__ import annotations

import os
import re
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.redact import redacted_text

HOSTS = ("huggingface.co", "www.huggingface.co", "hf.co")
KINDS = {"model": "", "dataset": "datasets/", "space": "spaces/"}
WORDS = {"model": "a model", "dataset": "a data set", "space": "a Space"}
PAGES = ("tree", "commit")  # behind a repo in an address, before a revision
NAME = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9_])?"
REVISION = re.compile(r"[A-Za-z0-9_][\w.-]*(?:/[A-Za-z0-9_][\w.-]*)*", re.ASCII)


class Place(NamedTuple):
    """A repo, and the revision that is meant; None for the newest."""

    repo: str
    revision: str | None

    def __str__(self) -> str:
        return f"{self.repo}@{self.revision}" if self.revision else self.repo


def place(text: str, flag: str = "--repo", kind: str = "model") -> Place:
    """
    Args:
        flag: what errors name.
        kind: of repo that is asked for: model, dataset or space.

    Raises:
        UsageError: it names no repo, or one of another kind; a token pasted in its place is not echoed.
    """
    example = f"{KINDS[kind]}owner/name"
    if redacted_text(text) != text:
        raise UsageError(
            f"{flag}: this looks like a token, or is an address with a query; a repo of the Hub is owner/name"
        )
    path, at = _path_of(text)
    there = next((kind for kind, prefix in KINDS.items() if prefix and path.startswith(prefix)), None)
    if there and there != kind:
        raise UsageError(f"{flag} {text}: {WORDS[kind]} is asked for ({example}), and this is {WORDS[there]}")
    repo, revision = _parts(path.removeprefix(KINDS[kind]), at)
    check_repo_id(repo, flag, text)
    if revision is not None and (not REVISION.fullmatch(revision) or ".." in revision or len(revision) > 200):
        raise UsageError(f"{flag} {text}: behind {repo} comes no name of a revision (a branch, a tag or a commit)")
    return Place(repo, revision)


def target(text: str, flag: str = "--repo", kind: str = "model") -> str:
    """The repo to push to.

    Raises:
        UsageError: it names none, or a revision too.
    """
    repo, revision = place(text, flag, kind)
    if revision:
        raise UsageError(
            f"{flag} {text}: a push goes to the branch main (a model's steps get tags and branches of their own), not to "
            f"{revision}: give {repo} alone"
        )
    return repo


def check_repo_id(repo: str, flag: str = "--repo", text: str | None = None) -> None:
    """Check that `repo` is an owner/name of the Hub.

    Raises:
        UsageError: it is not.
    """
    if not re.fullmatch(f"{NAME}/{NAME}", repo) or len(repo) > 96 or "--" in repo or ".." in repo:
        raise UsageError(
            f"{flag} {text or repo}: a repo of the Hub is owner/name, of letters, digits, '-', '_' and '.', or its address"
        )


def _path_of(text: str) -> tuple[str, bool]:
    """Path of an address of the Hub, and False; any other text, and True: an @ in it comes before a revision."""
    own = urlsplit(os.environ.get("HF_ENDPOINT") or "").netloc
    address = urlsplit(text if "://" in text else f"https://{text}")
    if address.scheme in ("http", "https") and address.netloc and address.netloc in (*HOSTS, own):
        return unquote(address.path).strip("/"), False
    return text, True


def _parts(path: str, at: bool) -> tuple[str, str | None]:
    if at:
        repo, sign, revision = path.partition("@")
        return repo, revision if sign else None
    owner, name, page, revision = (*path.split("/", 3), "", "", "")[:4]
    if page and (page not in PAGES or not revision):
        return path, None  # some other page: no repo's
    return f"{owner}/{name}", revision or None
