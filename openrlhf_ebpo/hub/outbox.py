"""The queue of a run: snapshots of saved models that are still to be pushed, safe from clean-up and from crashes.

    <run>/hub/outbox/step-000010.<token>/push.json   where it goes; a folder without it does not count
                                         files/      what goes, under its path in the repo
    <run>/hub.json                                   the result of every step, with errors; written by the process that pushes
    <run>/hub/lock                                   held by the one process that pushes

The training adds snapshots, `openrlhf_ebpo.hub.push` removes them. A snapshot never changes: a repeated step gets a new
folder, and the newest one of a step counts.

Not huggingface_hub's CommitScheduler or run_as_future: their queue is a thread's, which ends with the process, and they
upload a folder while the training writes into it.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from collections.abc import Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.files import try_lock, write_json
from openrlhf_ebpo.hub.content import Content, sha256
from openrlhf_ebpo.hub.local_files import LocalFile, local_file
from openrlhf_ebpo.hub.model_files import contents, print_skipped
from openrlhf_ebpo.run.run_lock import read_holder
from openrlhf_ebpo.run.run_log import timestamp
from openrlhf_ebpo.seams import model_folder

FIELDS = ("step", "repo", "private", "token")  # of push.json
LINK_FROM = 1 << 20  # bytes; smaller files are copied, since they are written in place when a step is repeated


@dataclass(frozen=True)
class Item:
    """A snapshot in the outbox. token: tells it from a later snapshot of the same step."""

    path: Path
    step: int
    repo: str
    private: bool
    token: str
    sizes: dict[str, int]  # of what was put into files/
    hashes: dict[str, str]  # SHA-256 of the same
    not_secret: tuple[str, ...] = ()  # names of files that the user has checked

    def files(self) -> dict[str, Path]:
        """Path in the repo -> file: what was put into files/ and is there."""
        found = {name: self.path / "files" / name for name in self.sizes}
        return {name: path for name, path in found.items() if path.is_file()}


def step_tag(step: int) -> str:
    """Name of a step's tag on the Hub."""
    return f"step-{step:06d}"


def outbox(run_dir: str | Path) -> Path:
    return Path(run_dir) / "hub" / "outbox"


def items(run_dir: str | Path) -> list[Item]:
    """The newest snapshot of each step that waits, in the order of the steps."""
    found = [item for path in sorted(outbox(run_dir).glob("step-*")) if (item := _read(path))]
    newest = {item.step: item for item in found}
    return [newest[step] for step in sorted(newest)]


def pending(run_dir: str | Path) -> int:
    return len(items(run_dir))


def damaged(run_dir: str | Path) -> list[Path]:
    """Snapshots whose push.json, which names their repo, cannot be read."""
    return [path.parent for path in sorted(outbox(run_dir).glob("step-*/push.json")) if not _read(path.parent)]


