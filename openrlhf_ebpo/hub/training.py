"""The Hub in a training: a detached `hub push RUN_DIR --watch` pushes what is saved. Nothing here asks the Hub, reads
weights or may stop a training."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from openrlhf_ebpo.hub.exports import exports, is_locked, read_record, take_lock
from openrlhf_ebpo.redact import redacted_text
from openrlhf_ebpo.seams.remote_code import FLAG, trusted

POLL_SECONDS = 0.5
# The child has no parent: Ray ends all children of its processes.
DETACH = "import os, sys; os.fork() or os.execv(sys.argv[1], sys.argv[1:])"


@contextmanager
def never_stops_training() -> Iterator[None]:
    """Turn any error into a line of output."""
    try:
        yield
    except Exception as error:
        print(f"warning: hub: {redacted_text(f'{type(error).__name__}: {error}')}", flush=True)


def start_watch(args) -> None:
    """Start the process that pushes, in a session of its own; it gets the lock as its standard input, so that it counts
    as alive at once. Its output goes to <run_dir>/hub/push.log, its environment is the caller's, which has the
    token."""
    if not args.hub.repo:
        return
    with never_stops_training():
        run_dir = Path(args.logger.run_dir)
        if (lock := take_lock(run_dir)) is None:
            return  # the process of an earlier training, or somebody's `hub push`
        command = [sys.executable, "-m", "openrlhf_ebpo.cli.hub", "push", str(run_dir), "--watch"]
        command += [FLAG] if trusted() else []
        with lock, open(run_dir / "hub" / "push.log", "a") as log:
            subprocess.run(
                [sys.executable, "-S", "-c", DETACH, *command],
                stdin=lock,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "HF_HUB_DISABLE_PROGRESS_BARS": "1"},
                start_new_session=True,  # what the supervisor ends, and a Ctrl-C, is the training's session
                check=True,
            )


class Pushes:
    """The trainer's side: metrics, news, and a look at the process that pushes after each save."""

    def __init__(self, args):
        self.args = args
        self.run_dir = Path(args.logger.run_dir)
        self.seen: dict = {}
        with never_stops_training():
            news(self.run_dir, self.seen)  # of the resumed run: printed before

    def metrics(self) -> dict[str, int]:
        if not self.args.hub.repo:
            return {}
        with never_stops_training():
            print(*(f"{line}\n" for line in news(self.run_dir, self.seen)), sep="", end="", flush=True)
            return metrics(self.run_dir)
        return {}

    def after_saving(self) -> None:
        """Start the process again if it has died."""
        if not self.args.hub.repo:
            return
        with never_stops_training():
            if not is_locked(self.run_dir):
                print(f"hub: the process that pushes has ended ({self.run_dir / 'hub' / 'push.log'}), and is restarted")
                start_watch(self.args)


def metrics(run_dir: Path) -> dict[str, int]:
    """hub/pending: steps that are not recorded as pushed. hub/failed: attempts that have failed so far."""
    return {"hub/pending": len(not_pushed(run_dir)), "hub/failed": read_record(run_dir)["failed"]}


def not_pushed(run_dir: Path) -> list[int]:
    steps = read_record(run_dir)["steps"]
    return [each.step for each in exports(run_dir) if steps.get(str(each.step), {}).get("state") != "pushed"]


def news(run_dir: Path, seen: dict) -> list[str]:
    """A line for every step whose push has succeeded or failed since the last call; `seen` remembers."""
    lines = []
    for step, row in read_record(run_dir)["steps"].items():
        mark = row["state"], row.get("attempts")
        if row["state"] not in ("pushed", "failed") or seen.get(step) == mark:
            continue
        seen[step] = mark
        if row["state"] == "pushed":
            lines.append(f"hub: step {step} is pushed and verified: {row.get('url')}")
        else:
            lines.append(f"hub: step {step} is not pushed, will be repeated: {redacted_text(str(row.get('error')))}")
    return lines


# After it


def finish(args) -> None:
    """Wait until the process that pushes has ended, --hub.wait seconds at most, and print a summary. The run is
    complete
    already: neither the Hub nor Ctrl-C changes its exit status."""
    if not args.hub.repo:
        return
    with never_stops_training(), suppress(KeyboardInterrupt):
        wait(args)
    with never_stops_training():
        print(*summary(args), sep="\n", flush=True)


def wait(args) -> None:
    run_dir, until, seen = Path(args.logger.run_dir), time.monotonic() + args.hub.wait, {}
    news(run_dir, seen)
    if args.hub.wait and not is_locked(run_dir):
        start_watch(args)
    if left := len(not_pushed(run_dir)):
        words = "step is" if left == 1 else "steps are"
        print(
            f"hub: {left} {words} still to be pushed; waiting up to {args.hub.wait:g} s (Ctrl-C: do not wait)",
            flush=True,
        )
    while time.monotonic() < until and is_locked(run_dir):
        time.sleep(POLL_SECONDS)
        print(*(f"{line}\n" for line in news(run_dir, seen)), sep="", end="", flush=True)


def summary(args) -> list[str]:
    run_dir = Path(args.logger.run_dir)
    steps, left = read_record(run_dir)["steps"], not_pushed(run_dir)
    pushed = [step for step, row in steps.items() if row["state"] == "pushed"]
    lines = [f"hub: {len(pushed)} pushed and verified at {args.hub.repo}: steps {', '.join(pushed)}"] if pushed else []
    if left:
        errors = [steps.get(str(step), {}).get("error") for step in left]
        why = next((f" ({redacted_text(error)})" for error in errors if error), "")
        lines.append(f"hub: not pushed yet: steps {', '.join(map(str, left))}{why}; {how_to_finish(args)}")
    return lines


def how_to_finish(args) -> str:
    return f"finish with: openrlhf-ebpo hub push {shlex.quote(args.logger.run_dir)}"


def when_stopped(args) -> str:
    """A line for the last message of a training that did not complete; empty if nothing is left to push."""
    if not args.hub.repo:
        return ""
    with never_stops_training():
        if left := len(not_pushed(Path(args.logger.run_dir))):
            return (
                f"\nhub: {left} saved steps are still being pushed in the background, for {args.hub.wait:g} s; "
                f"{how_to_finish(args)}"
            )
    return ""
