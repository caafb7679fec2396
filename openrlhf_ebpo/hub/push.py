"""openrlhf-ebpo hub push: a run's exported models to the Hugging Face Hub, verified file by file, each step under a
tag.

Without --repo and --step it pushes every exported model that --hub.repo lacks, oldest first, also after a kill or a
broken connection: files that have arrived are not sent again. With --repo it pushes one saved model of any run.
RUN_DIR/hub.json records the results.

  openrlhf-ebpo hub push RUN_DIR                                 all that the run's --hub.repo lacks
  openrlhf-ebpo hub push RUN_DIR --watch                         the same until the training has ended
  openrlhf-ebpo hub push RUN_DIR --repo owner/name --dry_run     list what would go
  openrlhf-ebpo hub push RUN_DIR --repo owner/name --step 20     one saved step; the last one without --step
  openrlhf-ebpo hub push RUN_DIR --repo owner/name --public      readable by everybody
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
from openrlhf_ebpo.hub.content import Content, Publishable, opened, read_bytes, size
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
from openrlhf_ebpo.hub.model_files import contents, print_skipped
from openrlhf_ebpo.hub.public import public_run
from openrlhf_ebpo.hub.publish import (
    CARD,
    Commit,
    Published,
    Repo,
    megabytes,
    plan,
    print_plan,
    publish,
    same_run,
    with_manifest,
)
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
    repo = Repo(hub_api(), args.repo)
    if args.dry_run:
        dry_run(args, run_dir, repo, one)
        return
    wanted = [chosen_export(run_dir, args.step)] if one else None
    for export in wanted or ():  # mistakes are named before the Hub is asked
        contents(run_dir, export.model, args.not_secret)
    with held_lock(run_dir):
        push = Push(run_dir, repo, not args.public, wanted, args.not_secret, log if args.watch else print)
        if args.watch:
            os.nice(10)
            error = watch(push)
        else:
            notices = check_target(repo, push.private, public_run(settings))
            print(*notices, sep="\n", file=sys.stderr)
            error = drain(push, args.attempts)
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
    repo: Repo
    private: bool
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
            known = tags(self.repo, self.run_dir) if self.missing else {}
        except HubError as error:
            self.fail(self.missing[0], error)
            return error
        for export in list(self.missing):
            state = export.state()
            try:
                self.push_step(export, known)
            except Exception as caught:
                last = _as_hub_error(caught, f"pushing step {export.step}")
                self.fail(export, last)
                if not last.permanent:
                    break
            else:
                self.done[export.step] = state
                self.missing.remove(export)
        return last

    def push_step(self, export: Export, known: dict[str, str]) -> None:
        """Push one step unless it is there."""
        step, tag = export.step, step_tag(export.step)
        if self.wanted is None and is_pushed(self.repo, export, known):
            self.note(export, state="pushed", error=None, commit=known[tag], url=self.repo.url(tag))
            return
        if not export.model.is_dir():
            raise HubError(f"{export.model} is gone, and was not pushed", permanent=True)
        self.attempts[step] = self.attempts.get(step, 0) + 1
        self.note(export, state="pushing")
        published = self.send(export, is_late=newest_step(known, self.run_dir) > step)
        self.note(export, state="pushed", error=None, commit=published.commit, url=published.url)
        sent, total = len(published.sent), len(published.sent) + published.unchanged
        self.report(f"hub: step {step} is at {published.url} ({sent} of {total} files sent now, all verified)")

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
        files = dict(contents(self.run_dir, export.model, self.not_secret))
        files |= card(self.run_dir, step, self.repo.name, self.report)
        branch = f"checkpoint-{step:06d}" if is_late else "main"
        commit = Commit(f"step {step}", step_tag(step), branch, self.private)
        owner, total = same_run(json.loads(files["run.json"])), sum(map(size, files.values()))

        def send_once() -> Published:
            return in_time(lambda: publish(self.repo, files, commit, owner), f"pushing step {step}", total)

        try:
            published = send_once()
        except HubError as error:
            if not error.card_refused:
                raise
            self.report(f"hub: step {step} goes without its card's metadata, which the Hub refuses: {error}")
            files[CARD] = without_metadata(files[CARD])
            published = send_once()
        for path in published.kept:
            self.report(f"hub: {path} of {self.repo.name} was written or edited by somebody, and stays as it is")
        return published

    def fail(self, export: Export, error: HubError) -> None:
        self.note(export, state="failed", error=str(error))
        number = f", attempt {self.attempts[export.step]}" if export.step in self.attempts else ""
        self.report(f"hub: step {export.step}{number} failed: {error}")

    def note(self, export: Export, **changes) -> None:
        """Write into hub.json. A full disk must not stop a push, which reads nothing of it."""
        try:
            record(self.run_dir, self.repo.name, export.step, attempts=self.attempts.get(export.step, 0), **changes)
        except OSError as error:
            state = changes["state"]
            self.report(f"hub: step {export.step} is {state}, which could not be written to hub.json: {error}")


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

    return REGEX_YAML_BLOCK.sub("", read_bytes(content).decode(), count=1).lstrip().encode()


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
        push.report(f"nothing is missing: {len(push.done)} steps are at {push.repo.url()}")
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


def dry_run(args: argparse.Namespace, run_dir: Path, repo: Repo, one: bool) -> None:
    """List what would go, without leaving a trace."""
    known = {} if one else tags(repo, run_dir)
    wanted = [chosen_export(run_dir, args.step)] if one else exports(run_dir)
    owner = same_run(public_run(read_run(run_dir) or {}))
    for export in wanted:
        if one or not is_pushed(repo, export, known):
            print(f"step {export.step} to {repo.name}, tag {step_tag(export.step)}:")
            print_plan(plan(repo, chosen_files(args, run_dir, export), owner), repo.name)


def write_folder(args: argparse.Namespace, run_dir: Path) -> None:
    """Write the files that a push would send, all or none, into a new folder; no Hub is asked.

    Raises:
        UsageError: something is at `--folder` already, and stays.
    """
    folder = args.folder
    if folder.is_symlink() or (folder.exists() and not (folder.is_dir() and not any(folder.iterdir()))):
        raise UsageError(f"--folder {folder} is there already; remove it, or name another one")
    export = chosen_export(run_dir, args.step)
    files = with_manifest(Publishable(chosen_files(args, run_dir, export)))
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as part:
        for name, content in files.items():
            path = Path(part, "files", name)
            path.parent.mkdir(parents=True, exist_ok=True)
            with opened(content) as source, open(path, "wb") as copy:
                shutil.copyfileobj(source, copy, 1 << 20)
        Path(part, "files").replace(folder)
    total = megabytes(sum(size(file) for file in files.values()))
    where = f"in {folder} as they would stand in {args.repo}"
    print(f"step {export.step}: {len(files)} files, {total}, are {where}; nothing was sent")


main = command("openrlhf-ebpo hub push", __doc__, add_flags, run, extra="hub")
