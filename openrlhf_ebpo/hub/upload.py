"""One push: files into a repo in one commit, and "pushed" only after the remote listing shows them all, right.

publish(api, "owner/name", {"config.json": Path("..."), "prior.json": b"{}"}, message="step 10", tag="step-000010")
"""

from __future__ import annotations

import fnmatch
import itertools
import json
import os
import resource
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from openrlhf_ebpo.hub.content import Content, Publishable, matches, sha256, size
from openrlhf_ebpo.hub.local_files import local_file
from openrlhf_ebpo.hub.under_way import sending
from openrlhf_ebpo.models.hub_client import ADVICE, HubError, hub_errors
from openrlhf_ebpo.redact import redacted_text

MANIFEST = "sha256.json"
NOT_IN_MANIFEST = ("README.md", ".gitattributes", MANIFEST)  # edited on the Hub; nothing loads them

ANY = object()

MOST_FILES = 100_000  # of a repo
OTHER_FILES = 256  # that this process may have open beside those that it sends


@dataclass(frozen=True)
class Published:
    """What a push came to. commit: that holds it. sent: paths that had changed. unchanged: how many had not."""

    repo: str
    repo_type: str
    commit: str
    url: str
    tag: str | None
    sent: tuple[str, ...]
    unchanged: int


@dataclass(frozen=True)
class Planned:
    """One file of a push that has not happened. state: new, changed, unchanged, deleted, or unknown (Hub not asked).
    places: where something is taken out of it before it goes."""

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
    allow_pickle: bool = False,
    create: Mapping | None = None,
    based_on: str | object | None = ANY,
    still: Callable[[], None] = lambda: None,
) -> Published:
    """Put `files` (path in repo -> file or bytes) into a repo, which is created where it does not exist. A Path stands
    for the regular file there, which no link may lead out of its folder.

    Files that the repo has already are not sent again; where nothing has changed there is no commit. The tag is set
    last, on a commit whose listing shows every file with the right size and hash. Calling it again after any failure
    goes on where that one stopped.

    Args:
        private: of a repo that is created; the visibility of an existing one stays as it is.
        revision: branch to commit to, "main" if None; created where it does not exist.
        delete: patterns (fnmatch) of remote files that go when they are not among `files`.
        manifest: name of the file with every file's sha256 that is added; None for none.
        allow_pickle: let files through that execute code when they are loaded.
        create: more arguments of huggingface_hub's create_repo (space_sdk).
        based_on: commit of the branch that the files were made for, None where there was none: nothing is pushed where
            somebody else has pushed since. The commit itself always fails then (412).
        still: raises where the files are not any more what they were; called before the tag is set.

    Raises:
        HubError: in words; `permanent` says whether repeating it is of use.
        UsageError: pickles without `allow_pickle`; something that may not be published (`Publishable`); a link.
    """
    files = complete(files, manifest, allow_pickle)
    delete = tuple(delete)
    with hub_errors(f"pushing to {repo}"):
        if based_on is not ANY and commit_of(api, repo, repo_type, revision or "main") != based_on:
            raise HubError(f"pushing to {repo}: {ADVICE[412]}", 412)
        head = ensure_branch(api, repo, repo_type, revision or "main", private, create or {})
        if tag and (tagged := commit_of(api, repo, repo_type, tag)):
            changed, stale = difference(files, listing(api, repo, repo_type, tagged), delete)
            if not changed and not stale:
                return Published(repo, repo_type, tagged, url_of(api, repo, repo_type, tag), tag, (), len(files))
        changed, stale = difference(files, listing(api, repo, repo_type, head), delete)
        commit = head
        if changed or stale:
            commit = send(api, repo, repo_type, revision or "main", head, files, changed, stale, message)
        wrong, stale = difference(files, listing(api, repo, repo_type, commit), delete)
        if wrong or stale:
            raise HubError(f"pushing to {repo}: the Hub does not list {', '.join([*wrong, *stale][:5])} as it was sent")
        still()
        if tag:
            set_tag(api, repo, repo_type, tag, commit)
    url = url_of(api, repo, repo_type, tag or revision)
    return Published(repo, repo_type, commit, url, tag, tuple(changed), len(files) - len(changed))


def plan(
    api,
    repo: str,
    files: Mapping[str, Content | Path],
    *,
    repo_type: str = "model",
    revision: str | None = None,
    delete: Iterable[str] = (),
    manifest: str | None = MANIFEST,
    allow_pickle: bool = False,
) -> list[Planned]:
    """What `publish` would do, for --dry_run; nothing is created. Where the Hub cannot be asked, or there is no such
    repo or branch, every file would go."""
    files = complete(files, manifest, allow_pickle)
    try:
        with hub_errors(f"looking at {repo}"):
            commit = commit_of(api, repo, repo_type, revision or "main")
            remote = listing(api, repo, repo_type, commit) if commit else {}
    except HubError as error:
        missing = error.status in (401, 404)
        state = "new" if missing else "unknown"
        return [Planned(path, size(file), state, places(file)) for path, file in sorted(files.items())]
    changed, stale = difference(files, remote, tuple(delete))
    states = {path: ("changed" if path in remote else "new") for path in changed}
    planned = [
        Planned(path, size(file), states.get(path, "unchanged"), places(file)) for path, file in sorted(files.items())
    ]
    return planned + [Planned(path, remote[path].size, "deleted") for path in stale]


