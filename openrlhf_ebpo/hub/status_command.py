"""openrlhf-ebpo hub status: one table of what a run has pushed, what is under way, what waits, and why.

It asks nothing of the Hub, changes nothing and needs no token: it reads the run directory, also while the training runs.

  openrlhf-ebpo hub status RUN_DIR
  watch -n 5 openrlhf-ebpo hub status RUN_DIR

Exit status: 0, all that was saved is pushed. 3, something waits or is under way, and a process pushes it. 1, it needs you:
a push has failed; something waits and no process pushes it; a step was not queued, or its snapshot is damaged or gone. Also
if RUN_DIR is not a run.
"""

from __future__ import annotations

import argparse
import contextlib
import shlex
import sys
import time
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path

from openrlhf_ebpo.command import command, one_line
from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.hub import outbox
from openrlhf_ebpo.hub.outbox import Item
from openrlhf_ebpo.hub.push_command import find_run
from openrlhf_ebpo.hub.training import not_queued
from openrlhf_ebpo.redact import redacted_text
from openrlhf_ebpo.run.checkpoints import saved
from openrlhf_ebpo.run.run_log import RunDirectoryError, dig, read_run

DONE, WAITS, NEEDS_YOU = 0, 3, 1
OPEN = ("waits", "pushing", "failed")
BROKEN = ("failed", "gone", "lost", "damaged")
MAX_TEXT_CHARS = 500


@dataclass(frozen=True)
class Step:
    """A row of the table.

    state: one of OPEN, pushed, gone (not pushed, and its snapshot was removed), lost (saved and never queued) or damaged
    (its snapshot cannot be read). step: None if a damaged file does not say. seconds: since the state was noted.
    """

    step: int | None
    state: str
    attempts: int = 0
    seconds: float = 0.0
    error: str | None = None
    url: str | None = None


@dataclass(frozen=True)
class Status:
    """pusher: id of the process that pushes (unknown until it has written it), or None."""

    run_dir: str
    run: str
    repo: str | None
    pusher: str | None
    failed_attempts: int
    steps: list[Step]

    @property
    def waits(self) -> bool:
        return any(step.state in OPEN for step in self.steps)

    @property
    def code(self) -> int:
        if any(step.state in BROKEN for step in self.steps) or (self.waits and self.pusher is None):
            return NEEDS_YOU
        return WAITS if self.waits else DONE


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "run_dir", type=Path, metavar="RUN_DIR", help="the run directory, with run.json in it, or the folder it is in"
    )


def run(args: argparse.Namespace) -> None:
    status = read_status(find_run(args.run_dir))
    print("\n".join(lines(status)))
    if status.code:
        sys.exit(status.code)


# Reading


def read_status(run_dir: Path) -> Status:
    """Read the run directory.

    Raises:
        UsageError: nothing of the run is to be pushed.
    """
    run, pushes = read_run(run_dir) or {}, outbox.is_locked(run_dir)
    steps, repo = read_steps(run_dir, run, pushes), dig(run, "args", "hub", "repo")
    if not (repo or steps):
        raise UsageError(
            f"{run_dir}: nothing is pushed, for it was trained without --hub.repo; push a saved model with openrlhf-ebpo hub "
            f"push {shlex.quote(str(run_dir))} --repo owner/name"
        )
    return Status(
        run_dir=str(run_dir),
        run=plain(f"{run.get('name')}, {run.get('status')}"),
        repo=plain(repo) or next((plain(item.repo) for item in outbox.items(run_dir)), None),
        pusher=plain(outbox.who_pushes(run_dir)) if pushes else None,
        failed_attempts=outbox.read_state(run_dir)["failed"],
        steps=steps,
    )


