"""One push: files into a repo in one commit. "Pushed" means that the listing of the commit shows every file with the
right size and hash; then the tag is set. A repo of somebody else is refused, and what people have written into ours
stays.

publish(api, "owner/name", {"config.json": Path("..."), "prior.json": b"{}"}, message="step 10", tag="step-000010")
"""

from __future__ import annotations

import itertools
import json
import re
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from openrlhf_ebpo.hub.local_files import LocalFile, escape_names, local_file
from openrlhf_ebpo.hub.publishable import Content, Publishable, matches, sha256, size
from openrlhf_ebpo.hub_client import ADVICE, HubError, hub_errors
from openrlhf_ebpo.redact import redacted_text

CARD = "README.md"
MANIFEST = "sha256.json"
NOT_IN_MANIFEST = (CARD, ".gitattributes", MANIFEST)  # edited on the Hub; nothing loads them
PEOPLES = (CARD, "LICENSE")  # written by people too: theirs stay
NEW = (*PEOPLES, ".gitattributes")  # all that a repo holds which nobody has pushed to
SPACE_DEFAULT = re.compile(rb"---\n.*?\n---\s*Check out the configuration reference at \S+\s*", re.S)

ANY = object()

MAX_FILES = 100_000  # of a repo
MAX_CARD_BYTES = 1 << 20


@dataclass(frozen=True)
class Published:
    """The result of a push. commit: holds it. sent: paths that had changed. unchanged: number of the others. kept:
    files that people wrote there, which stay as they are."""

    commit: str
    url: str
    sent: tuple[str, ...]
    unchanged: int
    kept: tuple[str, ...] = ()


@dataclass(frozen=True)
class Planned:
    """One file of a dry run. state: new, changed, unchanged, deleted, stays (somebody else wrote it), or unknown (the
    Hub cannot be asked). places: where something is taken out of it before it goes."""

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
    based_on: str | object | None = ANY,
) -> Published:
    """Put `files` (path in repo -> file or bytes) into a repo, which is created if it does not exist. A Path stands
    for the regular file there, which no link may lead out of its folder.

    Files that the repo has already are not sent again; without a change there is no commit. What the last push recorded
    in sha256.json and is not among `files` goes; a README.md or LICENSE that is not as the last push left it stays. The
    tag is set last, on a commit whose listing shows every file with the right size and hash. It may be repeated after
    any failure.

    Args:
        private: visibility of a repo that is created; an existing one keeps its own.
        revision: branch to commit to, "main" if None; created where it does not exist.
        based_on: commit of the branch that the files were made for, None for a new branch: the push fails (412) if
            another push came since. Between listing and commit this is always checked.

    Raises:
        HubError: it failed; a `permanent` error needs no retry.
        UsageError: something that may not be published (`Publishable`); a link.
    """
    files, branch = publishable(files), revision or "main"
    with hub_errors(f"pushing to {repo}"):
        head = commit_of(api, repo, repo_type, branch)
        if based_on is not ANY and head != based_on:
            raise HubError(f"pushing to {repo}: {ADVICE[412]}", 412)
        is_new = not (head or commit_of(api, repo, repo_type, "main"))
        head = head or create_branch(api, repo, repo_type, branch, private)
        remote = listing(api, repo, repo_type, head)
        recorded = {} if is_new else read_manifest(api, repo, repo_type, head, remote)
        kept = [] if is_new else written_by_people(api, repo, repo_type, head, remote, files, recorded)
        files = with_manifest(files, kept, recorded)
        tagged = commit_of(api, repo, repo_type, tag) if tag else None
        if tagged and not any(difference(files, listing(api, repo, repo_type, tagged), recorded)):
            return Published(tagged, url_of(api, repo, repo_type, tag), (), len(files), tuple(kept))
        commit, (changed, stale) = head, difference(files, remote, recorded)
        if changed or stale:
            try:
                commit = send(api, repo, repo_type, branch, head, files, changed, stale, message)
            except Exception:
                check_unchanged(files)  # the Hub refuses what is not as it was hashed
                raise
            wrong, left = difference(files, listing(api, repo, repo_type, commit), recorded)
            if wrong or left:
                raise HubError(
                    f"pushing to {repo}: the Hub does not list {', '.join([*wrong, *left][:5])} as it was sent"
                )
        if tag:
            check_unchanged(files)
            set_tag(api, repo, repo_type, tag, commit)
    url = url_of(api, repo, repo_type, tag or revision)
    return Published(commit, url, tuple(changed), len(files) - len(changed), tuple(kept))


