"""One push: files into a repo in one commit. "Pushed" means that the listing of the commit shows every file with the right
size and hash; then the tag is set.

publish(api, "owner/name", {"config.json": Path("..."), "prior.json": b"{}"}, message="step 10", tag="step-000010")
"""

from __future__ import annotations

import fnmatch
import itertools
import json
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.hub.content import Content, Publishable, matches, sha256, size
from openrlhf_ebpo.hub.local_files import local_file
from openrlhf_ebpo.hub_client import ADVICE, HubError, hub_errors
from openrlhf_ebpo.redact import redacted_text

MANIFEST = "sha256.json"
NOT_IN_MANIFEST = ("README.md", ".gitattributes", MANIFEST)  # edited on the Hub; nothing loads them

ANY = object()

MAX_FILES = 100_000  # of a repo


@dataclass(frozen=True)
class Published:
    """The result of a push. commit: holds it. sent: paths that had changed. unchanged: number of the others."""

    commit: str
    url: str
    sent: tuple[str, ...]
    unchanged: int


@dataclass(frozen=True)
class Planned:
    """One file of a dry run. state: new, changed, unchanged, deleted, or unknown (the Hub cannot be asked). places: where
    something is taken out of it before it goes."""

    path: str
    size: int
    state: str
    places: tuple[str, ...] = ()


def publish(
    api,
    repo: str,
    files: Mapping[str, Content | Path],
    *,
    repo_type: str = "model",
    private: bool = True,
    revision: str | None = None,
    tag: str | None = None,
    message: str,
    delete: Iterable[str] = (),
    manifest: str | None = MANIFEST,
    based_on: str | object | None = ANY,
) -> Published:
    """Put `files` (path in repo -> file or bytes) into a repo, which is created if it does not exist. A Path stands
    for the regular file there, which no link may lead out of its folder.

    Files that the repo has already are not sent again; without a change there is no commit. The tag is set last, on a
    commit whose listing shows every file with the right size and hash. It may be repeated after any failure.

    Args:
        private: visibility of a repo that is created; an existing one keeps its own.
        revision: branch to commit to, "main" if None; created where it does not exist.
        delete: patterns (fnmatch) of remote files that go when they are not among `files`.
        manifest: name of the file with every file's sha256 that is added; None for none.
        based_on: commit of the branch that the files were made for, None for a new branch: the push fails (412) if
            another push came since. Between listing and commit this is always checked.

    Raises:
        HubError: it failed; a `permanent` error needs no retry.
        UsageError: something that may not be published (`Publishable`); a link.
    """
    files = complete(files, manifest)
    delete, branch = tuple(delete), revision or "main"
    with hub_errors(f"pushing to {repo}"):
        head = commit_of(api, repo, repo_type, branch)
        if based_on is not ANY and head != based_on:
            raise HubError(f"pushing to {repo}: {ADVICE[412]}", 412)
        head = head or create_branch(api, repo, repo_type, branch, private)
        tagged = commit_of(api, repo, repo_type, tag) if tag else None
        if tagged and not any(difference(files, listing(api, repo, repo_type, tagged), delete)):
            return Published(tagged, url_of(api, repo, repo_type, tag), (), len(files))
        commit, (changed, stale) = head, difference(files, listing(api, repo, repo_type, head), delete)
        if changed or stale:
            commit = send(api, repo, repo_type, branch, head, files, changed, stale, message)
            wrong, left = difference(files, listing(api, repo, repo_type, commit), delete)
            if wrong or left:
                raise HubError(
                    f"pushing to {repo}: the Hub does not list {', '.join([*wrong, *left][:5])} as it was sent"
                )
        if tag:
            set_tag(api, repo, repo_type, tag, commit)
    url = url_of(api, repo, repo_type, tag or revision)
    return Published(commit, url, tuple(changed), len(files) - len(changed))


def plan(
    api,
    repo: str,
    files: Mapping[str, Content | Path],
    *,
    repo_type: str = "model",
    delete: Iterable[str] = (),
    manifest: str | None = MANIFEST,
) -> list[Planned]:
    """List what `publish` would do, for --dry_run; nothing is created. Every file would go to a new repo."""
    files = complete(files, manifest)
    try:
        remote, new = head_of(api, repo, repo_type)[1], "new"
    except HubError as error:
        remote, new = {}, "new" if error.status in (401, 404) else "unknown"
    changed, stale = difference(files, remote, tuple(delete))
    states = {path: "changed" if path in remote else new for path in changed}
    planned = [
        Planned(path, size(file), states.get(path, "unchanged"), getattr(file, "places", ()))
        for path, file in sorted(files.items())
    ]
    return planned + [Planned(path, remote[path].size, "deleted") for path in stale]


def print_plan(planned: list[Planned], repo: str) -> None:
    """Print a line for each file, and a total of what would be sent."""
    for file in planned:
        print(f"  {megabytes(file.size):>12}  {file.state:<9}  {file.path}")
        if file.places:
            places = [place if place.isprintable() else ascii(place)[1:-1] for place in file.places[:12]]
            more = f" and {len(file.places) - 12} more" if len(file.places) > 12 else ""
            print(f"{'':27}secrets, home folders or local paths are taken out of: {', '.join(places)}{more}")
    sent = [file.size for file in planned if file.state not in ("unchanged", "deleted")]
    print(f"dry run: {len(sent)} of {len(planned)} files, {megabytes(sum(sent))}, would go to {repo}; nothing was sent")


def megabytes(size: int) -> str:
    return f"{size / 1e6:,.2f} MB" if size >= 10_000 else f"{size} bytes"


