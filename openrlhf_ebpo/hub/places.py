"""Parse the repos that users name (owner/name, owner/name@revision, or the address of a page of the Hub), and check that a
token may write to them before anything is made for them."""

from __future__ import annotations

import json
import os
import re
from typing import NamedTuple
from urllib.parse import quote, unquote

from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.hub.content import PICKLES
from openrlhf_ebpo.hub.upload import head_of, read_file
from openrlhf_ebpo.hub_client import HOW_TO_LOG_IN, HubError, hub_errors, require_client
from openrlhf_ebpo.redact import redacted_text

PREFIXES = {"model": "", "dataset": "datasets/", "space": "spaces/"}
NAMES = {"model": "a model", "dataset": "a data set", "space": "a Space"}
ADDRESS = re.compile(r"https?://|(?:www\.)?(?:huggingface\.co|hf\.co)/")
COMMIT_PAGE = re.compile(r"/commit/([0-9a-f]{7,40})/?$")  # a page that the client's parser does not know
REVISION = re.compile(r"[A-Za-z0-9_][\w.-]*(?:/[A-Za-z0-9_][\w.-]*)*", re.ASCII)
MAX_REVISION_CHARS = 200
WEIGHTS = (".safetensors", ".gguf", *PICKLES)
NOT_CONTENT = (".gitattributes", "README.md")


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
    name, at, given = text.partition("@")  # a slash behind the @ belongs to the revision
    uri = COMMIT_PAGE.sub(r"/tree/\1", text) if is_address else f"hf://{name}{at}{quote(unquote(given), safe='')}"
    try:
        found = parse_hf_uri(uri, endpoint=os.environ.get("HF_ENDPOINT"))
    except HfUriError as error:
        raise UsageError(f"{flag} {text}: a repo of the Hub is owner/name, or its address ({error.msg})") from None
    if found.type != kind and (is_address or found.type != "model"):  # owner/name alone is of the kind asked for
        example = f"{PREFIXES[kind]}owner/name"
        raise UsageError(
            f"{flag} {text}: {NAMES[kind]} is asked for ({example}), and this is {NAMES.get(found.type, found.type)}"
        )
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
            f"{flag} {text}: a push goes to the branch main (steps of a model have tags and branches), not to "
            f"{revision}: give {repo} alone"
        )
    return repo


def check_write_access(api, repo: str, repo_type: str = "model", flag: str = "--repo") -> None:
    """Check that the token may write to `repo`, which need not exist yet; nothing is created.

    Raises:
        UsageError: no token, a wrong one, or one without the right; says what to do.
        HubError: the Hub cannot be asked at the moment.
    """
    from huggingface_hub import get_token

    if not (api.token or get_token()):
        raise UsageError(f"{flag} {repo}: no token for the Hub: {HOW_TO_LOG_IN}")
    try:
        with hub_errors("asking the Hub whose token this is"):
            account = api.whoami()
        if problem := _lacks_rights(account, repo):
            raise UsageError(f"{flag} {repo}: {problem}")
        _check_existing(api, repo, repo_type)
    except HubError as error:
        if error.permanent:
            raise UsageError(f"{flag} {repo}: {error}") from error
        raise


def _check_existing(api, repo: str, repo_type: str) -> None:
    try:
        with hub_errors(f"asking whether the token may write to {repo}"):
            api.auth_check(repo, repo_type=repo_type, write=True)
    except HubError as error:
        if error.status != 404:  # a repo that does not exist is created by the first push
            raise


def check_same_run(api, repo: str, here: dict, repo_type: str = "model") -> str | None:
    """Check that a repo is new or holds this run: another one would move its tags and delete its files.

    Returns:
        The commit of main, None for a new repo.

    Raises:
        HubError: the repo holds another run or something else.
    """
    commit, names = head_of(api, repo, repo_type)
    if "run.json" in names:
        there = _parse(read_file(api, repo, repo_type, commit, "run.json"))
        if any(there.get(key) != here.get(key) for key in ("started", "model", "dataset")):  # the same in a resumed run
            raise HubError(
                f"{repo} holds another run ({there.get('name')}, started {there.get('started')}), which would be "
                "overwritten: choose another repo, or delete that one on the Hub",
                permanent=True,
            )
        return commit
    others = [name for name in names if name.endswith(WEIGHTS) or (repo_type != "model" and name not in NOT_CONTENT)]
    if others:
        raise HubError(
            f"{repo} holds files of something else than a run ({others[0]}), which would be overwritten: choose another "
            "repo, or delete that one on the Hub",
            permanent=True,
        )
    return commit


def _parse(text: bytes) -> dict:
    """Return a run.json from the Hub as a dictionary; {} if it is not one."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _lacks_rights(account: dict, repo: str) -> str | None:
    """Return the reason why the account of /api/whoami-v2 may not write to `repo`, or None. auth_check cannot tell for a
    new repo."""
    owner = repo.partition("/")[0]
    token = account.get("auth", {}).get("accessToken", {})
    if token.get("role") == "read":
        return f"the token {token.get('displayName', '')!r} of {account.get('name')} may only read: {HOW_TO_LOG_IN}"
    if token.get("role") == "fineGrained":
        scopes = token.get("fineGrained", {}).get("scoped", [])
        writes = [s.get("entity", {}).get("name") for s in scopes if "repo.write" in s.get("permissions", [])]
        if not {owner, repo} & set(writes):
            return f"the fine-grained token may write to {', '.join(filter(None, writes)) or 'nothing'}, not to {repo}"
        return None
    orgs = [org for org in account.get("orgs", []) if org.get("roleInOrg") not in ("read", "no_access")]
    owners = [account.get("name"), *(org.get("name") for org in orgs)]
    if owner not in owners:
        return f"the token belongs to {owners[0]}, who may write for {', '.join(map(str, owners))}, not for {owner}"
    return None
