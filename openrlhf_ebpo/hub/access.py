"""Check that a token may write to a repo, before anything is made for it."""

from __future__ import annotations

from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.hub.places import check_repo_id
from openrlhf_ebpo.hub_client import HOW_TO_LOG_IN, HubError, hub_errors


def check_write_access(api, repo: str, repo_type: str = "model", flag: str = "--repo") -> None:
    """That the token may write to `repo`, which need not exist yet; nothing is created.

    Raises:
        UsageError: no token, a wrong one, or one without the right; says what to do.
        HubError: the Hub cannot be asked at the moment.
    """
    from huggingface_hub import get_token

    check_repo_id(repo, flag)
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


def _lacks_rights(account: dict, repo: str) -> str | None:
    """What is wrong with the account of /api/whoami-v2, or None."""
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
