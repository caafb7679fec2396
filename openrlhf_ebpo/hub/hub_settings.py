"""The Hub's flags of a training, and the repos that users name: parsed, and checked before anything starts or is made
for them."""

from __future__ import annotations

import argparse
import functools
import os
import re
from dataclasses import dataclass
from urllib.parse import quote, unquote

from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.hub.public import public_run
from openrlhf_ebpo.hub.publish import Owner, Repo, check_owner, same_run
from openrlhf_ebpo.hub_client import HOW_TO_LOG_IN, HubError, hub_api, hub_errors
from openrlhf_ebpo.redact import redacted_text

ADDRESS = re.compile(r"(?:https?|hf)://|(?:www\.)?(?:huggingface\.co|hf\.co)/")


# Repos


def parse_repo(text: str, flag: str = "--repo", kind: str = "model") -> tuple[str, str | None]:
    """Parse a repo to read from, and check that it is of the kind asked for.

    Args:
        flag: the flag that errors name.
        kind: model, dataset or space.

    Returns:
        OWNER/NAME, and the revision; None for the newest.

    Raises:
        UsageError: `text` is not a repo, or one of another kind; a token pasted in its place is not echoed.
    """
    from huggingface_hub.errors import HfUriError
    from huggingface_hub.utils import parse_hf_uri

    if redacted_text(text) != text:
        raise UsageError(
            f"{flag}: this looks like a token, or is an address with a query; a repo of the Hub is owner/name"
        )
    is_address = bool(ADDRESS.match(text))
    name, at, revision = text.partition("@")  # a slash behind the @ belongs to the revision
    uri = text if is_address else f"hf://{name}{at}{quote(unquote(revision), safe='')}"
    try:
        found = parse_hf_uri(uri, endpoint=os.environ.get("HF_ENDPOINT"))
    except HfUriError as error:
        raise UsageError(f"{flag} {text}: a repo of the Hub is owner/name, or its address ({error.msg})") from None
    if found.type != kind and (is_address or found.type != "model"):  # owner/name alone is of the kind asked for
        raise UsageError(f"{flag} {text}: this is a {found.type}, and a {kind} is asked for")
    if found.path_in_repo:
        raise UsageError(f"{flag} {text}: a repo of the Hub is owner/name, without the path of a file in it")
    return found.id, found.revision


def target(text: str, flag: str = "--repo", kind: str = "model") -> str:
    """Parse the repo to push to.

    Raises:
        UsageError: as `parse_repo`; or `text` names a revision.
    """
    name, revision = parse_repo(text, flag, kind)
    if revision:
        raise UsageError(f"{flag} {text}: a push goes to a repo, and makes its revisions itself: {name}")
    return name


# A training's flags


@dataclass(frozen=True)
class HubSettings:
    """The --hub.* flags of a training. repo: None if nothing is pushed. public: visibility of a repo that is made."""

    repo: str | None = None
    public: bool = False

    @classmethod
    def from_args(cls, args) -> HubSettings:
        """From upstream's nested arguments, which hold the flags under `args.hub`."""
        return cls(**vars(args.hub))

    def check(self, save_steps: int, save_hf: bool) -> None:
        """Raises UsageError: with --ckpt.save_steps, models in the Hugging Face format are not saved."""
        if self.repo and save_steps > 0 and not save_hf:
            raise UsageError("--hub.repo pushes models in the Hugging Face format: add --ckpt.save_hf")

    def check_access(self, run: dict) -> list[str]:
        """`check_target` of `repo`, before a training.

        Args:
            run: run.json of the run that is resumed, {} for a new one.
        """
        if not self.repo:
            return []
        return check_target(Repo(hub_api(), self.repo), self.public, same_run(public_run(run)), "--hub.repo")


def add_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "Hugging Face Hub",
        "Every saved model is pushed in the background, tagged step-000010. The token comes from HF_TOKEN or `hf auth "
        "login`. Training never waits for the Hub; the command ends when all is pushed, or ten minutes after the "
        "training, and `openrlhf-ebpo hub push RUN_DIR` sends the rest.",
    )
    group.add_argument(
        "--hub.repo",
        type=functools.partial(target, flag="--hub.repo"),
        metavar="OWNER/NAME",
        help="push to this model repo, also given by its address",
    )
    group.add_argument("--hub.public", action="store_true", help="a repo that is created is public; otherwise private")


# Access


def check_target(repo: Repo, public: bool, owner: Owner, flag: str = "--repo") -> list[str]:
    """Check, before anything is made for a repo, that it is ours or new, and that the token may write to it. Returns
    lines about its visibility. A Hub that cannot be reached is one of them.

    Raises:
        UsageError: no token, a wrong one, or one without the right; or the repo holds something else.
    """
    from huggingface_hub import get_token

    if not (repo.api.token or get_token()):
        raise UsageError(f"{flag} {repo.name}: no token for the Hub: {HOW_TO_LOG_IN}")
    try:
        commit, _ = check_owner(repo, owner)
        with hub_errors(f"asking whether the token may write to {repo.name}"):
            account = repo.api.whoami()
            user, token = account.get("name"), (account.get("auth") or {}).get("accessToken") or {}
            owners = [user, *(org.get("name") for org in account.get("orgs") or [])]
            if token.get("role") == "read":
                words = f"the token {token.get('displayName', '')!r} of {user} may only read: {HOW_TO_LOG_IN}"
                raise HubError(words, permanent=True)
            # auth_check cannot tell for a new repo; the scopes of a fine-grained token are left to the first push
            if (name := repo.name.partition("/")[0]) not in owners:
                words = f"the token belongs to {user}, who may write for {', '.join(map(str, owners))}, not for {name}"
                raise HubError(words, permanent=True)
            if commit:
                repo.api.auth_check(repo.name, repo_type=repo.kind, write=True)
                is_public = not repo.api.repo_info(repo.name, repo_type=repo.kind).private
    except HubError as error:
        if error.permanent:
            raise UsageError(f"{flag} {repo.name}: {error}") from error
        return [f"warning: the Hub cannot be reached ({error}): what is to be pushed to {repo.name} waits"]
    if not commit:
        return [f"pushing to {repo.name}, a new repo: {'public' if public else 'private'}"]
    if is_public and not public:
        return [f"warning: {repo.name} exists and is public: everybody can read what is pushed there"]
    return [f"pushing to {repo.name}, which exists: {'public' if is_public else 'private'}"]
