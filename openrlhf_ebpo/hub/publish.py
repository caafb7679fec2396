"""One push: files into a repo in one commit. "Pushed" means that the listing of the commit shows every file with the
right size and hash; then the tag is set. A repo of another owner is refused, and what people have changed in ours
stays.

publish(Repo(api, "owner/name"), files, Commit("step 10", same_run(run), tag="step-000010"))
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from openrlhf_ebpo.hub.content import WEIGHTS, Content, LocalFile, Publishable, digest, matches, size
from openrlhf_ebpo.hub_client import HubError, hub_errors, run_with_timeout
from openrlhf_ebpo.redact import redacted_text

CARD = "README.md"
SIGNATURE = "(openrlhf_ebpo)"  # in the title of every commit of a push: other ones are people's
ATTRIBUTES = ".gitattributes"  # the Hub's
NEW = (CARD, "LICENSE", ATTRIBUTES)  # all that a new repo holds
SPACE_DEFAULT = re.compile(rb"---\n.*?\n---\s*Check out the configuration reference at \S+\s*", re.S)
PATHS_AT_ONCE = 100  # of a request


# The repo


@dataclass(frozen=True)
class Repo:
    """A repo, the kind that it is, and the client that talks to the Hub. Its methods raise the client's errors."""

    api: object
    name: str
    kind: str = "model"

    def url(self, revision: str | None = None) -> str:
        kind = "" if self.kind == "model" else f"{self.kind}s/"
        return f"{self.api.endpoint}/{kind}{self.name}" + (f"/tree/{revision}" if revision else "")

    def commit_of(self, revision: str = "main") -> str | None:
        """The commit that a branch or tag points at; None if the repo or the revision does not exist."""
        from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError

        try:
            return self.api.repo_info(self.name, repo_type=self.kind, revision=revision).sha
        except RevisionNotFoundError:
            return None
        except RepositoryNotFoundError as error:
            if error.response.status_code == 404:
                return None
            raise  # 401: not the repo, the token is the problem

    def files(self, commit: str | None) -> dict:
        """Path -> RepoFile of every file at a commit; {} for None."""
        from huggingface_hub.hf_api import RepoFile

        if commit is None:
            return {}
        entries = self.api.list_repo_tree(self.name, repo_type=self.kind, revision=commit, recursive=True)
        return {entry.path: entry for entry in entries if isinstance(entry, RepoFile)}

    def read(self, commit: str, path: str) -> bytes:
        """The content of a small file at a commit that lists it."""
        with tempfile.TemporaryDirectory() as folder:
            options = {"repo_type": self.kind, "revision": commit, "local_dir": folder}
            return Path(self.api.hf_hub_download(self.name, path, **options)).read_bytes()

    def create_branch(self, branch: str, private: bool) -> str:
        """Create the branch, or for main the repo; returns the commit that the branch points at."""
        if branch == "main":
            sdk = {"space_sdk": "gradio"} if self.kind == "space" else {}
            self.api.create_repo(self.name, repo_type=self.kind, private=private, exist_ok=True, **sdk)
        else:
            self.api.create_branch(self.name, branch=branch, repo_type=self.kind, exist_ok=True)
        if head := self.commit_of(branch):
            return head
        raise HubError(f"{self.name} has been created, and the Hub does not show its branch {branch} yet")


# Ownership

# owner(repo, commit of main, its files): what a repo holds that would be overwritten, or None
Owner = Callable[[Repo, str, Mapping], str | None]


def check_owner(repo: Repo, owner: Owner) -> tuple[str | None, dict]:
    """Check that a repo is ours or new: anything else would be overwritten.

    Returns:
        The commit of main, None for a repo that does not exist, and its listing.

    Raises:
        HubError: the Hub cannot be asked, or the repo is another's (permanent), by the name of a file.
    """
    with hub_errors(f"looking at {repo.name}"):
        commit = repo.commit_of()
        files = repo.files(commit)
        problem = owner(repo, commit, files) if commit else None
    if problem:
        words = f"{repo.name} {problem}, which would be overwritten: choose another repo, or delete that one on the Hub"
        raise HubError(words, permanent=True)
    return commit, files


