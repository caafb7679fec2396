"""The Hub in a training: a child of its driver pushes each export while it trains. Nothing here may stop a training."""

from __future__ import annotations

import math
import os
import shlex
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from openrlhf_ebpo.command import end_with_parent
from openrlhf_ebpo.errors import ReportedError
from openrlhf_ebpo.extension import models_trusted, trust_models
from openrlhf_ebpo.hub.hub_settings import HubSettings
from openrlhf_ebpo.hub.publish import Repo
from openrlhf_ebpo.hub.push import Push
from openrlhf_ebpo.hub_client import ATTEMPTS, hub_api, retrying
from openrlhf_ebpo.redact import redacted_text
from openrlhf_ebpo.run import checkpoint_list
from openrlhf_ebpo.run.run_log import read_run

WAIT_SECONDS = 600.0  # after the training, for what is not pushed yet
ENDING_SECONDS = 10.0  # for the child, to say what is left
POLL_SECONDS = 2.0
CHILD = "from openrlhf_ebpo.hub.training import push_in_child; push_in_child()"


class Pushes:
    """The pushes of one training, as its driver sees them. Without --hub.repo it does nothing."""

    def __init__(self, settings: HubSettings, run_dir: str | Path):
        self.settings = settings
        self.run_dir = Path(run_dir)
        self.process: subprocess.Popen | None = None

    def start(self) -> None:
        """Start the child that pushes. It ends with this process, and a Ctrl-C is not for it."""
        if not self.settings.repo:
            return
        settings = [self.settings.repo, str(int(self.settings.public)), str(int(models_trusted())), str(os.getpid())]
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-c", CHILD, str(self.run_dir), *settings],
                stdin=subprocess.DEVNULL,
                env={**os.environ, "HF_HUB_DISABLE_PROGRESS_BARS": "1"},
                start_new_session=True,
            )
        except OSError as error:
            print(f"warning: hub: nothing is pushed during the training ({error})", flush=True)

    def finish(self) -> None:
        """Wait until all is pushed, WAIT_SECONDS at most. The run is complete already: neither the Hub nor a Ctrl-C
        changes its exit status."""
        if not self.settings.repo:
            return
        if self.process:
            try:
                self.process.wait(WAIT_SECONDS)
            except (subprocess.TimeoutExpired, KeyboardInterrupt):
                self.process.send_signal(signal.SIGINT)  # it says what is left
                with suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
                    self.process.wait(ENDING_SECONDS)
            self.process.kill()
        if not self.process or self.process.wait():
            print(f"hub: {how_to_finish(self.run_dir)}", flush=True)

    def when_stopped(self) -> str:
        """A line for the last message of a training that did not complete."""
        if not self.settings.repo:
            return ""
        return f"\nhub: what was saved and not pushed yet goes when it continues; or {how_to_finish(self.run_dir)}"


def how_to_finish(run_dir: Path) -> str:
    return f"push what is left with: openrlhf-ebpo hub push {shlex.quote(str(run_dir))}"


# The child


def push_in_child() -> None:
    """Push until the training has ended and nothing is missing; status 1 where something is left."""
    run_dir, repo, public, trusted, parent = sys.argv[1:]
    end_with_parent(signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it for what it runs in the background
    if os.getppid() != int(parent):  # it ended before the kernel was asked
        sys.exit(1)
    os.nice(10)
    trust_models(bool(int(trusted)))
    push = Push(Path(run_dir), Repo(hub_api(), repo), bool(int(public)), report=report)
    try:
        push_while_training(push)
    except (ReportedError, KeyboardInterrupt) as error:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        why = f" ({redacted_text(str(error))})" if str(error) else ""
        report(f"hub: not pushed: steps {push.left}{why}")
        sys.exit(1)
    report(f"hub: all {len(push.done)} saved steps are pushed and verified at {repo}")


def report(line: str) -> None:
    with suppress(OSError):  # its reader is gone, or the disk is full
        print(line, flush=True)


def push_while_training(push: Push) -> None:
    """Push at each change of the list of exports, and what is left after the training.

    Raises:
        ReportedError: something that no retry can push.
    """
    seen = changed = None
    while (read_run(push.run_dir) or {}).get("status") == "running":  # if the driver dies, this process does
        with suppress(OSError):  # before the first save
            changed = (push.run_dir / checkpoint_list.LIST).stat().st_mtime_ns
        if changed != seen:
            seen = changed
            try:
                retrying(push.round, ATTEMPTS, report)
            except ReportedError as error:
                report(f"hub: {error}; tried again after the next save, and at the end")
        time.sleep(POLL_SECONDS)
    retrying(push.round, math.inf, report)
