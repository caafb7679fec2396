"""The outbox of a run: what is still to be pushed, in snapshots that neither clean-up nor a crash can touch.

    <run>/hub/outbox/step-000010/push.json     where it goes; written last, so a folder without it does not count
                                 files/        what goes, under its path in the repo
                                 card/         README.md and pictures, made at the first attempt
    <run>/hub.json                             what became of every step, with errors; written by whoever pushes
    <run>/hub/lock                             held by the one process that pushes

The training process adds, `openrlhf_ebpo.hub.push` takes away.

Not huggingface_hub's CommitScheduler or run_as_future: their queue is a thread's, which ends with the process, and a
folder that is uploaded while training writes into it is no snapshot of a step.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import uuid
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.files import try_lock, write_json
from openrlhf_ebpo.hub.content import Content, sha256
from openrlhf_ebpo.hub.local_files import LocalFile, local_file
from openrlhf_ebpo.hub.model_files import contents, say_what_stays
from openrlhf_ebpo.run.run_log import timestamp
from openrlhf_ebpo.seams import model_folder

CARD = ("README.md", "images/training.png", ".eval_results/openrlhf_ebpo.yaml")
STATES = ("pushing", "pushed", "failed")
FIELDS = {"step": int, "repo": str, "private": bool, "branch_per_step": bool, "token": str}  # of push.json
LINK_FROM = 1 << 20  # bytes; smaller files are copied, since they are written in place when a step is repeated


@dataclass(frozen=True)
class Item:
    """A snapshot in the outbox. token: tells it from a later snapshot of the same step."""

    path: Path
    step: int
    repo: str
    private: bool
    branch_per_step: bool
    token: str
    sizes: dict[str, int]  # of what was put into files/
    hashes: dict[str, str]  # SHA-256 of the same
    not_secret: tuple[str, ...] = ()  # names that the user has looked through

    def files(self) -> dict[str, Path]:
        """Path in the repo -> file: what was put into files/, and the card where it has been made."""
        found = {name: self.path / "files" / name for name in self.sizes}
        found |= {name: self.path / "card" / name for name in CARD}
        return {name: path for name, path in found.items() if path.is_file()}


def step_tag(step: int) -> str:
    """Name of a step's tag on the Hub."""
    return f"step-{step:06d}"


def outbox(run_dir: str | Path) -> Path:
    return Path(run_dir) / "hub" / "outbox"


def items(run_dir: str | Path) -> list[Item]:
    """What is to be pushed, in the order of the steps."""
    found = [_read(path) for path in sorted(outbox(run_dir).glob("step-*"))]
    return [item for item in found if item]


def pending(run_dir: str | Path) -> int:
    return len(items(run_dir))


def damaged(run_dir: str | Path) -> list[Path]:
    """Snapshots whose push.json cannot be read: nobody knows where they were to go."""
    return [path.parent for path in sorted(outbox(run_dir).glob("step-*/push.json")) if not _read(path.parent)]


def _read(path: Path) -> Item | None:
    """None where it was taken away meanwhile, or is damaged: what has become of one step must not hold the others up."""
    try:
        if not (path / "push.json").is_file():  # a FIFO would make its reader wait
            return None
        wanted = json.loads((path / "push.json").read_text())
        fields = {name: kind(wanted[name]) for name, kind in FIELDS.items()}
        sizes = {str(name): int(size) for name, size in wanted["files"].items()}
        hashes = {str(name): str(known) for name, known in wanted["sha256"].items()}
        return Item(path, **fields, sizes=sizes, hashes=hashes, not_secret=tuple(map(str, wanted["not_secret"])))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return None