def print_plan(planned: list[Planned], repo: str) -> None:
    """A line a file, and a total of what would be sent."""
    for file in planned:
        print(f"  {megabytes(file.size):>12}  {file.state:<9}  {file.path}")
        if file.places:
            print(f"{'':27}secrets, home folders or local paths are taken out of: {shown(file.places)}")
    sent = [file.size for file in planned if file.state not in ("unchanged", "deleted")]
    print(f"dry run: {len(sent)} of {len(planned)} files, {megabytes(sum(sent))}, would go to {repo}; nothing was sent")


def places(content: Content) -> tuple[str, ...]:
    return getattr(content, "places", ())


def shown(places: tuple[str, ...]) -> str:
    more = f" and {len(places) - 12} more" if len(places) > 12 else ""
    return ", ".join(place if place.isprintable() else ascii(place)[1:-1] for place in places[:12]) + more


def megabytes(size: int) -> str:
    return f"{size / 1e6:,.2f} MB" if size >= 10_000 else f"{size} bytes"


# Local files


def complete(files: Mapping[str, Content | Path], manifest: str | None, allow_pickle: bool) -> Publishable:
    """`files` and their manifest: the last look at what goes, whoever has put it together.

    Raises:
        UsageError: something among them may not be published.
    """
    files = {path: local_file(file) if isinstance(file, Path) else file for path, file in files.items()}
    files = Publishable(files, allow_pickle)
    return Publishable({**files, manifest: manifest_of(files)}, allow_pickle) if manifest else files


def manifest_of(files: Mapping[str, Content]) -> bytes:
    rows = {p: {"sha256": sha256(f), "size": size(f)} for p, f in sorted(files.items()) if p not in NOT_IN_MANIFEST}
    return (json.dumps({"schema": 1, "files": rows}, indent=2) + "\n").encode()


# The repo


def ensure_branch(api, repo: str, repo_type: str, branch: str, private: bool, create: Mapping) -> str:
    """Commit that the branch points at; repo and branch are created where they do not exist."""
    if head := commit_of(api, repo, repo_type, branch):
        return head
    if not commit_of(api, repo, repo_type, "main"):
        api.create_repo(repo, repo_type=repo_type, private=private, exist_ok=True, **create)
    if branch != "main":
        api.create_branch(repo, branch=branch, repo_type=repo_type, exist_ok=True)
    if head := commit_of(api, repo, repo_type, branch):
        return head
    raise HubError(f"{repo} has been created, and the Hub does not show its branch {branch} yet")


def commit_of(api, repo: str, repo_type: str, revision: str) -> str | None:
    """The commit that a branch or tag points at; None where there is no such repo or revision."""
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
    entries = list(itertools.islice(pages, MOST_FILES + 1))
    if len(entries) > MOST_FILES:
        raise HubError(f"{repo} lists more than {MOST_FILES} files", permanent=True)
    return {entry.path: entry for entry in entries if isinstance(entry, RepoFile)}


def difference(files: Mapping[str, Content], remote: Mapping, delete: tuple[str, ...]) -> tuple[list[str], list[str]]:
    """Paths that the remote listing does not show as they are here, and remote ones that have to go."""
    wrong = [path for path, content in files.items() if path not in remote or not matches(content, remote[path])]
    stale = [p for p in remote if p not in files and any(fnmatch.fnmatch(p, pattern) for pattern in delete)]
    return wrong, stale


def send(api, repo, repo_type, branch, head, files: Publishable, changed, stale, message) -> str:
    """One commit on top of `head`; a commit of somebody else's in between makes it fail (412). The one place where files
    leave this machine.

    Raises:
        TypeError: what goes has not been through the filter.
    """
    if not isinstance(files, Publishable):
        raise TypeError("only Publishable files are sent")
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete

    with ExitStack() as stack:
        allow_open_files(len(changed))
        operations = [CommitOperationAdd(path, _for_client(files[path], stack)) for path in changed]
        operations += [CommitOperationDelete(path) for path in stale]
        how = {"repo_type": repo_type, "revision": branch, "parent_commit": head}
        sending(sum(size(files[path]) for path in changed))
        return api.create_commit(repo, operations, commit_message=redacted_text(message), **how).oid


def _for_client(content: Content, stack: ExitStack) -> bytes | str:
    """The client wants names (it would not send what is open by Xet), and opens them several times: this name stands for
    the file that is open here, whatever lies at its path by then."""
    if isinstance(content, bytes):
        return content
    name = f"/proc/self/fd/{stack.enter_context(content.open()).fileno()}"
    return name if os.path.exists(name) else str(content.path)


def allow_open_files(count: int) -> None:
    """Raise this process's limit of open files, as far as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        wanted = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))


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
