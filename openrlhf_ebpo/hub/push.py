"""openrlhf-ebpo hub push: a run's exported models to the Hugging Face Hub, verified file by file, each step under a
tag.

Without --repo and --step it pushes every exported model that --hub.repo lacks, oldest first, also after a kill or a
broken
connection: files that have arrived are not sent again. With --repo it pushes one saved model of any run.
RUN_DIR/hub.json records the results.

  openrlhf-ebpo hub push RUN_DIR                                      all that the run's --hub.repo lacks
  openrlhf-ebpo hub push RUN_DIR --watch                        the same until the training has ended, as it does itself
  openrlhf-ebpo hub push RUN_DIR --repo owner/name --dry_run          list what would go
  openrlhf-ebpo hub push RUN_DIR --repo owner/name --step 20          one saved step; the last one without --step
  openrlhf-ebpo hub push RUN_DIR --repo owner/name --public           readable by everybody
  openrlhf-ebpo hub push RUN_DIR --repo owner/name --folder DIR  the files that would go, into a folder; nothing is sent

Only the files of a model are sent; others are named. A file with a secret in it (a token in tokenizer_config.json)
stops the push, and so does an incomplete model: --dry_run says both, and what is taken out of records.

The token comes from HF_TOKEN or `hf auth login`. RUN_DIR is a training's --logger.run_dir (<ckpt.output_dir>/run).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from openrlhf_ebpo.command import command
from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.extension import TRUST, trust_models
from openrlhf_ebpo.hub.exports import (
    Export,
    all_exports,
    exports,
    is_pushed,
    is_training,
    record,
    step_tag,
    tags,
    take_lock,
    who_pushes,
)
from openrlhf_ebpo.hub.local_files import opened
from openrlhf_ebpo.hub.model_files import contents, print_skipped
from openrlhf_ebpo.hub.public import public_run
from openrlhf_ebpo.hub.publish import (
    CARD,
    Published,
    check_same_run,
    megabytes,
    plan,
    print_plan,
    publish,
    publishable,
    with_manifest,
)
from openrlhf_ebpo.hub.publishable import Content, Publishable, size
from openrlhf_ebpo.hub.settings import WAIT_SECONDS, check_target, target
from openrlhf_ebpo.hub_client import ATTEMPTS, HubError, hub_api, in_time, local_problem, pause_after
from openrlhf_ebpo.redact import redacted_text
from openrlhf_ebpo.run.run_lock import write_holder
from openrlhf_ebpo.run.run_log import RunDirectoryError, dig, read_metrics, read_run, timestamp

POLL_SECONDS = 1.0
STEP_TAG = re.compile(r"step-\d{6,12}", re.ASCII)

Report = Callable[[str], None]


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "run_dir", type=Path, metavar="RUN_DIR", help="the run directory, with run.json in it, or the folder it is in"
    )
    parser.add_argument(
        "--repo", metavar="OWNER/NAME", help="model repo to push one step to; created if it does not exist"
    )
    parser.add_argument(
        "--step", type=int, metavar="N", help="push this saved step alone, its card too; with --repo the last one"
    )
    parser.add_argument(
        "--watch",
        action="store_true",
        help="push what a training saves until it has ended, and then for --hub.wait seconds what is left",
    )
    parser.add_argument("--public", action="store_true", help="a repo that is created is public; otherwise private")
    parser.add_argument(
        "--attempts",
        type=int,
        default=ATTEMPTS,
        metavar="N",
        help=f"give up after so many failures in a row; {ATTEMPTS}. Not with --watch",
    )
    parser.add_argument(
        TRUST, action="store_true", help="also push a model that needs custom code to load; the code does not run here"
    )
    parser.add_argument(
        "--not_secret",
        nargs="+",
        default=[],
        metavar="FILE",
        help="files of the model that you have checked: they hold no secrets",
    )
    parser.add_argument(
        "--dry_run",
        action="store_true",
        help="list the files that would go, with sizes and what is taken out, and stop",
    )
    parser.add_argument(
        "--folder", type=Path, metavar="DIR", help="write the files that would go into this folder, and send nothing"
    )


def run(args: argparse.Namespace) -> None:
    trust_models(args.trust_remote_code)
    run_dir = find_run(args.run_dir)
    settings = read_run(run_dir) or {}
    one = bool(args.repo) or args.step is not None or bool(args.folder)
    check_flags(args, run_dir, settings, one)
    if args.folder:
        write_folder(args, run_dir)
        return
    api = hub_api()
    if args.dry_run:
        dry_run(args, run_dir, api, one)
        return
    wanted = [chosen_export(run_dir, args.step)] if one else None
    for export in wanted or ():  # mistakes are named before the Hub is asked
        contents(run_dir, export.model, args.not_secret)
    with held_lock(run_dir):
        if args.watch:
            os.nice(10)
        push = Push(run_dir, args.repo, not args.public, api, wanted, args.not_secret, log if args.watch else print)
        if not args.watch:
            print(*check_target(api, args.repo, push.private, public_run(settings)), sep="\n", file=sys.stderr)
        error = watch(push) if args.watch else drain(push, args.attempts)
    if error:
        left = ", ".join(str(each.step) for each in push.missing)
        raise UsageError(f"steps {left} are not pushed ({error}): repeat the command to continue")


def check_flags(args: argparse.Namespace, run_dir: Path, settings: dict, one: bool) -> None:
    """Check the flags, and take --hub.repo and --hub.private of the training for those that are not given."""
    if args.folder and args.dry_run:
        raise UsageError("--folder writes files and --dry_run writes none: give one of the two")
    if args.watch and (one or args.dry_run):
        raise UsageError("--watch pushes all that a training saves: leave out --repo, --step, --folder and --dry_run")
    own = dig(settings, "args", "hub", "repo")
    if not (args.repo or (own and isinstance(own, str))):
        raise UsageError(f"{run_dir} was trained without --hub.repo: say where to push, with --repo owner/name")
    if not args.repo:
        args.public = args.public or dig(settings, "args", "hub", "private") is False
    args.repo = target(args.repo or own)


def find_run(path: Path) -> Path:
    """The run directory, also given a training's --ckpt.output_dir."""
    for folder in (path, path / "run"):
        if read_run(folder):
            return folder.absolute()
    raise UsageError(f"{path} holds no run.json: name a run directory (a training's --logger.run_dir)")


