"""openrlhf-ebpo hub status: what of a run is on the Hub, what is under way, what waits, and why.

Nothing is asked of the Hub, nothing is changed, and no token is needed: it reads what the process that pushes has noted in
the run directory, of a training that goes on too.

  openrlhf-ebpo hub status RUN_DIR
  openrlhf-ebpo hub status RUN_DIR --json           for programs
  watch -n 5 openrlhf-ebpo hub status RUN_DIR

Exit status: 0, all that was saved is pushed. 3, something waits or is under way, and somebody pushes it. 1, it needs you: a
push has failed; something waits and nobody pushes it, or for over an hour; a step could not be queued, or its snapshot is
damaged or gone. Also where RUN_DIR is no run.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path

from openrlhf_ebpo.command import command
from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.hub import outbox
from openrlhf_ebpo.hub.outbox import Item
from openrlhf_ebpo.hub.push_command import find_run
from openrlhf_ebpo.hub.training import not_queued
from openrlhf_ebpo.hub.upload import megabytes
from openrlhf_ebpo.redact import redacted_text
from openrlhf_ebpo.run.checkpoints import saved
from openrlhf_ebpo.run.run_log import RunDirectoryError, read_run

DONE, WAITS, NEEDS_YOU = 0, 3, 1
LOST = ("gone", "lost")  # states
LONG_SECONDS = 3600.0
MAX_TEXT_CHARS = 500


@dataclass(frozen=True)
class Step:
    """state: waits, pushing, failed, pushed, gone (not pushed, and its snapshot was taken away), or lost (saved, and never
    queued). seconds: since that was noted. total: bytes of the snapshot."""

    step: int
    state: str
    repo: str
    attempts: int
    seconds: float
    error: str | None = None
    url: str | None = None
    total: int | None = None


@dataclass(frozen=True)
class Status:
    """pusher: id of the process that pushes, None where there is none; pusher_seconds: since when it does."""

    run_dir: str
    run: str
    repo: str | None
    pusher: int | None
    pusher_seconds: float | None
    failed_attempts: int
    steps: list[Step]
    not_queued: list[dict]
    damaged: list[str]

    @property
    def code(self) -> int:
        open_steps = [step for step in self.steps if step.state not in ("pushed", *LOST)]
        alone = bool(open_steps) and self.pusher is None
        late = any(step.state == "failed" or step.seconds > LONG_SECONDS for step in open_steps)
        lost = self.not_queued or self.damaged or any(step.state in LOST for step in self.steps)
        if alone or late or lost:
            return NEEDS_YOU
        return WAITS if open_steps else DONE


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "run_dir", type=Path, metavar="RUN_DIR", help="the run directory, with run.json in it, or the folder it is in"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> None:
    status = read_status(find_run(args.run_dir))
    print(json.dumps({**asdict(status), "exit": status.code}, indent=2) if args.json else "\n".join(lines(status)))
    if status.code:
        sys.exit(status.code)


# What there is to know. Every text may come from anywhere: hub.json is a file like any other.


def read_status(run_dir: Path, now: datetime | None = None) -> Status:
    """
    Raises:
        UsageError: the run was never to be pushed.
    """
    now = now or datetime.now(timezone.utc)
    state, waiting, lost = outbox.read_state(run_dir), outbox.items(run_dir), _lost(run_dir)
    found = read_run(run_dir) or {}
    repo = _inner(found, "args", "hub", "repo")
    if not (repo or state["steps"] or waiting or lost):
        raise UsageError(
            f"{run_dir}: nothing is pushed, for it was trained without --hub.repo; push a saved model with openrlhf-ebpo hub "
            f"push {shlex.quote(str(run_dir))} --repo owner/name"
        )
    pushes = outbox.is_locked(run_dir)
    known = steps(state["steps"], waiting, pushes, now)
    never = never_queued(run_dir, found, {str(step.step) for step in known} | {row["step"] for row in lost})
    return Status(
        run_dir=str(run_dir),
        run=plain(f"{found.get('name')}, {found.get('status')}"),
        repo=plain(repo) or next((plain(item.repo) for item in waiting), None),
        pusher=_process(run_dir) if pushes else None,
        pusher_seconds=_age(_modified(run_dir / "hub" / "lock"), now) if pushes else None,
        failed_attempts=state["failed"],
        steps=sorted([*known, *never], key=lambda step: step.step),
        not_queued=lost,
        damaged=[str(path) for path in outbox.damaged(run_dir)],
    )


def _inner(value, *names: str):
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _lost(run_dir: Path) -> list[dict]:
    try:
        rows = [row for row in not_queued(run_dir) if isinstance(row, dict)]
    except (ValueError, RecursionError):
        return [{"step": None, "error": "hub/not_queued.jsonl is damaged: some step was not queued"}]
    return [{"step": plain(row.get("step")), "error": plain(row.get("error"))} for row in rows]


def steps(noted: dict, waiting: Iterable[Item], pushes: bool, now: datetime) -> list[Step]:
    """One of each step that was pushed or waits. A snapshot that waits counts more than an earlier one that was pushed."""
    items = {item.step: item for item in waiting}
    found = {}
    for name, entry in noted.items():
        item = items.get(int(name))
        if not item or entry.get("token") == item.token:
            found[int(name)] = _noted(int(name), entry, items.pop(int(name), None), pushes, now)
    found |= {step: Step(step, "waits", plain(item.repo), 0, _age(_queued(item), now)) for step, item in items.items()}
    return list(found.values())


def _noted(step: int, entry: dict, item: Item | None, pushes: bool, now: datetime) -> Step:
    state = entry["state"]
    if state == "pushing" and not pushes:
        state = "waits"  # the process that pushed it has ended
    if not item and state != "pushed":
        state = "gone"
    texts = [plain(entry.get(name)) for name in ("repo", "error", "url")]
    total = sum(item.sizes.values()) if item else None
    return Step(
        step, state, texts[0], entry["attempts"], _age(entry.get("time"), now), *(t or None for t in texts[1:]), total
    )


def never_queued(run_dir: Path, run: dict, known: Collection[str]) -> list[Step]:
    """Steps that the training has saved for a push and that nothing else tells of: a disk may be too full for the note of
    a failure as well."""
    hub, ckpt = (_inner(run, "args", name) or {} for name in ("hub", "ckpt"))
    try:
        every = int(ckpt.get("save_steps") or 0) * int(hub.get("every") or 1)
        rows = [each.step for each in saved(run_dir) if each.model]
    except (AttributeError, ValueError, TypeError, RunDirectoryError):  # somebody else's files
        return []
    if not (hub.get("repo") and every > 0):
        return []
    if run.get("status") == "running":
        rows = rows[:-1]  # which may be about to be queued
    error = f"saved, and never queued: openrlhf-ebpo hub push {shlex.quote(str(run_dir))} --repo OWNER/NAME --step"
    lost = [step for step in rows if step % every == 0 and str(step) not in known]
    return [Step(step, "lost", plain(hub["repo"]), 0, 0.0, f"{error} {step}") for step in lost]


def _queued(item: Item) -> str | None:
    try:
        return _modified(item.path / "push.json")
    except OSError:  # taken away meanwhile
        return None


def _process(run_dir: Path) -> int:
    """0 where it has not written its id yet."""
    text = outbox.who_pushes(run_dir)
    return int(text) if text.isascii() and text.isdigit() and len(text) < 12 else 0


def _modified(path: Path) -> str:
    return datetime.fromtimestamp(path.stat().st_mtime, timezone.utc).isoformat()


def _age(time, now: datetime) -> float:
    """Seconds since a time in ISO 8601; 0 where it is none."""
    try:
        return max((now - datetime.fromisoformat(time)).total_seconds(), 0.0)
    except (ValueError, TypeError):
        return 0.0


def plain(text) -> str:
    """A text for the terminal: one line, without secrets, and without signs that a terminal obeys."""
    text = "" if text is None else " ".join(redacted_text(str(text)[: 4 * MAX_TEXT_CHARS]).split())
    text = text if text.isprintable() else repr(text)[1:-1]
    return text if len(text) <= MAX_TEXT_CHARS else text[:MAX_TEXT_CHARS] + "…"


# How it is shown


def lines(status: Status) -> list[str]:
    done = sum(step.state == "pushed" for step in status.steps)
    head = [f"run     {status.run_dir} ({status.run})", f"to      {status.repo}", f"pusher  {_pusher(status)}"]
    rows = [["step", "state", "attempts", "age", ""], *(_row(step) for step in status.steps)] if status.steps else []
    widths = [max(len(row[column]) for row in rows) for column in range(4)] if rows else []
    table = ["  ".join([*map(str.rjust, row[:4], widths), row[4]]).rstrip() for row in rows]
    lost = [f"step {row['step']}: {row['error']}" for row in status.not_queued]
    lost += [f"damaged: {path}: remove it, and push the step again with --repo and --step" for path in status.damaged]
    failed = f"{status.failed_attempts} failed attempt{'' if status.failed_attempts == 1 else 's'}"
    end = f"{done} of {len(status.steps)} steps pushed; {failed} so far"
    return [*head, *([""] if table else []), *table, "", *lost, end, *_advice(status)]


def _pusher(status: Status) -> str:
    if status.pusher is None:
        return "none"
    return f"process {status.pusher or '(starting)'}, for {age(status.pusher_seconds)}"


def _row(step: Step) -> list[str]:
    pushing = f"{megabytes(step.total or 0)}{f', after: {step.error}' if step.error else ''}"
    what = {"pushed": step.url, "pushing": pushing}.get(step.state, step.error)
    return [str(step.step), step.state, str(step.attempts), age(step.seconds), what or ""]


def _advice(status: Status) -> list[str]:
    if status.code == DONE:
        return ["all that was saved is pushed" if status.steps else "nothing has been saved yet"]
    if any(step.state not in ("pushed", *LOST) for step in status.steps) and status.pusher is None:
        return [f"nobody pushes; finish with: openrlhf-ebpo hub push {shlex.quote(status.run_dir)}"]
    return [f"details: {Path(status.run_dir) / 'hub' / 'push.log'}"] if status.code == NEEDS_YOU else []


def age(seconds: float | None) -> str:
    """45 s, 12 min, 3 h, 2 d."""
    seconds = int(seconds or 0)
    for limit, size, unit in ((120, 1, "s"), (7200, 60, "min"), (172_800, 3600, "h")):
        if seconds < limit:
            return f"{seconds // size} {unit}"
    return f"{seconds // 86_400} d"


main = command("openrlhf-ebpo hub status", __doc__, add_flags, run, extra="hub")
