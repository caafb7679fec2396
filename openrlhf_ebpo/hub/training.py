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

from openrlhf_ebpo.extension import TRUST, models_trusted
from openrlhf_ebpo.hub.exports import exports, is_locked, read_record, take_lock
from openrlhf_ebpo.hub.settings import HubSettings
from openrlhf_ebpo.redact import redacted_text

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


class Pushes:
    """The pushes of one training, as its driver and its trainer see them: both have one. Without --hub.repo it does
    nothing."""

    def __init__(self, settings: HubSettings, run_dir: str | Path):
        self.settings = settings
        self.run_dir = Path(run_dir)
        self.reported: dict[str, tuple] = {}  # step -> the state and attempt that was printed
        with never_stops_training():
            self._news()  # of the resumed run: printed before

    def start_watch(self) -> None:
        """Start the process that pushes, in a session of its own; it gets the lock as its standard input, so that it
        counts as alive at once. Its output goes to <run_dir>/hub/push.log, its environment is the caller's, which has
        the token."""
        if not self.settings.repo:
            return
        with never_stops_training():
            if (lock := take_lock(self.run_dir)) is None:
                return  # the process of an earlier training, or somebody's `hub push`
            command = [sys.executable, "-m", "openrlhf_ebpo.cli.hub", "push", str(self.run_dir), "--watch"]
            command += [TRUST] if models_trusted() else []
            with lock, open(self.run_dir / "hub" / "push.log", "a") as log:
                subprocess.run(
                    [sys.executable, "-S", "-c", DETACH, *command],
                    stdin=lock,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, "HF_HUB_DISABLE_PROGRESS_BARS": "1"},
                    start_new_session=True,  # what the supervisor ends, and a Ctrl-C, is the training's session
                    check=True,
                )

    # In the trainer

    def metrics(self) -> dict[str, int]:
        """hub/pending: steps that are not recorded as pushed. hub/failed: attempts that have failed so far."""
        if not self.settings.repo:
            return {}
        with never_stops_training():
            self._print_news()
            return {"hub/pending": len(self._not_pushed()), "hub/failed": read_record(self.run_dir)["failed"]}
        return {}

    def after_saving(self) -> None:
        """Start the process again if it has died."""
        if not self.settings.repo:
            return
        with never_stops_training():
            if not is_locked(self.run_dir):
                print(f"hub: the process that pushes has ended ({self.run_dir / 'hub' / 'push.log'}), and is restarted")
                self.start_watch()

    # At the end

    def finish(self) -> None:
        """Wait until the process that pushes has ended, --hub.wait seconds at most, and print a summary. The run is
        complete already: neither the Hub nor Ctrl-C changes its exit status."""
        if not self.settings.repo:
            return
        with never_stops_training(), suppress(KeyboardInterrupt):
            self._wait()
        with never_stops_training():
            print(*self._summary(), sep="\n", flush=True)

    def when_stopped(self) -> str:
        """A line for the last message of a training that did not complete; empty if nothing is left to push."""
        if not self.settings.repo:
            return ""
        with never_stops_training():
            if left := len(self._not_pushed()):
                return (
                    f"\nhub: {left} saved steps are still being pushed in the background, for {self.settings.wait:g} "
                    f"s; {self._how_to_finish()}"
                )
        return ""

    def _wait(self) -> None:
        until, wait = time.monotonic() + self.settings.wait, self.settings.wait
        self._news()  # printed by the trainer
        if wait and not is_locked(self.run_dir):
            self.start_watch()
        if left := len(self._not_pushed()):
            steps = "step is" if left == 1 else "steps are"
            print(f"hub: {left} {steps} still to be pushed; waiting up to {wait:g} s (Ctrl-C: do not wait)", flush=True)
        while time.monotonic() < until and is_locked(self.run_dir):
            time.sleep(POLL_SECONDS)
            self._print_news()

    def _summary(self) -> list[str]:
        steps, left = read_record(self.run_dir)["steps"], self._not_pushed()
        pushed = [step for step, row in steps.items() if row["state"] == "pushed"]
        at = f"pushed and verified at {self.settings.repo}"
        lines = [f"hub: {len(pushed)} {at}: steps {', '.join(pushed)}"] if pushed else []
        if left:
            errors = [steps.get(str(step), {}).get("error") for step in left]
            why = next((f" ({redacted_text(error)})" for error in errors if error), "")
            lines.append(f"hub: not pushed yet: steps {', '.join(map(str, left))}{why}; {self._how_to_finish()}")
        return lines

    def _how_to_finish(self) -> str:
        return f"finish with: openrlhf-ebpo hub push {shlex.quote(str(self.run_dir))}"

    def _not_pushed(self) -> list[int]:
        steps = read_record(self.run_dir)["steps"]
        return [each.step for each in exports(self.run_dir) if steps.get(str(each.step), {}).get("state") != "pushed"]

    def _print_news(self) -> None:
        print(*(f"{line}\n" for line in self._news()), sep="", end="", flush=True)

    def _news(self) -> list[str]:
        """A line for every step whose push has succeeded or failed since the last call."""
        lines = []
        for step, row in read_record(self.run_dir)["steps"].items():
            mark = row["state"], row.get("attempts")
            if row["state"] not in ("pushed", "failed") or self.reported.get(step) == mark:
                continue
            self.reported[step] = mark
            error = redacted_text(str(row.get("error")))
            done = row["state"] == "pushed"
            state = f"pushed and verified: {row.get('url')}" if done else f"not pushed, will be repeated: {error}"
            lines.append(f"hub: step {step} is {state}")
        return lines