@contextlib.contextmanager
def held_lock(run_dir: Path):
    lock = take_lock(run_dir)
    if lock is None:
        raise UsageError(
            f"process {who_pushes(run_dir)} is pushing this run at the moment (see {run_dir / 'hub.json'}): wait "
            "for it, or end it first"
        )
    with lock:
        write_holder(lock)
        yield


def chosen_export(run_dir: Path, step: int | None) -> Export:
    """The exported model of a step, the last one for None.

    Raises:
        UsageError: it does not exist; names those that do.
    """
    found = all_exports(run_dir)
    there = [each for each in found if found[each].model.is_dir()]
    wanted = max(there, default=None) if step is None else step
    if wanted in there:
        return found[wanted]
    gone = [f"step {each} was saved in {found[each].model}, which is gone" for each in found if each not in there]
    steps = ", ".join(map(str, sorted(there))) or "none: " + (
        gone[-1] if gone else "train with --ckpt.save_hf and --ckpt.save_steps"
    )
    raise UsageError(f"{run_dir}: no saved model{'' if step is None else f' of step {step}'}; saved steps: {steps}")


# The loop


@dataclass
class Push:
    """Hold what is pushed, where to, and how far it is.

    wanted: the exports of --repo or --step, which are pushed even if they are there, for their cards; None for all that
    the repo lacks. done: step -> state of the folder when it was found on the Hub. missing: what the last round left.
    """

    run_dir: Path
    repo: str
    private: bool
    api: object
    wanted: list[Export] | None = None
    not_secret: Collection[str] = ()
    report: Report = print
    done: dict[int, tuple] = field(default_factory=dict)
    missing: list[Export] = field(default_factory=list)
    attempts: dict[int, int] = field(default_factory=dict)

    def round(self) -> HubError | None:
        """Push what is missing, oldest first; returns the last error. One that may pass ends the round, which keeps the
        order of the steps. A permanent one, of a step alone, lets the later steps go first."""
        every = exports(self.run_dir) if self.wanted is None else self.wanted
        self.missing = [each for each in every if self.done.get(each.step) != each.state()]
        last = None
        try:
            known = tags(self.api, self.repo, self.run_dir) if self.missing else {}
        except HubError as error:
            self.fail(self.missing[0], error)
            return error
        for export in list(self.missing):
            state = export.state()
            error = self.attempt(export, known)
            if error is None:
                self.done[export.step] = state
                self.missing.remove(export)
                continue
            self.fail(export, error)
            last = error
            if not error.permanent:
                break
        return last

    def attempt(self, export: Export, known: dict[str, str]) -> HubError | None:
        """Push one step unless it is there; returns the error, whatever it is."""
        try:
            if self.wanted is None and is_pushed(self.api, self.repo, export, known):
                url = f"{self.api.endpoint}/{self.repo}/tree/{step_tag(export.step)}"
                self.note(export, state="pushed", error=None, commit=known[step_tag(export.step)], url=url)
                return None
            if not export.model.is_dir():
                return HubError(f"{export.model} is gone, and was not pushed", permanent=True)
            self.attempts[export.step] = self.attempts.get(export.step, 0) + 1
            self.note(export, state="pushing")
            published = self.send(export, is_late=newest_step(known, self.run_dir) > export.step)
        except Exception as caught:
            return _as_hub_error(caught, f"pushing step {export.step}")
        self.note(export, state="pushed", error=None, commit=published.commit, url=published.url)
        sent, total = len(published.sent), len(published.sent) + published.unchanged
        self.report(f"hub: step {export.step} is at {published.url} ({sent} of {total} files sent now, all verified)")
        return None

    def send(self, export: Export, is_late: bool) -> Published:
        """Commit a step with its card and tag it, in a process that is ended after a time limit.

        Args:
            is_late: the repo has a newer step, so this one goes to a branch `checkpoint-000010`: main never moves
                backwards.

        Raises:
            HubError: the Hub refuses it, cannot be reached, or holds another run.
        """
        step = export.step
        print_skipped(self.run_dir, export.model)
        files = contents(self.run_dir, export.model, self.not_secret)
        files = {**files, **card(self.run_dir, step, self.repo, self.report)}

        def publish_step(files: Mapping[str, Content]) -> Published:
            how = {"private": self.private, "message": f"step {step}", "tag": step_tag(step)}
            head = check_same_run(self.api, self.repo, json.loads(files["run.json"]))
            how |= {"revision": f"checkpoint-{step:06d}"} if is_late else {"based_on": head}
            return publish(self.api, self.repo, files, **how)

        total = sum(map(size, files.values()))
        try:
            published = in_time(lambda: publish_step(files), f"pushing step {step}", total)
        except HubError as error:
            if not error.card_refused:
                raise
            self.report(f"hub: step {step} goes without its card's metadata, which the Hub refuses: {error}")
            plain = {**files, CARD: without_metadata(files[CARD])}
            published = in_time(lambda: publish_step(plain), f"pushing step {step}", total)
        for path in published.kept:
            self.report(f"hub: {path} of {self.repo} was written or edited by somebody, and stays as it is")
        return published

    def fail(self, export: Export, error: HubError) -> None:
        self.note(export, state="failed", error=str(error))
        number = f", attempt {self.attempts[export.step]}" if export.step in self.attempts else ""
        self.report(f"hub: step {export.step}{number} failed: {error}")

    def note(self, export: Export, **changes) -> None:
        """Write into hub.json. A full disk must not stop a push, which reads nothing of it."""
        try:
            record(self.run_dir, self.repo, export.step, attempts=self.attempts.get(export.step, 0), **changes)
        except OSError as error:
            self.report(
                f"hub: step {export.step} is {changes['state']}, which could not be written to hub.json: {error}"
            )


