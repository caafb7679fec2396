"""The exported models of a run that belong on the Hub, and which of them are there: what is to be pushed is the
difference.

Exported models are never deleted, so nothing has to be kept for a push: `checkpoints.jsonl` lists them, and the repo
has a tag with the same file hashes for each that is pushed. hub.json and the lock are for people, and for one pusher at
a time.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.files import try_lock, write_json
from openrlhf_ebpo.hub.content import matches
from openrlhf_ebpo.hub.model_files import model_content
from openrlhf_ebpo.hub.public import public_run
from openrlhf_ebpo.hub.publish import USER_FILES, Repo, check_owner, same_run
from openrlhf_ebpo.hub_client import hub_errors, in_time
from openrlhf_ebpo.run.checkpoints import final_model, saved
from openrlhf_ebpo.run.resume import BEST
from openrlhf_ebpo.run.run_lock import read_holder
from openrlhf_ebpo.run.run_log import LOCK, RunDirectoryError, dig, read_run, timestamp

RECORD = "hub.json"
STATES = ("waits", "pushing", "pushed", "failed")
LOCK_STDIN = 0  # through which a training hands the lock to the process that it starts


class Export(NamedTuple):
    """An exported model: the folder of the step's weights."""

    step: int
    model: Path

    def state(self) -> tuple:
        """Names, sizes and times of its files: other ones after it was exported again."""
        files = sorted(path for path in self.model.glob("*") if path.is_file())
        return tuple((path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in files)


def step_tag(step: int) -> str:
    """Name of a step's tag on the Hub."""
    return f"step-{step:06d}"


# Here


def exports(run_dir: Path) -> list[Export]:
    """List what a training with --hub.repo pushes, in the order of the steps: every --hub.every-th exported model and
    the final one.

    Raises:
        RunDirectoryError: checkpoints.jsonl or run.json is damaged.
    """
    run, every = read_run(run_dir) or {}, 1
    for flag in (("ckpt", "save_steps"), ("hub", "every")):
        number = dig(run, "args", *flag)
        every *= int(number) if isinstance(number, (int, float)) and 1 <= number < 1e9 else 1
    listed = [each for each in saved(run_dir) if each.model and not each.tag.startswith(BEST)]
    found = {each.step: each.model for each in listed if each.step % every == 0}
    if final := final_model(run_dir):
        found.setdefault(*final)
    return [Export(step, found[step]) for step in sorted(found)]


def all_exports(run_dir: Path) -> dict[int, Export]:
    """Every exported model by its step, that of the best checkpoint where there is no other."""
    listed = sorted((each for each in saved(run_dir) if each.model), key=lambda each: not each.tag.startswith(BEST))
    found = {each.step: Export(each.step, each.model) for each in listed}
    if final := final_model(run_dir):
        found.setdefault(final[0], Export(*final))
    return found


def is_training(run_dir: Path) -> bool:
    """True while the run is under way: run.json says so, and its supervisor or driver holds the lock."""
    try:
        if (read_run(run_dir) or {}).get("status") != "running":
            return False
        with open(run_dir / LOCK) as lock:
            return not try_lock(lock, shared=True)
    except FileNotFoundError:
        return False
    except (RunDirectoryError, OSError):  # run.json is being replaced, or the disk has no locks
        return True


# There


def tags(repo: Repo, run_dir: Path) -> dict[str, str]:
    """Tag -> commit of a repo of this run; {} if it does not exist.

    Raises:
        HubError: the Hub cannot be asked, or the repo holds something else.
    """
    owner = same_run(public_run(read_run(run_dir) or {}))

    def list_tags() -> dict[str, str]:
        commit, _ = check_owner(repo, owner)
        with hub_errors(f"listing the tags of {repo.name}"):
            refs = repo.api.list_repo_refs(repo.name).tags if commit else []
            return {ref.name: ref.target_commit for ref in refs}

    return in_time(list_tags, f"listing the tags of {repo.name}")


def is_pushed(repo: Repo, export: Export, known: Mapping[str, str]) -> bool:
    """True if the repo has the step's tag, on a commit with every file of the model as it is here. Of a model that was
    deleted here the tag is enough.

    Args:
        known: tag -> commit.

    Raises:
        HubError: the Hub cannot be asked. UsageError: the model here cannot be read.
    """
    commit = known.get(step_tag(export.step))
    if not commit or not export.model.is_dir():
        return bool(commit)

    def list_files() -> Mapping:
        with hub_errors(f"listing {repo.name}"):
            return repo.files(commit)

    there = in_time(list_files, f"listing {repo.name}")
    files = {path: file for path, file in model_content(export.model).items() if path not in USER_FILES}
    return all(path in there and matches(file, there[path]) for path, file in files.items())


# The record


def read_record(run_dir: str | Path) -> dict:
    """hub.json: {"repo", "failed": failed attempts so far, "steps": {"10": {"state", "attempts", "error", "url",
    "commit", "time"}}}; without what does not have this shape."""
    try:
        found = json.loads((Path(run_dir) / RECORD).read_text())
    except (OSError, ValueError, RecursionError):
        found = None
    found = found if isinstance(found, dict) else {}
    steps = found.get("steps") if isinstance(found.get("steps"), dict) else {}
    failed = found.get("failed")
    return {
        "schema": 1,
        "repo": found.get("repo") if isinstance(found.get("repo"), str) else None,
        "failed": failed if type(failed) is int else 0,
        "steps": {step: row for step, row in steps.items() if step.isdecimal() and _is_row(row)},
    }


def _is_row(row: object) -> bool:
    texts = ("error", "url", "commit", "time")
    is_known = isinstance(row, dict) and row.get("state") in STATES
    return is_known and all(isinstance(row.get(name, ""), (str, type(None))) for name in texts)


def record(run_dir: str | Path, repo: str, step: int, **changes) -> None:
    """Write the state of a step into hub.json."""
    found = read_record(run_dir)
    steps = found["steps"] if found["repo"] in (None, repo) else {}
    before = steps.get(str(step), {})
    row = {"attempts": 0, "error": None, "commit": None, "url": None, **before, **changes, "time": timestamp()}
    steps = dict(sorted({**steps, str(step): row}.items(), key=lambda each: int(each[0])))
    failed = found["failed"] + (changes.get("state") == "failed")
    write_json(Path(run_dir) / RECORD, {**found, "repo": repo, "failed": failed, "steps": steps})


# One process pushes at a time


def lock_path(run_dir: str | Path) -> Path:
    return Path(run_dir) / "hub" / "lock"


def take_lock(run_dir: str | Path):
    """The open lock file, or None where another process holds it. It is released when it is closed or the process
    ends. A process that was started with the lock as its standard input keeps it.

    Raises:
        UsageError: the disk has no locks.
    """
    path = lock_path(run_dir)
    path.parent.mkdir(parents=True, exist_ok=True)
    file = open(path, "a+")  # noqa: SIM115  held for as long as the caller keeps it
    with suppress(OSError):
        if os.path.samestat(os.fstat(LOCK_STDIN), os.fstat(file.fileno())):
            return file
    if _locked(file):
        return file
    file.close()
    return None


def is_locked(run_dir: str | Path) -> bool:
    """True while a process pushes. Leaves no trace, and may be asked of a run that one may only read.

    Raises:
        UsageError: the disk has no locks.
    """
    try:
        with open(lock_path(run_dir)) as file:
            return not _locked(file, shared=True)
    except FileNotFoundError:
        return False


def _locked(file, shared: bool = False) -> bool:
    try:
        return try_lock(file, shared)
    except OSError as error:  # some network disks
        file.close()
        raise UsageError(
            f"{file.name} cannot be locked ({error.strerror}): the disk has no locks (flock), without which two "
            "processes could push at once. Put the run directory (--logger.run_dir) on another disk, or copy it there "
            "and push the copy"
        ) from error


def who_pushes(run_dir: str | Path) -> str:
    """Process id in the lock file."""
    with open(lock_path(run_dir)) as lock:
        return str(read_holder(lock).get("pid", "unknown"))
