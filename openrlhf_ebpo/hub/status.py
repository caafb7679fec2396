"""openrlhf-ebpo hub status: what of a run is on the Hub and what is missing, by the files of both.

It compares the run's exported models with the repo's tags and file hashes, as a push does, and changes nothing; a
private repo needs a token that may read it. It reads every exported model, about a second for each GB.

  openrlhf-ebpo hub status RUN_DIR
  openrlhf-ebpo hub status RUN_DIR --repo owner/name

Exit status: 0, all that was saved is pushed. 3, something is missing, and a process pushes it. 1, it needs you:
something is missing and no process pushes it, the last attempt failed, or the Hub cannot be asked. Also if RUN_DIR is
not a run.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path
from typing import NamedTuple

from openrlhf_ebpo.command import command, one_line
from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.hub.exports import Export, exports, is_locked, is_pushed, read_record, step_tag, tags, who_pushes
from openrlhf_ebpo.hub.publish import Repo
from openrlhf_ebpo.hub.push import find_run
from openrlhf_ebpo.hub.settings import target
from openrlhf_ebpo.hub_client import HubError, hub_api
from openrlhf_ebpo.redact import redacted_text
from openrlhf_ebpo.run.run_log import dig, read_run

DONE, WAITS, NEEDS_YOU = 0, 3, 1
MAX_TEXT_CHARS = 500


class Step(NamedTuple):
    """A row of the table, which docs/hub.md explains."""

    step: int
    state: str
    text: str


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "run_dir", type=Path, metavar="RUN_DIR", help="the run directory, with run.json in it, or the folder it is in"
    )
    parser.add_argument(
        "--repo", metavar="OWNER/NAME", help="the repo to compare with; the run's --hub.repo if not given"
    )


def run(args: argparse.Namespace) -> None:
    run_dir = find_run(args.run_dir)
    settings = read_run(run_dir) or {}
    repo = args.repo or dig(settings, "args", "hub", "repo")
    if not (repo and isinstance(repo, str)):
        raise UsageError(
            f"{run_dir}: nothing is pushed by itself, for it was trained without --hub.repo; name the repo with --repo "
            f"owner/name, or push a saved model: openrlhf-ebpo hub push {shlex.quote(str(run_dir))} --repo owner/name"
        )
    repo = Repo(hub_api(), target(repo))
    pusher = plain(who_pushes(run_dir)) if is_locked(run_dir) else None
    steps = read_steps(run_dir, repo, pusher is not None)
    print(f"run     {run_dir} ({plain(settings.get('name'))}, {plain(settings.get('status'))})")
    print(f"to      {repo.name}")
    print(f"pusher  {'none' if pusher is None else f'process {pusher}'}\n")
    width = max((len(str(step.step)) for step in steps), default=0)
    for step in steps:
        print(f"{step.step:>{width}}  {step.state:<8}  {step.text}".rstrip())
    done = sum(step.state == "pushed" for step in steps)
    print(f"{done} of {len(steps)} steps pushed; failed attempts so far: {read_record(run_dir)['failed']}")
    code, advice = conclusion(run_dir, steps, pusher is not None)
    print(advice)
    sys.exit(code)


def read_steps(run_dir: Path, repo: Repo, pushes: bool) -> list[Step]:
    """Compare every exported model with the repo; hub.json adds what a push said of it."""
    rows, listed = read_record(run_dir)["steps"], exports(run_dir)
    try:
        known = tags(repo, run_dir) if listed else {}
    except HubError as error:
        return [Step(export.step, "unknown", plain(error)) for export in listed]
    return [_step(repo, export, known, rows.get(str(export.step), {}), pushes) for export in listed]


def _step(repo: Repo, export: Export, known: dict[str, str], row: dict, pushes: bool) -> Step:
    try:
        if is_pushed(repo, export, known):
            gone = "" if export.model.is_dir() else " (the exported model is gone here, so only its tag was looked for)"
            return Step(export.step, "pushed", f"{repo.url(step_tag(export.step))}{gone}")
    except HubError as error:
        return Step(export.step, "unknown", plain(error))
    except UsageError as error:
        return Step(export.step, "failed", plain(error))
    if not export.model.is_dir():
        return Step(export.step, "gone", plain(f"{export.model} was not pushed, and is gone"))
    if row.get("state") == "failed":
        return Step(export.step, "failed", plain(row.get("error")))
    return Step(export.step, "pushing" if pushes and row.get("state") == "pushing" else "missing", "")


def conclusion(run_dir: Path, steps: list[Step], pushes: bool) -> tuple[int, str]:
    """The exit status and the last line."""
    states = {step.state for step in steps} - {"pushed"}
    if not states:
        return DONE, "all that was saved is pushed" if steps else "nothing has been saved yet"
    code = WAITS if pushes and states <= {"missing", "pushing"} else NEEDS_YOU
    if "unknown" in states:
        return (
            code,
            "what the Hub has of this run is not known: fix what is reported above, or repeat the command later",
        )
    if not pushes:
        return code, f"no process pushes; finish with: openrlhf-ebpo hub push {shlex.quote(str(run_dir))}"
    return code, f"details: {run_dir / 'hub' / 'push.log'}"


def plain(text) -> str:
    """A text for the terminal: one line, without secrets and control characters."""
    return "" if text is None else one_line(redacted_text(str(text)[: 4 * MAX_TEXT_CHARS]), MAX_TEXT_CHARS)


main = command("openrlhf-ebpo hub status", __doc__, add_flags, run, extra="hub")