def newest_step(tags: Mapping[str, str], run_dir: Path) -> int:
    """The highest step that the repo has a tag of, or -1. Tags of steps that a resumed run has rolled back do not
    count."""
    try:
        last = max((row["step"] for row in read_metrics(run_dir)), default=float("inf"))
    except (ValueError, KeyError, OSError):
        last = float("inf")
    steps = [int(tag.removeprefix("step-")) for tag in tags if STEP_TAG.fullmatch(tag)]
    return max((step for step in steps if step <= last), default=-1)


def card(run_dir: Path, step: int, repo: str, report: Report = print) -> dict[str, bytes]:
    """Files of the model card; {} if it cannot be made, which is reported and must not stop the model."""
    try:
        from openrlhf_ebpo.hub.card import model_card

        return dict(Publishable(model_card(run_dir, step, repo)))
    except Exception as error:
        report(f"hub: step {step} goes without a model card: {type(error).__name__}: {redacted_text(str(error))}")
        return {}


def without_metadata(content: Content) -> bytes:
    from huggingface_hub.repocard import REGEX_YAML_BLOCK

    with opened(content) as text:
        return REGEX_YAML_BLOCK.sub("", text.read().decode(), count=1).lstrip().encode()


def drain(push: Push, attempts: int = ATTEMPTS, sleep: Callable[[float], None] = time.sleep) -> HubError | None:
    """Push until nothing is missing; returns the error at which it gave up, after `attempts` failures in a row or at a
    permanent one."""
    failures = 0
    while error := push.round():
        failures += 1
        if failures >= attempts or error.permanent:
            return error
        seconds = pause_after(failures, error)
        push.report(f"hub: trying again in {seconds:g} s")
        sleep(seconds)
    if not failures and push.wanted is None:
        push.report(f"nothing is missing: {len(push.done)} steps are at {push.api.endpoint}/{push.repo}")
    return None