def add(
    run_dir: str | Path,
    step: int,
    model: str | Path,
    *,
    repo: str,
    private: bool = True,
    branch_per_step: bool = False,
    full_state: Iterable[Path] = (),
    not_secret: Collection[str] = (),
) -> Item:
    """Take a snapshot of an exported model, by hard links where the disk has them, and queue it.

    A snapshot of the same step that still waits is replaced: the step has been repeated.

    Args:
        full_state: folders of DeepSpeed checkpoints to go along, `<ckpt.path>/_actor/global_step10`.
        not_secret: names of files of the model that the user has looked through.

    Raises:
        UsageError: the model is not whole and inert, or something in it may not be published.
        OSError: the disk is full, or the like.
    """
    run_dir = Path(run_dir)
    files = contents(run_dir, Path(model), full_state, not_secret)
    say_what_stays(run_dir, Path(model), full_state)
    target = outbox(run_dir) / step_tag(step)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.new")
    finish_left_overs(run_dir)
    try:
        for name, content in files.items():
            _put(content, temporary / "files" / name)
        sizes = {name: (temporary / "files" / name).stat().st_size for name in files}
        hashes = _hashes(temporary / "files", sizes, step)
        settings = {"step": step, "repo": repo, "private": private, "branch_per_step": branch_per_step}
        settings["not_secret"] = sorted(not_secret)
        what = {"files": sizes, "sha256": hashes, "token": uuid.uuid4().hex, "time": timestamp()}
        write_json(temporary / "push.json", {**settings, **what})
        _put_in_place(temporary, target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return _read(target)


def _hashes(files: Path, sizes: Mapping[str, int], step: int) -> dict[str, str]:
    """Of a snapshot's files. Its large ones have another name, through which they could change while they wait, and
    their size would not tell. Read once, several at a time: shards lie in the system's cache, having just been written."""
    if (total := sum(sizes.values())) > 1e9:
        print(
            f"hub: step {step}: reading {total / 1e9:.1f} GB once, for the hashes that the push is held against",
            flush=True,
        )
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        return dict(zip(sizes, pool.map(lambda name: sha256(local_file(files / name, files)), sizes), strict=True))


def _put(content: Content, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, bytes):
        target.write_bytes(content)
    else:
        link(content, target)


def link(source: LocalFile, target: Path) -> None:
    """Give a large file a second name, which stays when the first one goes; copy where that is not possible."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.size >= LINK_FROM and _linked(source, target):
        return
    with source.open() as opened, open(target, "wb") as copy:
        shutil.copyfileobj(opened, copy)


def _linked(source: LocalFile, target: Path) -> bool:
    try:
        os.link(source.path, target)
    except OSError:  # another file system, or one without hard links
        return False
    return True


def remove(item: Item) -> None:
    """Take a pushed snapshot away, unless a repeated step has put a new one in its place meanwhile."""
    aside = item.path.with_name(f".{item.path.name}.pushed")
    shutil.rmtree(aside, ignore_errors=True)
    item.path.rename(aside)
    found = _read(aside)
    if found and found.token != item.token:
        aside.rename(item.path)
        return
    shutil.rmtree(aside, ignore_errors=True)  # what a network disk still holds is left to `tidy`


def tidy(run_dir: str | Path) -> None:
    """Finish what a process was killed at in `remove`. For whoever holds the lock."""
    finish_left_overs(run_dir)
    done = {row.get("token") for row in read_state(run_dir)["steps"].values() if row["state"] == "pushed"}
    for aside in outbox(run_dir).glob(".step-*.pushed"):
        target = aside.with_name(aside.name[1:].removesuffix(".pushed"))
        found = _read(aside)
        if found and found.token not in done and not target.exists():
            aside.rename(target)
        else:
            shutil.rmtree(aside, ignore_errors=True)


def snapshot_files(item: Item) -> dict[str, LocalFile]:
    """Path in the repo -> file, of a snapshot that is still as it was queued: a power failure may truncate files, a user
    delete some. Large files have another name, through which they may have changed; `upload.send` compares their hashes.

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


def current(item: Item) -> bool:
    """Whether the snapshot is still the one that was read: a repeated step replaces it."""
    found = _read(item.path)
    return bool(found) and found.token == item.token


def finish_left_overs(run_dir: str | Path) -> None:
    """What processes left in `add` that were killed: a whole snapshot, which may have been about to replace one, is put
    in its place; a part of one is removed, since its links keep deleted weights on the disk."""
    for path in outbox(run_dir).glob(".step-*.new"):
        _, name, pid, _ = path.name.split(".")
        if int(pid) != os.getpid() and psutil.pid_exists(int(pid)):
            continue
        mine = path.with_name(f".{name}.{os.getpid()}.new")
        with contextlib.suppress(FileNotFoundError):  # another process was faster
            path.rename(mine)
            if _read(mine):
                _put_in_place(mine, path.with_name(name))
        shutil.rmtree(mine, ignore_errors=True)


def _put_in_place(whole: Path, target: Path) -> None:
    _remove(target)
    whole.rename(target)


def _remove(path: Path) -> None:
    """Remove a folder so that it never counts half removed."""
    (path / "push.json").unlink(missing_ok=True)
    shutil.rmtree(path, ignore_errors=True)


# What became of every step


def read_state(run_dir: str | Path) -> dict:
    """hub.json: {"failed": failed attempts so far, "steps": {"10": {"state": pushing | pushed | failed, "repo", "attempts", "error", "commit", "time"}}}"""
    found = _whole_state(Path(run_dir) / "hub.json")
    return found or {"schema": 1, "failed": 0, "steps": {}}


def _whole_state(path: Path) -> dict | None:
    """None where there is none, or a damaged one: it only tells, and must not keep anything from being pushed."""
    try:
        found = json.loads(path.read_text())
        whole = isinstance(found["failed"], int) and all(map(_whole_entry, found["steps"].items()))
    except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return found if whole else None


def _whole_entry(row: tuple[str, object]) -> bool:
    step, entry = row
    if not (step.isascii() and step.isdigit() and len(step) < 20 and isinstance(entry, dict)):
        return False
    return entry.get("state") in STATES and isinstance(entry.get("attempts"), int)


def write_state(run_dir: str | Path, step: int, **changes) -> dict:
    """Change a step's entry; returns it."""
    path = Path(run_dir) / "hub.json"
    if path.exists() and not _whole_state(path):
        path.rename(path.with_name("hub.json.damaged"))
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
    """Whether a process holds the lock. Leaves no trace, and may be asked of a run that one may only read.

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


def write_pid(lock) -> None:
    """For people only, so a full disk is no reason to stop."""
    with contextlib.suppress(OSError):
        os.truncate(lock.fileno(), 0)
        os.write(lock.fileno(), f"{os.getpid()}\n".encode())


def who_pushes(run_dir: str | Path) -> str:
    """Process id in the lock file."""
    return (Path(run_dir) / "hub" / "lock").read_text().strip() or "unknown"
