"""One push: files into a repo in one commit. "Pushed" means that the listing of the commit shows every file with the
right size and hash; then the tag is set. A repo of somebody else is refused, and what people have written into ours
stays.

publish(Repo(api, "owner/name"), files, Commit("step 10", tag="step-000010"), same_run(run))
"""

from __future__ import annotations

import itertools
import json
import re
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from openrlhf_ebpo.hub.content import Content, LocalFile, Publishable, matches, sha256, size
from openrlhf_ebpo.hub_client import HubError, hub_errors
from openrlhf_ebpo.redact import redacted_text

CARD = "README.md"
HASHES_FILE = "sha256.json"
NOT_HASHED = (CARD, ".gitattributes", HASHES_FILE)  # edited on the Hub; nothing loads them
USER_FILES = (CARD, "LICENSE")  # may be written by the user: theirs stay
NEW = (*USER_FILES, ".gitattributes")  # all that a repo holds which nobody has pushed to
SPACE_DEFAULT = re.compile(rb"---\n.*?\n---\s*Check out the configuration reference at \S+\s*", re.S)
MAX_FILES = 100_000  # of a repo
MAX_CARD_BYTES = 1 << 20


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
        """Path -> RepoFile of every file at a commit; {} for None.

        Raises:
            HubError: the listing does not end, or is none.
        """
        from huggingface_hub.hf_api import RepoFile

        if commit is None:
            return {}
        pages = self.api.list_repo_tree(self.name, repo_type=self.kind, revision=commit, recursive=True)
        entries = list(itertools.islice(pages, MAX_FILES + 1))
        if len(entries) > MAX_FILES:
            raise HubError(f"{self.name} lists more than {MAX_FILES} files", permanent=True)
        files = {entry.path: entry for entry in entries if isinstance(entry, RepoFile)}
        sizes = [size for entry in files.values() for size in (entry.size, entry.lfs.size if entry.lfs else 0)]
        if any(type(size) is not int or size < 0 for size in sizes):
            raise HubError(f"the listing of {self.name} has a size that is not a number of bytes", permanent=True)
        return files

    def read(self, commit: str, path: str) -> bytes:
        """The content of a small file at a commit that lists it."""
        with tempfile.TemporaryDirectory() as folder:
            options = {"repo_type": self.kind, "revision": commit, "local_dir": folder}
            return Path(self.api.hf_hub_download(self.name, path, **options)).read_bytes()

    def create_branch(self, branch: str, private: bool) -> str:
        """Create the branch, and the repo if it does not exist; returns the commit that the branch points at."""
        if branch == "main" or not self.commit_of():
            sdk = {"space_sdk": "gradio"} if self.kind == "space" else {}
            self.api.create_repo(self.name, repo_type=self.kind, private=private, exist_ok=True, **sdk)
        if branch != "main":
            self.api.create_branch(self.name, branch=branch, repo_type=self.kind, exist_ok=True)
        if head := self.commit_of(branch):
            return head
        raise HubError(f"{self.name} has been created, and the Hub does not show its branch {branch} yet")

    def set_tag(self, tag: str, commit: str) -> None:
        """Make a tag name `commit`, moving it where it named another one."""
        found = self.commit_of(tag)
        if found == commit:
            return
        if found:
            self.api.delete_tag(self.name, tag=tag, repo_type=self.kind)
        self.api.create_tag(self.name, tag=tag, revision=commit, repo_type=self.kind)
        if self.commit_of(tag) != commit:
            raise HubError(f"the Hub does not show the tag {tag} of {self.name} yet")


# Whose it is

# owner(repo, commit of main, its files): what a repo holds that would be overwritten, or None
Owner = Callable[[Repo, str, Mapping], str | None]


class NotOurs(HubError):
    """The repo holds something that would be overwritten."""