def watch(push: Push, sleep: Callable[[float], None] = time.sleep) -> HubError | None:
    """Push what the training saves until it has ended and nothing is missing, or --hub.wait seconds after its end."""
    failures, again, ended, error = 0, 0.0, None, None
    while True:
        if is_training(push.run_dir):
            ended = None
        elif ended is None:
            ended, again, failures = time.monotonic(), 0.0, 0  # the next attempt comes at once
        if time.monotonic() >= again:
            try:
                error = push.round()
            except (OSError, RunDirectoryError) as caught:  # checkpoints.jsonl or run.json cannot be read
                error = _as_hub_error(caught, f"reading {push.run_dir}")
                push.report(f"hub: {error}")
            failures = failures + 1 if error else 0
            pause = pause_after(failures, error) if error else POLL_SECONDS
            again = time.monotonic() + pause
            if ended is not None and (error is None or error.permanent):
                return error
            if error:
                push.report(f"hub: trying again in {pause:g} s")
        if ended is not None and time.monotonic() - ended > wait_seconds(push.run_dir):
            push.report(f"hub: time is up; steps that are left: {[each.step for each in push.missing]}")
            return error
        sleep(min(POLL_SECONDS, pause))


def wait_seconds(run_dir: Path) -> float:
    """--hub.wait of the training."""
    try:
        found = dig(read_run(run_dir), "args", "hub", "wait")
    except RunDirectoryError:
        return WAIT_SECONDS
    return float(found) if isinstance(found, (int, float)) else WAIT_SECONDS


def log(line: str) -> None:
    with contextlib.suppress(OSError):  # the disk with push.log is full
        print(timestamp(), line, flush=True)


def _as_hub_error(caught: Exception, doing: str) -> HubError:
    if isinstance(caught, HubError):
        return caught
    if isinstance(caught, UsageError):
        return HubError(f"{doing}: {caught}", permanent=True)
    return HubError(f"{doing}: {type(caught).__name__}: {caught}", permanent=local_problem(caught) is not None)


# Without sending


def chosen_files(args: argparse.Namespace, run_dir: Path, export: Export) -> dict[str, Content]:
    """Path in the repo -> content that a push would send, card included."""
    print_skipped(run_dir, export.model)
    return {**contents(run_dir, export.model, args.not_secret), **card(run_dir, export.step, args.repo)}


def dry_run(args: argparse.Namespace, run_dir: Path, api, one: bool) -> None:
    """List what would go, without leaving a trace."""
    known = {} if one else tags(api, args.repo, run_dir)
    wanted = [chosen_export(run_dir, args.step)] if one else exports(run_dir)
    for export in wanted:
        if one or not is_pushed(api, args.repo, export, known):
            print(f"step {export.step} to {args.repo}, tag {step_tag(export.step)}:")
            print_plan(plan(api, args.repo, chosen_files(args, run_dir, export)), args.repo)


def write_folder(args: argparse.Namespace, run_dir: Path) -> None:
    """Write the files that a push would send, all or none, into a new folder; no Hub is asked.

    Raises:
        UsageError: something is at `--folder` already, and stays.
    """
    folder = args.folder
    if folder.is_symlink() or (folder.exists() and not (folder.is_dir() and not any(folder.iterdir()))):
        raise UsageError(f"--folder {folder} is there already; remove it, or name another one")
    export = chosen_export(run_dir, args.step)
    files = with_manifest(publishable(chosen_files(args, run_dir, export)))
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as part:
        for name, content in files.items():
            path = Path(part, "files", name)
            path.parent.mkdir(parents=True, exist_ok=True)
            with opened(content) as source, open(path, "wb") as copy:
                shutil.copyfileobj(source, copy, 1 << 20)
        Path(part, "files").replace(folder)
    total = megabytes(sum(size(file) for file in files.values()))
    print(
        f"step {export.step}: {len(files)} files, {total}, are in {folder} as they would stand in {args.repo}; "
        f"nothing was "
        "sent"
    )


main = command("openrlhf-ebpo hub push", __doc__, add_flags, run, extra="hub")