def read_steps(run_dir: Path, run: dict, pushes: bool) -> list[Step]:
    """One row for each step that was saved for a push: hub.json, the queue, its notes, then checkpoints.jsonl."""
    items, rows = {item.step: item for item in outbox.items(run_dir)}, {}
    for step, item in items.items():
        rows[step] = Step(step, "waits", seconds=_seconds_waiting(item))
    for name, entry in outbox.read_state(run_dir)["steps"].items():
        item = items.get(int(name))
        if not item or entry.get("token") == item.token:  # a later snapshot counts more than what was pushed before
            rows[int(name)] = _noted(int(name), entry, item, pushes)
    for path in outbox.damaged(run_dir):
        error = f"{path}: remove it, and push the step again with --repo and --step"
        number = path.name.removeprefix("step-").partition(".")[0]
        rows[number] = Step(int(number) if number.isdecimal() else None, "damaged", error=plain(error))
    for row in not_queued(run_dir):
        step, note = row["step"], plain(row["error"])
        if step not in rows:
            rows[step] = Step(step, "lost", error=note)
        elif not note.startswith("never queued"):  # it has been queued since
            rows[step] = replace(rows[step], error="; ".join(filter(None, [rows[step].error, note])))
    for step in saved_for_push(run_dir, run):
        again = f"openrlhf-ebpo hub push {shlex.quote(str(run_dir))} --repo OWNER/NAME --step {step}"
        rows.setdefault(step, Step(step, "lost", error=f"saved, and never queued: {again}"))
    return sorted(rows.values(), key=lambda row: -1 if row.step is None else row.step)


def _seconds_waiting(item: Item) -> float:
    with contextlib.suppress(OSError):  # taken away meanwhile
        return max(time.time() - (item.path / "push.json").stat().st_mtime, 0.0)
    return 0.0


def _noted(step: int, entry: dict, item: Item | None, pushes: bool) -> Step:
    """A step's entry in hub.json."""
    state = entry["state"]
    if state == "pushing" and not pushes:
        state = "waits"  # the process that pushed it has ended
    if not item and state != "pushed":
        state = "gone"
    seconds = max(time.time() - datetime.fromisoformat(entry["time"]).timestamp(), 0.0)
    error, url = (plain(entry.get(name)) or None for name in ("error", "url"))
    return Step(step, state, entry["attempts"], seconds, error, url)


def saved_for_push(run_dir: Path, run: dict) -> list[int]:
    """Steps of checkpoints.jsonl that the training should have queued: a full disk may take neither a snapshot nor the
    note of its failure. The last one of a running training may be about to be queued."""
    try:
        every = int(dig(run, "args", "ckpt", "save_steps") or 0) * int(dig(run, "args", "hub", "every") or 1)
        steps = [each.step for each in saved(run_dir) if each.model]
    except (ValueError, TypeError, RunDirectoryError):  # files of an unknown run
        return []
    if not (dig(run, "args", "hub", "repo") and every > 0):
        return []
    return [step for step in (steps[:-1] if run.get("status") == "running" else steps) if step % every == 0]


def plain(text) -> str:
    """A text for the terminal: one line, without secrets and control characters."""
    return "" if text is None else one_line(redacted_text(str(text)[: 4 * MAX_TEXT_CHARS]), MAX_TEXT_CHARS)


# Printing


def lines(status: Status) -> list[str]:
    pusher = "none" if status.pusher is None else f"process {status.pusher}"
    rows = [["step", "state", "attempts", "age", ""], *map(_row, status.steps)] if status.steps else []
    widths = [max(len(row[column]) for row in rows) for column in range(4)] if rows else []
    table = ["  ".join([*map(str.rjust, row[:4], widths), row[4]]).rstrip() for row in rows]
    done = sum(step.state == "pushed" for step in status.steps)
    return [
        f"run     {status.run_dir} ({status.run})",
        f"to      {status.repo}",
        f"pusher  {pusher}",
        "",
        *table,
        f"{done} of {len(status.steps)} steps pushed; failed attempts so far: {status.failed_attempts}",
        *_advice(status),
    ]


def _row(step: Step) -> list[str]:
    text, age = "; ".join(filter(None, [step.url, step.error])), str(timedelta(seconds=int(step.seconds)))
    return ["?" if step.step is None else str(step.step), step.state, str(step.attempts), age, text]


def _advice(status: Status) -> list[str]:
    if status.code == DONE:
        return ["all that was saved is pushed" if status.steps else "nothing has been saved yet"]
    if status.waits and status.pusher is None:
        return [f"no process pushes; finish with: openrlhf-ebpo hub push {shlex.quote(status.run_dir)}"]
    return [f"details: {Path(status.run_dir) / 'hub' / 'push.log'}"] if status.code == NEEDS_YOU else []


main = command("openrlhf-ebpo hub status", __doc__, add_flags, run, extra="hub")
