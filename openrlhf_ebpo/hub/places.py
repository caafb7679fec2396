"""Parse the repos that users name: owner/name, owner/name@revision, or the address of a page of the Hub."""

from __future__ import annotations

import os
import re
from typing import NamedTuple

from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.hub_client import require_client
from openrlhf_ebpo.redact import redacted_text

PREFIXES = {"model": "", "dataset": "datasets/", "space": "spaces/"}
NAMES = {"model": "a model", "dataset": "a data set", "space": "a Space"}
ADDRESS = re.compile(r"https?://|(?:www\.)?(?:huggingface\.co|hf\.co)/")
COMMIT_PAGE = re.compile(r"/commit/([0-9a-f]{7,40})/?$")  # a page that the client's parser does not know
REVISION = re.compile(r"[A-Za-z0-9_][\w.-]*(?:/[A-Za-z0-9_][\w.-]*)*", re.ASCII)
MAX_REVISION_CHARS = 200


class Place(NamedTuple):
    """A repo and a revision of it; None for the newest."""

    repo: str
    revision: str | None

    def __str__(self) -> str:
        return f"{self.repo}@{self.revision}" if self.revision else self.repo


def place(text: str, flag: str = "--repo", kind: str = "model") -> Place:
    """Parse a repo, and check that it is of the kind asked for.

    Args:
        flag: the flag that errors name.
        kind: model, dataset or space.

    Raises:
        UsageError: `text` is not a repo, or one of another kind; a token pasted in its place is not echoed.
    """
    require_client()
    from huggingface_hub.errors import HfUriError
    from huggingface_hub.utils import parse_hf_uri

    if redacted_text(text) != text:
        raise UsageError(
            f"{flag}: this looks like a token, or is an address with a query; a repo of the Hub is owner/name"
        )
    is_address = bool(ADDRESS.match(text))
    uri = COMMIT_PAGE.sub(r"/tree/\1", text) if is_address else f"hf://{text}"
    try:
        found = parse_hf_uri(uri, endpoint=os.environ.get("HF_ENDPOINT"))
    except HfUriError as error:
        raise UsageError(f"{flag} {text}: a repo of the Hub is owner/name, or its address ({error.msg})") from None
    if found.type != kind and (is_address or found.type != "model"):  # owner/name alone is of the kind asked for
        example = f"{PREFIXES[kind]}owner/name"
        raise UsageError(
            f"{flag} {text}: {NAMES[kind]} is asked for ({example}), and this is {NAMES.get(found.type, found.type)}"
        )
    check_repo_id(found.id, flag, text)
    revision = found.revision
    if revision is not None and (
        not REVISION.fullmatch(revision) or ".." in revision or len(revision) > MAX_REVISION_CHARS
    ):
        raise UsageError(f"{flag} {text}: {revision!r} is not the name of a revision (a branch, a tag or a commit)")
    if found.path_in_repo:
        raise UsageError(f"{flag} {text}: a repo of the Hub is owner/name, without the path of a file in it")
    return Place(found.id, revision)


def target(text: str, flag: str = "--repo", kind: str = "model") -> str:
    """Parse the repo to push to.

    Raises:
        UsageError: it is not a repo, or names a revision too.
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
    require_client()
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(repo or "")
    except HFValidationError as error:
        raise UsageError(f"{flag} {text or repo}: a repo of the Hub is owner/name, or its address ({error})") from None
    if repo.count("/") != 1 or not repo.isprintable():
        raise UsageError(f"{flag} {text or repo}: a repo of the Hub is owner/name, or its address")