def plan(api, repo: str, files: Mapping[str, Content | Path], *, repo_type: str = "model") -> list[Planned]:
    """List what `publish` would do, for --dry_run; nothing is created. Every file would go to a new repo."""
    files, remote, recorded, kept = publishable(files), {}, {}, []
    try:
        commit, remote = head_of(api, repo, repo_type)
        if commit:
            recorded = read_manifest(api, repo, repo_type, commit, remote)
            kept = written_by_people(api, repo, repo_type, commit, remote, files, recorded)
        new = "new"
    except HubError as error:
        new = "new" if error.status in (401, 404) else "unknown"
    files = with_manifest(files, kept, recorded)
    changed, stale = difference(files, remote, recorded)
    states = {path: "changed" if path in remote else new for path in changed}
    planned = [
        Planned(path, size(file), states.get(path, "unchanged"), getattr(file, "places", ()))
        for path, file in sorted(files.items())
    ]
    planned += [Planned(path, remote[path].size, "stays") for path in kept]
    return planned + [Planned(path, remote[path].size, "deleted") for path in stale]


def print_plan(planned: list[Planned], repo: str) -> None:
    """Print a line for each file, and a total of what would be sent."""
    for file in planned:
        print(f"  {megabytes(file.size):>12}  {file.state:<9}  {file.path}")
        if file.places:
            print(f"{'':27}secrets, home folders or local paths are taken out of: {escape_names(file.places, most=12)}")
    sent = [file.size for file in planned if file.state not in ("unchanged", "deleted", "stays")]
    print(f"dry run: {len(sent)} of {len(planned)} files, {megabytes(sum(sent))}, would go to {repo}; nothing was sent")


def megabytes(size: int) -> str:
    return f"{size / 1e6:,.2f} MB" if size >= 10_000 else f"{size} bytes"


# Local files


def publishable(files: Mapping[str, Content | Path]) -> Publishable:
    """Pass `files` through the filter, whoever put them together.

    Raises:
        UsageError: something among them may not be published.
    """
    return Publishable({path: local_file(file) if isinstance(file, Path) else file for path, file in files.items()})


def with_manifest(
    files: Publishable, kept: Iterable[str] = (), recorded: Mapping[str, str] | None = None
) -> Publishable:
    """The files without those that stay as they are on the Hub, and with sha256.json: the hash of every file, and that
    of the card, by which the next push knows that nobody has edited it."""
    files = files.without(kept)
    hashes = {path: sha256(file) for path, file in sorted(files.items())}
    rows = {path: {"sha256": hashes[path], "size": size(files[path])} for path in hashes if path not in NOT_IN_MANIFEST}
    card = hashes.get(CARD) or (recorded or {}).get(CARD)
    manifest = {"schema": 1, "files": rows, **({"card": card} if card else {})}
    return files.with_manifest(MANIFEST, (json.dumps(manifest, indent=2) + "\n").encode())


def check_unchanged(files: Mapping[str, Content]) -> None:
    """Check that the files are as they were when they were hashed: a commit of two saves gets no tag.

    Raises:
        HubError: one has changed, or is gone.
    """
    for file in files.values():
        if isinstance(file, LocalFile):
            file.open().close()


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
        HubError: the listing does not end, or is none.
    """
    from huggingface_hub.hf_api import RepoFile

    pages = api.list_repo_tree(repo, repo_type=repo_type, revision=commit, recursive=True)
    entries = list(itertools.islice(pages, MAX_FILES + 1))
    if len(entries) > MAX_FILES:
        raise HubError(f"{repo} lists more than {MAX_FILES} files", permanent=True)
    files = {entry.path: entry for entry in entries if isinstance(entry, RepoFile)}
    sizes = [size for entry in files.values() for size in (entry.size, entry.lfs.size if entry.lfs else 0)]
    if any(type(size) is not int or size < 0 for size in sizes):
        raise HubError(f"the listing of {repo} has a size that is not a number of bytes", permanent=True)
    return files


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


def read_manifest(api, repo: str, repo_type: str, commit: str, remote: Mapping) -> dict[str, str]:
    """Path -> sha256 that the last push recorded, the card's included; {} if there was none."""
    if MANIFEST not in remote:
        return {}
    try:
        return parse_manifest(read_file(api, repo, repo_type, commit, MANIFEST))
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