def _read(path: Path) -> Item | None:
    """None for a damaged snapshot, or one that has been removed meanwhile: other steps must not wait for it."""
    try:
        stored = json.loads((path / "push.json").read_text())
        fields = [stored[name] for name in FIELDS]
        return Item(path, *fields, stored["files"], stored["sha256"], tuple(stored["not_secret"]))
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def add(
    run_dir: str | Path,
    step: int,
    model: str | Path,
    *,
    repo: str,
    private: bool = True,
    full_state: Iterable[Path] = (),
    not_secret: Collection[str] = (),
) -> Item:
    """Take a snapshot of an exported model, by hard links where the disk has them, and queue it. It replaces a snapshot
    of the same step that still waits.

    Args:
        full_state: folders of DeepSpeed checkpoints to go along, `<ckpt.path>/_actor/global_step10`.
        not_secret: names of files of the model that the user has checked.

    Raises:
        UsageError: the model is not complete and inert, or something in it may not be published.
        OSError: the disk is full, or the like.
    """
    run_dir = Path(run_dir)
    files = contents(run_dir, Path(model), full_state, not_secret)
    print_skipped(run_dir, Path(model), full_state)
    token = _new_token(run_dir)
    target = outbox(run_dir) / f"{step_tag(step)}.{token}"
    temporary = target.with_name(f".{os.getpid()}.new")
    tidy(run_dir)
    try:
        for name, content in files.items():
            put(content, temporary / "files" / name)
        sizes = {name: (temporary / "files" / name).stat().st_size for name in files}
        hashes = _hashes(temporary / "files", sizes)
        settings = {"step": step, "repo": repo, "private": private, "not_secret": sorted(not_secret)}
        what = {"files": sizes, "sha256": hashes, "token": token, "time": timestamp()}
        write_json(temporary / "push.json", {**settings, **what})
        temporary.rename(target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    for older in outbox(run_dir).glob(f"{step_tag(step)}.*"):
        if older.name < target.name:
            _remove(older)
    return _read(target)


def _new_token(run_dir: Path) -> str:
    """The time in nanoseconds, and later than every snapshot that waits, whatever the clock says."""
    waiting = (path.name.partition(".")[2] for path in outbox(run_dir).glob("step-*"))
    return f"{max(time.time_ns(), *(int(token) + 1 for token in waiting if token.isdigit()), 0):020d}"


def _hashes(files: Path, names: Collection[str]) -> dict[str, str]:
    """SHA-256 of the files of a snapshot. A linked file can change through its other name while it waits, which its size
    would not show. Shards are read several at a time, from the system's cache: they were written a moment ago."""
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        return dict(zip(names, pool.map(lambda name: sha256(local_file(files / name, files)), names), strict=True))


def put(content: Content, target: Path, links: bool = True) -> None:
    """Write a file, and its folders. A large one becomes a hard link where the disk has them, which keeps its content when
    the other name goes; without `links` every file is copied."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, bytes):
        target.write_bytes(content)
        return
    if links and content.size >= LINK_FROM:
        with contextlib.suppress(OSError):  # another file system, or one without hard links
            os.link(content.path, target)
            return
    with content.open() as source, open(target, "wb") as copy:
        shutil.copyfileobj(source, copy, 1 << 20)


def remove(item: Item) -> None:
    """Remove a pushed snapshot, and older ones of its step that a killed process has left."""
    for path in item.path.parent.glob(f"{step_tag(item.step)}.*"):
        if path.name <= item.path.name:
            _remove(path)


def _remove(path: Path) -> None:
    """push.json goes first, so that half a snapshot never counts. `tidy` removes what a network disk still holds."""
    (path / "push.json").unlink(missing_ok=True)
    shutil.rmtree(path, ignore_errors=True)


def tidy(run_dir: str | Path) -> None:
    """Remove parts of snapshots that killed processes have left: their links keep deleted weights on the disk."""
    for path in outbox(run_dir).glob(".*.new"):
        pid = int(path.name.split(".")[1])
        if pid == os.getpid() or not psutil.pid_exists(pid):
            shutil.rmtree(path, ignore_errors=True)
    for path in outbox(run_dir).glob("step-*"):
        if not (path / "push.json").exists():
            shutil.rmtree(path, ignore_errors=True)


def snapshot_files(item: Item) -> dict[str, LocalFile]:
    """Path in the repo -> file of a snapshot, compared with what was queued: a power failure may cut files, a user may
    delete some. `upload.send` compares the hashes of large files.

    Raises:
        UsageError: files are missing or have changed, are links, or the model is not complete.
    """
    files = {name: local_file(path, item.path) for name, path in item.files().items()}
    wrong = [name for name, size in item.sizes.items() if name not in files or files[name].size != size]
    wrong = wrong or [n for n, known in item.hashes.items() if files[n].size < LINK_FROM and sha256(files[n]) != known]
    found = (
        [f"{', '.join(wrong[:5])} not as queued"] if wrong else model_folder.problems(item.path / "files", code=False)
    )
    if found:
        raise UsageError(
            f"the snapshot {item.path} is damaged ({'; '.join(found)}): remove it, and push the step again with --repo "
            f"{item.repo} --step {item.step}"
        )
    known = {name: {"sha256": item.hashes.get(name), "cleared": name in item.not_secret} for name in files}
    return {name: replace(file, **known[name]) for name, file in files.items()}


def is_current(item: Item) -> bool:
    """True while the snapshot waits; False once the step has been saved again."""
    return (item.path / "push.json").exists()


# The result of every step


def read_state(run_dir: str | Path) -> dict:
    """hub.json: {"failed": failed attempts so far, "steps": {"10": {"state": pushing | pushed | failed, "repo", "attempts",
    "error", "commit", "time"}}}; empty if it is missing or damaged, which must not stop a push."""
    try:
        return json.loads((Path(run_dir) / "hub.json").read_text())
    except (FileNotFoundError, ValueError):
        return {"schema": 1, "failed": 0, "steps": {}}


def write_state(run_dir: str | Path, step: int, **changes) -> dict:
    """Change a step's entry; returns it."""
    path = Path(run_dir) / "hub.json"
    state = read_state(run_dir)
    entry = {"attempts": 0, "error": None, "commit": None, **state["steps"].get(str(step), {})}
    entry |= {**changes, "time": timestamp()}
    state["failed"] += changes.get("state") == "failed"
    state["steps"][str(step)] = entry
    state["steps"] = dict(sorted(state["steps"].items(), key=lambda row: int(row[0])))
    write_json(path, state)
    return entry


# One process pushes at a time


def take_lock(run_dir: str | Path):
    """The open lock file, or None where another process holds it. Released when it is closed or the process ends.

    Raises:
        UsageError: the disk knows no locks.
    """
    path = Path(run_dir) / "hub" / "lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    file = open(path, "a+")  # noqa: SIM115  held for as long as the caller keeps it
    if _locked(file):
        return file
    file.close()
    return None


def is_locked(run_dir: str | Path) -> bool:
    """True while a process holds the lock. Leaves no trace, and may be asked of a run that one may only read.

    Raises:
        UsageError: the disk knows no locks.
    """
    try:
        with open(Path(run_dir) / "hub" / "lock") as file:
            return not _locked(file, shared=True)
    except FileNotFoundError:
        return False


def _locked(file, shared: bool = False) -> bool:
    try:
        return try_lock(file, shared)
    except OSError as error:  # some network disks
        file.close()
        raise UsageError(
            f"{file.name} cannot be locked ({error.strerror}): the disk has no locks (flock), without which two processes "
            "could push at once. Put the run directory (--logger.run_dir) on another disk, or copy it there and push the copy"
        ) from error


def who_pushes(run_dir: str | Path) -> str:
    """Process id in the lock file."""
    with open(Path(run_dir) / "hub" / "lock") as lock:
        return str(read_holder(lock).get("pid", "unknown"))