def same_run(run: dict | None, results: Collection[str] = ()) -> Owner:
    """Ours is a repo whose run.json names `run`; without a run, one that holds no other files than `results`."""

    def owner(repo: Repo, commit: str, files: Mapping) -> str | None:
        if run is None:
            return foreign_file(path for path in files if path not in results)
        if "run.json" not in files:
            return foreign_file(files)
        try:
            there = json.loads(repo.read(commit, "run.json"))
        except (ValueError, RecursionError):
            there = None
        there = there if isinstance(there, dict) else {}
        # as a resumed run keeps them
        if all(there.get(key) == run.get(key) for key in ("id", "started", "model", "dataset")):
            return None
        return f"holds another run ({str(there.get('name'))[:100]}, started {str(there.get('started'))[:40]})"

    return owner


def foreign_file(files: Iterable[str]) -> str | None:
    others = [name for name in files if name not in NEW]
    return f"holds files of something else than a run ({others[0]})" if others else None


# Publishing


@dataclass(frozen=True)
class Commit:
    """Settings of one commit. branch: created where it does not exist. tag: moved to the commit. private: visibility
    of a repo that is created; an existing one keeps its own. force: also replace what people changed."""

    message: str
    owner: Owner
    tag: str | None = None
    branch: str = "main"
    private: bool = True
    force: bool = False


class Published(NamedTuple):
    """The result of a push. commit: holds it. sent: paths that had changed. unchanged: number of the others. kept:
    files that people changed there, which stay as they are."""

    commit: str
    url: str
    sent: list[str]
    unchanged: int
    kept: list[str]


def publish(repo: Repo, files: Publishable, commit: Commit) -> Published:
    """Put `files` (by path in the repo) into a repo, which is created if it does not exist.

    Files that the repo has already are not sent again; without a change no commit is made. What an earlier push sent
    and is not among `files` goes; a file that people changed stays (`compare`). The tag is set last, on a commit whose
    listing shows every file with the right size and hash. It may be repeated after any failure. Another push after the
    look at the repo fails it (412).

    Raises:
        HubError: it failed, or the repo is another's; a `permanent` error needs no retry.
    """
    main, remote = check_owner(repo, commit.owner)
    with hub_errors(f"pushing to {repo.name}"):
        head = main if commit.branch == "main" else repo.commit_of(commit.branch)
        head = result = head or repo.create_branch(commit.branch, commit.private)
        remote = remote if head == main else repo.files(head)
        changed, stale, kept = compare(repo, head, remote, files, commit.force)
        ours = {path: content for path, content in files.items() if path not in kept}
        tagged = repo.commit_of(commit.tag) if commit.tag else None
        if tagged and not any(compare(repo, tagged, repo.files(tagged), ours, commit.force)[:2]):
            changed, result = [], tagged
        elif changed or stale:
            result = send(repo, files, changed, stale, commit, head)
            there = repo.files(result)
            wrong = [path for path in ours if path not in there or not matches(ours[path], there[path])]
            if wrong := [*wrong, *(path for path in stale if path in there)]:
                raise HubError(f"pushing to {repo.name}: the Hub does not list {', '.join(wrong[:5])} as it was sent")
        if commit.tag and tagged != result:
            check_unchanged(ours)
            if tagged:
                repo.api.delete_tag(repo.name, tag=commit.tag, repo_type=repo.kind)
            repo.api.create_tag(repo.name, tag=commit.tag, revision=result, repo_type=repo.kind)
    return Published(result, repo.url(commit.tag), changed, len(ours) - len(changed), kept)