def check_owner(repo: Repo, owner: Owner) -> tuple[str | None, dict]:
    """Check that a repo is ours or new: anything else would be overwritten.

    Returns:
        The commit of main, None for a repo that does not exist, and its listing.

    Raises:
        NotOurs: names a file. HubError: the Hub cannot be asked.
    """
    with hub_errors(f"looking at {repo.name}"):
        commit = repo.commit_of()
        files = repo.files(commit)
        problem = owner(repo, commit, files) if commit else None
    if problem:
        raise NotOurs(
            f"{repo.name} {problem}, which would be overwritten: choose another repo, or delete that one on the Hub",
            permanent=True,
        )
    return commit, files


def same_run(run: dict) -> Owner:
    """Ours is a repo whose run.json names `run`."""

    def owner(repo: Repo, commit: str, files: Mapping) -> str | None:
        if "run.json" not in files:
            return stranger(files)
        try:
            there = json.loads(repo.read(commit, "run.json"))
        except (ValueError, RecursionError):
            there = None
        there = there if isinstance(there, dict) else {}
        if all(there.get(key) == run.get(key) for key in ("started", "model", "dataset")):  # the same in a resumed run
            return None
        return f"holds another run ({str(there.get('name'))[:100]}, started {str(there.get('started'))[:40]})"

    return owner


def stranger(files: Iterable[str]) -> str | None:
    others = [name for name in files if name not in NEW]
    return f"holds files of something else than a run ({others[0]})" if others else None


# Publishing


@dataclass(frozen=True)
class Commit:
    """How files are published. branch: created where it does not exist. tag: moved to the commit. private: visibility
    of a repo that is created; an existing one keeps its own."""

    message: str
    tag: str | None = None
    branch: str = "main"
    private: bool = True


@dataclass(frozen=True)
class Published:
    """The result of a push. commit: holds it. sent: paths that had changed. unchanged: number of the others. kept:
    files that people wrote there, which stay as they are."""

    commit: str
    url: str
    sent: tuple[str, ...]
    unchanged: int
    kept: tuple[str, ...] = ()


def publish(repo: Repo, files: Mapping[str, Content], commit: Commit, owner: Owner) -> Published:
    """Put `files` (by path in the repo) into a repo, which is created if it does not exist.

    Files that the repo has already are not sent again; without a change there is no commit. What the last push recorded
    in sha256.json and is not among `files` goes; a README.md or LICENSE that is not as the last push left it stays. The
    tag is set last, on a commit whose listing shows every file with the right size and hash. It may be repeated after
    any failure. Another push after the look at the repo fails it (412).

    Raises:
        NotOurs: the repo is somebody's. HubError: it failed; a `permanent` error needs no retry.
        UsageError: something that may not be published (`Publishable`).
    """
    files = Publishable(files)
    main, remote = check_owner(repo, owner)
    with hub_errors(f"pushing to {repo.name}"):
        head = main if commit.branch == "main" else repo.commit_of(commit.branch)
        head = head or repo.create_branch(commit.branch, commit.private)
        remote = remote if head == main else repo.files(head)
        recorded, kept = (read_manifest(repo, head, remote), []) if main else ({}, [])
        if main:
            kept = written_by_people(repo, head, remote, files, recorded)
        files = with_manifest(files, kept, recorded)
        result, (changed, stale) = head, difference(files, remote, recorded)
        tagged = repo.commit_of(commit.tag) if commit.tag else None
        if tagged and not any(difference(files, repo.files(tagged), recorded)):
            return Published(tagged, repo.url(commit.tag), (), len(files), tuple(kept))
        if changed or stale:
            result = send(repo, files, changed, stale, commit, head)
            wrong = list(itertools.chain(*difference(files, repo.files(result), recorded)))
            if wrong:
                raise HubError(f"pushing to {repo.name}: the Hub does not list {', '.join(wrong[:5])} as it was sent")
        if commit.tag:
            check_unchanged(files)
            repo.set_tag(commit.tag, result)
    url = repo.url(commit.tag or (None if commit.branch == "main" else commit.branch))
    return Published(result, url, tuple(changed), len(files) - len(changed), tuple(kept))