# Local files


def complete(files: Mapping[str, Content | Path], manifest: str | None) -> Publishable:
    """Pass `files` through the filter, whoever put them together, and add their manifest.

    Raises:
        UsageError: something among them may not be published.
    """
    files = Publishable({path: local_file(file) if isinstance(file, Path) else file for path, file in files.items()})
    return files.with_manifest(manifest, manifest_of(files)) if manifest else files


def manifest_of(files: Mapping[str, Content]) -> bytes:
    rows = {p: {"sha256": sha256(f), "size": size(f)} for p, f in sorted(files.items()) if p not in NOT_IN_MANIFEST}
    return (json.dumps({"schema": 1, "files": rows}, indent=2) + "\n").encode()


# The repo


def create_branch(api, repo: str, repo_type: str, branch: str, private: bool) -> str:
    """Create the branch, and the repo if it does not exist; returns the commit that the branch points at."""
    if branch == "main" or not commit_of(api, repo, repo_type, "main"):
        sdk = {"space_sdk": "gradio"} if repo_type == "space" else {}
        api.create_repo(repo, repo_type=repo_type, private=private, exist_ok=True, **sdk)
    if branch != "main":
        api.create_branch(repo, branch=branch, repo_type=repo_type, exist_ok=True)
    if head := commit_of(api, repo, repo_type, branch):
        return head
    raise HubError(f"{repo} has been created, and the Hub does not show its branch {branch} yet")


def commit_of(api, repo: str, repo_type: str, revision: str) -> str | None:
    """The commit that a branch or tag points at; None if the repo or the revision does not exist."""
    from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError

    try:
        return api.repo_info(repo, repo_type=repo_type, revision=revision).sha
    except RevisionNotFoundError:
        return None
    except RepositoryNotFoundError as error:
        if error.response.status_code == 404:
            return None
        raise  # 401: not the repo, the token is the problem


def listing(api, repo: str, repo_type: str, commit: str) -> dict:
    """Path -> RepoFile of every file at a commit.

    Raises:
        HubError: the listing does not end.
    """
    from huggingface_hub.hf_api import RepoFile

    pages = api.list_repo_tree(repo, repo_type=repo_type, revision=commit, recursive=True)
    entries = list(itertools.islice(pages, MAX_FILES + 1))
    if len(entries) > MAX_FILES:
        raise HubError(f"{repo} lists more than {MAX_FILES} files", permanent=True)
    return {entry.path: entry for entry in entries if isinstance(entry, RepoFile)}


def head_of(api, repo: str, repo_type: str) -> tuple[str | None, dict]:
    """The commit that main points at, and its listing; (None, {}) for a repo that does not exist.

    Raises:
        HubError: the Hub cannot be asked.
    """
    with hub_errors(f"looking at {repo}"):
        commit = commit_of(api, repo, repo_type, "main")
        return commit, listing(api, repo, repo_type, commit) if commit else {}


def read_file(api, repo: str, repo_type: str, commit: str, path: str) -> bytes:
    """The content of a small file at a commit that lists it.

    Raises:
        HubError: it cannot be downloaded.
    """
    with hub_errors(f"reading {path} of {repo}"), tempfile.TemporaryDirectory() as folder:
        how = {"repo_type": repo_type, "revision": commit, "local_dir": folder}
        return Path(api.hf_hub_download(repo, path, **how)).read_bytes()


def difference(files: Mapping[str, Content], remote: Mapping, delete: tuple[str, ...]) -> tuple[list[str], list[str]]:
    """Paths that the remote listing does not show as they are here, and remote ones that have to go."""
    wrong = [path for path, content in files.items() if path not in remote or not matches(content, remote[path])]
    stale = [p for p in remote if p not in files and any(fnmatch.fnmatch(p, pattern) for pattern in delete)]
    return wrong, stale


def send(api, repo, repo_type, branch, head, files: Publishable, changed, stale, message) -> str:
    """Commit `changed` on top of `head`; fails (412) after another push in between. Files leave this machine here only.
    The client hashes every file, and its hash must be that of the queued file.

    Raises:
        TypeError: the files have not been through the filter. UsageError: a file is not as it was queued.
    """
    if not isinstance(files, Publishable):
        raise TypeError("only Publishable files are sent")
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete

    operations = []
    for path in changed:
        content = files[path]
        add = CommitOperationAdd(path, content if isinstance(content, bytes) else str(content.path))
        if add.upload_info.sha256.hex() != sha256(content):
            raise UsageError(f"{content.path} is not as it was queued: remove it, and push the step again")
        operations.append(add)
    operations += [CommitOperationDelete(path) for path in stale]
    how = {"repo_type": repo_type, "revision": branch, "parent_commit": head}
    return api.create_commit(repo, operations, commit_message=redacted_text(message), **how).oid


def set_tag(api, repo: str, repo_type: str, tag: str, commit: str) -> None:
    """Make a tag name `commit`, moving it where it named another one."""
    found = commit_of(api, repo, repo_type, tag)
    if found == commit:
        return
    if found:
        api.delete_tag(repo, tag=tag, repo_type=repo_type)
    api.create_tag(repo, tag=tag, revision=commit, repo_type=repo_type)
    if commit_of(api, repo, repo_type, tag) != commit:
        raise HubError(f"the Hub does not show the tag {tag} of {repo} yet")


def url_of(api, repo: str, repo_type: str, revision: str | None) -> str:
    kind = "" if repo_type == "model" else f"{repo_type}s/"
    return f"{api.endpoint}/{kind}{repo}" + (f"/tree/{revision}" if revision else "")