def publish_with_timeout(repo: Repo, files: Publishable, commit: Commit, report: Callable[[str], None] = print) -> None:
    """`publish`, in a process that is ended after a time limit; reports what was sent, and what stays as people changed
    it."""
    doing, total = f"pushing {commit.message} to {repo.name}", sum(map(size, files.values()))
    done = run_with_timeout(lambda: publish(repo, files, commit), doing, total)
    for path in done.kept:
        report(f"{path} of {repo.name} was changed by another user, and is kept")
    sent = f"{len(done.sent)} of {len(done.sent) + done.unchanged} files sent now, all verified"
    report(f"hub: {commit.message} is at {done.url} ({sent})")


def compare(
    repo: Repo, commit: str, remote: Mapping, files: Mapping[str, Content], force: bool = False
) -> tuple[list[str], list[str], list[str]]:
    """Compare files with the listing of a commit. What differs and was last changed by another user than a push stays:
    a corrected config.json, say. Weights are always those that are here.

    Returns:
        Paths that the commit does not hold as they are here; earlier ones of ours that have to go; those that stay.
    """
    differ = [path for path in files if path in remote and not matches(files[path], remote[path])]
    others = [path for path in remote if path not in files and path != ATTRIBUTES]
    ours, asked = set(), [*differ, *others]
    for start in range(0, len(asked), PATHS_AT_ONCE):
        some = asked[start : start + PATHS_AT_ONCE]
        entries = repo.api.get_paths_info(repo.name, some, expand=True, revision=commit, repo_type=repo.kind)
        ours |= {each.path for each in entries if each.last_commit and SIGNATURE in each.last_commit.title}
    kept = [path for path in differ if path not in ours and not path.endswith(WEIGHTS) and not force]
    if CARD in kept and repo.kind == "space" and SPACE_DEFAULT.fullmatch(repo.read(commit, CARD)):
        kept.remove(CARD)
    changed = [path for path in files if path not in remote or (path in differ and path not in kept)]
    return changed, [path for path in others if path in ours], kept


def send(repo: Repo, files: Publishable, changed: list[str], stale: list[str], commit: Commit, head: str) -> str:
    """Commit `changed` on top of `head`; fails (412) after another push in between. Files leave this machine here only.
    The client hashes every file, and its hash must be that of the scanned file.

    Raises:
        TypeError: the files have not been through the filter.
        HubError: a file has changed meanwhile.
    """
    if not isinstance(files, Publishable):
        raise TypeError("only Publishable files are sent")
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete

    adds = []
    for path in changed:
        content = files[path]
        adds.append(CommitOperationAdd(path, content if isinstance(content, bytes) else str(content.path)))
        if adds[-1].upload_info.sha256.hex() != digest(content):
            raise HubError(f"{content.path} has changed while it was being pushed")
    title = f"{redacted_text(commit.message)} {SIGNATURE}"
    options = {"repo_type": repo.kind, "revision": commit.branch, "parent_commit": head, "commit_message": title}
    try:
        return repo.api.create_commit(repo.name, [*adds, *map(CommitOperationDelete, stale)], **options).oid
    except Exception:
        check_unchanged(files)  # the Hub refuses what is not as it was hashed
        raise


def check_unchanged(files: Mapping[str, Content]) -> None:
    """Check that the files are as they were when they were hashed: a commit of two saves gets no tag.

    Raises:
        HubError: one has changed, or is gone.
    """
    for file in files.values():
        if isinstance(file, LocalFile):
            file.open().close()


# A dry run


def print_files(files: Mapping[str, Content], repo: str) -> None:
    """List what a push would send."""
    for path, content in sorted(files.items()):
        print(f"  {megabytes(size(content)):>12}  {path}")
    total = megabytes(sum(map(size, files.values())))
    print(f"dry run: {len(files)} files, {total}, would go to {repo}; nothing was sent")


def megabytes(size: int) -> str:
    return f"{size / 1e6:,.2f} MB" if size >= 10_000 else f"{size} bytes"