def written_by_people(
    api, repo: str, repo_type: str, commit: str, remote: Mapping, files: Mapping[str, Content], recorded: Mapping
) -> list[str]:
    """Paths of `files` that somebody else wrote, or has edited since the last push."""

    def is_ours(path: str) -> bool:
        if remote[path].size > MAX_CARD_BYTES:
            return False
        there = read_file(api, repo, repo_type, commit, path)
        return sha256(there) == recorded.get(path) or (repo_type == "space" and bool(SPACE_DEFAULT.fullmatch(there)))

    theirs = [path for path in PEOPLES if path in files and path in remote and not matches(files[path], remote[path])]
    return [path for path in theirs if not is_ours(path)]


def check_owner(
    api, repo: str, repo_type: str, mark: str, check: Callable[[bytes], str | None]
) -> tuple[str | None, dict]:
    """Check that a repo is ours, which its file `mark` says, or new: anything else would be overwritten.

    Args:
        check: what is wrong with the content of `mark`, or None.

    Returns:
        The commit of main, None for a new repo, and its listing.

    Raises:
        HubError: it is somebody's; names a file.
    """
    commit, names = head_of(api, repo, repo_type)
    if mark in names:
        problem = check(read_file(api, repo, repo_type, commit, mark))
    else:
        others = [name for name in names if name not in NEW]
        problem = f"holds files of something else than a run ({others[0]})" if others else None
    if problem:
        raise HubError(
            f"{repo} {problem}, which would be overwritten: choose another repo, or delete that one on the Hub",
            permanent=True,
        )
    return commit, names


def check_same_run(api, repo: str, here: dict, repo_type: str = "model") -> str | None:
    """`check_owner` by run.json, which names the run. Returns the commit of main, None for a new repo."""

    def check(text: bytes) -> str | None:
        try:
            there = json.loads(text)
        except (ValueError, RecursionError):
            there = None
        there = there if isinstance(there, dict) else {}
        if all(there.get(key) == here.get(key) for key in ("started", "model", "dataset")):  # the same in a resumed run
            return None
        return f"holds another run ({str(there.get('name'))[:100]}, started {str(there.get('started'))[:40]})"

    return check_owner(api, repo, repo_type, "run.json", check)[0]


def difference(files: Mapping[str, Content], remote: Mapping, recorded: Iterable[str]) -> tuple[list[str], list[str]]:
    """Paths that the remote listing does not show as they are here, and remote ones of the last push that have to
    go."""
    wrong = [path for path, content in files.items() if path not in remote or not matches(content, remote[path])]
    return wrong, [path for path in recorded if path in remote and path not in (*files, *PEOPLES)]


def send(api, repo, repo_type, branch, head, files: Publishable, changed, stale, message) -> str:
    """Commit `changed` on top of `head`; fails (412) after another push in between. Files leave this machine here only.
    The client hashes every file, and its hash must be that of the scanned file.

    Raises:
        TypeError: the files have not been through the filter.
        HubError: a file has changed meanwhile, or the repo's .gitignore leaves it out.
    """
    if not isinstance(files, Publishable):
        raise TypeError("only Publishable files are sent")
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete

    operations = []
    for path in changed:
        content = files[path]
        add = CommitOperationAdd(path, content if isinstance(content, bytes) else str(content.path))
        if add.upload_info.sha256.hex() != sha256(content):
            raise HubError(f"{content.path} has changed while it was being pushed")
        operations.append(add)
    operations += [CommitOperationDelete(path) for path in stale]
    how = {"repo_type": repo_type, "revision": branch}
    api.preupload_lfs_files(repo, [each for each in operations if isinstance(each, CommitOperationAdd)], **how)
    ignored = [each.path_in_repo for each in operations if getattr(each, "_should_ignore", False)]
    if ignored:
        raise HubError(
            f"the .gitignore of {repo} leaves out {', '.join(ignored[:5])}: take that line out of it on the Hub",
            permanent=True,
        )
    how |= {"parent_commit": head, "commit_message": redacted_text(message)}
    return api.create_commit(repo, operations, **how).oid


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
