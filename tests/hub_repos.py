"""Repos of the test Hub: files, commits, branches and tags, in memory."""

import hashlib
from dataclasses import dataclass, field


def git_hash(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


@dataclass(frozen=True)
class File:
    content: bytes
    lfs: bool

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.content).hexdigest()

    @property
    def oid(self) -> str:
        """Of an LFS file git knows the pointer only."""
        return git_hash(self.sha256.encode() if self.lfs else self.content)

    def entry(self, path: str) -> dict:
        entry = {"type": "file", "path": path, "size": len(self.content), "oid": self.oid}
        if self.lfs:
            entry["lfs"] = {"oid": self.sha256, "size": len(self.content), "pointerSize": 134}
        return entry


@dataclass
class Commit:
    id: str
    files: dict[str, File]
    title: str
    parent: str | None

    @property
    def subject(self) -> str:
        """The title without a push's signature."""
        return self.title.removesuffix(" (openrlhf_ebpo)")


@dataclass
class Repo:
    """One repo. `branches` and `tags` map a name to a commit's id; `files` is what a test looks at."""

    id: str
    type: str
    private: bool
    branches: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    commits: dict[str, Commit] = field(default_factory=dict)
    settings: dict = field(default_factory=dict)  # of a Space: sdk, variables, secrets

    def find(self, revision: str) -> Commit | None:
        return self.commits.get(self.branches.get(revision) or self.tags.get(revision) or revision)

    def files(self, revision: str = "main") -> dict[str, bytes]:
        return {path: file.content for path, file in self.find(revision).files.items()}

    def history(self, revision: str = "main") -> list[Commit]:
        """Newest first."""
        found = [self.find(revision)]
        while found[-1].parent:
            found.append(self.commits[found[-1].parent])
        return found

    def last_change(self, commit: Commit, path: str) -> Commit:
        """The commit that was the last to change a file."""
        while (parent := self.commits.get(commit.parent)) and parent.files.get(path) == commit.files.get(path):
            commit = parent
        return commit

    def commit(self, branch: str, files: dict[str, File], title: str) -> Commit:
        parent = self.branches.get(branch)
        name = hashlib.sha1(f"{self.type} {self.id} {branch} {len(self.commits)}".encode()).hexdigest()
        self.commits[name] = Commit(name, files, title, parent)
        self.branches[branch] = name
        return self.commits[name]