def with_manifest(files: Publishable, kept: Iterable[str] = (), recorded: Mapping | None = None) -> Publishable:
    """The files without those that stay as they are on the Hub, and with sha256.json: the hash of every file, and that
    of the card, by which the next push knows that nobody has edited it."""
    hashes = {path: sha256(file) for path, file in sorted(files.items()) if path not in kept}
    rows = {path: {"sha256": hashes[path], "size": size(files[path])} for path in hashes if path not in NOT_HASHED}
    card = hashes.get(CARD) or (recorded or {}).get(CARD)
    manifest = {"schema": 1, "files": rows, **({"card": card} if card else {})}
    return files.with_manifest(HASHES_FILE, (json.dumps(manifest, indent=2) + "\n").encode(), kept)


def read_manifest(repo: Repo, commit: str, remote: Mapping) -> dict[str, str]:
    """Path -> sha256 that the last push recorded, the card's included; {} if there was none."""
    if HASHES_FILE not in remote:
        return {}
    try:
        return parse_manifest(repo.read(commit, HASHES_FILE))
    except ValueError:
        return {}


def parse_manifest(text: bytes) -> dict[str, str]:
    """Path -> sha256 of a sha256.json, the card's included.

    Raises:
        ValueError: it is damaged.
    """
    try:
        found = json.loads(text)
        recorded = {path: row["sha256"] for path, row in found["files"].items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"is damaged ({error!r})") from error
    return {**recorded, **({CARD: found["card"]} if isinstance(found.get("card"), str) else {})}


def written_by_people(repo: Repo, commit: str, remote: Mapping, files: Mapping, recorded: Mapping) -> list[str]:
    """Paths of `files` that somebody else wrote, or has edited since the last push."""

    def is_ours(path: str) -> bool:
        if remote[path].size > MAX_CARD_BYTES:
            return False
        there = repo.read(commit, path)
        return sha256(there) == recorded.get(path) or (repo.kind == "space" and bool(SPACE_DEFAULT.fullmatch(there)))

    both = [path for path in USER_FILES if path in files and path in remote]
    return [path for path in both if not matches(files[path], remote[path]) and not is_ours(path)]


def difference(files: Mapping[str, Content], remote: Mapping, recorded: Iterable[str]) -> tuple[list[str], list[str]]:
    """Paths that the remote listing does not show as they are here, and remote ones of the last push that have to
    go."""
    wrong = [path for path, content in files.items() if path not in remote or not matches(content, remote[path])]
    return wrong, [path for path in recorded if path in remote and path not in (*files, *USER_FILES)]


def send(repo: Repo, files: Publishable, changed: list[str], stale: list[str], commit: Commit, head: str) -> str:
    """Commit `changed` on top of `head`; fails (412) after another push in between. Files leave this machine here only.
    The client hashes every file, and its hash must be that of the scanned file.

    Raises:
        TypeError: the files have not been through the filter.
        HubError: a file has changed meanwhile, or the repo's .gitignore leaves it out.
    """
    if not isinstance(files, Publishable):
        raise TypeError("only Publishable files are sent")
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete

    adds = []
    for path in changed:
        content = files[path]
        adds.append(CommitOperationAdd(path, content if isinstance(content, bytes) else str(content.path)))
        if adds[-1].upload_info.sha256.hex() != sha256(content):
            raise HubError(f"{content.path} has changed while it was being pushed")
    options = {"repo_type": repo.kind, "revision": commit.branch}
    try:
        repo.api.preupload_lfs_files(repo.name, adds, **options)
        if ignored := [each.path_in_repo for each in adds if getattr(each, "_should_ignore", False)]:
            names = ", ".join(ignored[:5])
            raise HubError(
                f"the .gitignore of {repo.name} leaves out {names}: take that line out of it on the Hub", permanent=True
            )
        operations = [*adds, *map(CommitOperationDelete, stale)]
        options |= {"parent_commit": head, "commit_message": redacted_text(commit.message)}
        return repo.api.create_commit(repo.name, operations, **options).oid
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
