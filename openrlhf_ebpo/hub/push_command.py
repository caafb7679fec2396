"""openrlhf-ebpo hub push: a run's models to the Hugging Face Hub, verified file by file, each step under a tag.

Without --repo it finishes what a training with --hub.repo has queued, also after a kill or a broken connection: files
that have arrived are not sent again. With --repo it pushes a saved model of any run. RUN_DIR/hub.json
records the results.

  openrlhf-ebpo hub push RUN_DIR                                      finish
  openrlhf-ebpo hub push RUN_DIR --repo owner/name --dry_run          list what would go
  openrlhf-ebpo hub push RUN_DIR --repo owner/name --step 20          one saved step; the last one without --step
  openrlhf-ebpo hub push RUN_DIR --repo owner/name --public           readable by everybody
  openrlhf-ebpo hub push RUN_DIR --repo owner/name --folder DIR       the files that would go, into a folder; nothing is sent

Only the files of a model are sent; others are named. A file with a secret in it (a token in tokenizer_config.json)
stops the push, and so does an incomplete model: --dry_run says both, and what is taken out of records.

The token comes from HF_TOKEN or `hf auth login`. RUN_DIR is a training's --logger.run_dir (<ckpt.output_dir>/run).
"""

from __future__ import annotations

import argparse
import shlex
import sys
import tempfile
from pathlib import Path

from openrlhf_ebpo.command import command
from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.hub import outbox
from openrlhf_ebpo.hub.content import FULL_STATE, Content, size
from openrlhf_ebpo.hub.model_files import contents, print_skipped
from openrlhf_ebpo.hub.outbox import step_tag
from openrlhf_ebpo.hub.places import target
from openrlhf_ebpo.hub.public import public_run
from openrlhf_ebpo.hub.push import STALE, card, check_target, drain
from openrlhf_ebpo.hub.upload import MANIFEST, complete, megabytes, plan, print_plan
from openrlhf_ebpo.hub_client import ATTEMPTS, hub_api
from openrlhf_ebpo.run.checkpoints import final_model, saved
from openrlhf_ebpo.run.run_lock import write_holder
from openrlhf_ebpo.run.run_log import read_run
from openrlhf_ebpo.seams.remote_code import FLAG, trust


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "run_dir", type=Path, metavar="RUN_DIR", help="the run directory, with run.json in it, or the folder it is in"
    )
    parser.add_argument("--repo", metavar="OWNER/NAME", help="model repo to push to; created where it does not exist")
    parser.add_argument(
        "--step", type=int, metavar="N", help="which saved step (with --repo); the last one if not given"
    )
    parser.add_argument("--public", action="store_true", help="a repo that is created is public; otherwise private")
    parser.add_argument("--full_state", action="store_true", help="push the optimizer's state too (pickles), to resume")
    parser.add_argument(
        "--attempts",
        type=int,
        default=ATTEMPTS,
        metavar="N",
        help=f"give up after so many failures in a row; {ATTEMPTS}",
    )
    parser.add_argument(
        FLAG, action="store_true", help="also push a model that needs custom code to load; the code does not run here"
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
    trust(args)
    run_dir = find_run(args.run_dir)
    check_flags(args)
    if args.folder:
        write_folder(args, run_dir)
        return
    api = hub_api()
    if args.dry_run:
        dry_run(args, run_dir, api)
        return
    with held_lock(run_dir):
        check_targets(args, run_dir, api)
        if args.repo:
            queue(args, run_dir)
        elif not outbox.pending(run_dir):
            print("\n".join(nothing_to_do(run_dir)))
        error = drain(run_dir, api, attempts=args.attempts)
    if left := [item.step for item in outbox.items(run_dir)]:
        raise UsageError(
            f"steps {', '.join(map(str, left))} are not pushed ({error}); they stay queued: repeat the command to continue"
        )


def check_flags(args: argparse.Namespace) -> None:
    if args.folder and args.dry_run:
        raise UsageError("--folder writes files and --dry_run writes none: give one of the two")
    if args.repo:
        args.repo = target(args.repo)
        return
    needing = ("step", "public", "full_state", "folder", "not_secret")
    if given := [f"--{name}" for name in needing if getattr(args, name) not in (None, False, [])]:
        raise UsageError(f"{', '.join(given)}: say where to push, with --repo owner/name")


def find_run(path: Path) -> Path:
    """The run directory, also given a training's --ckpt.output_dir."""
    for folder in (path, path / "run"):
        if read_run(folder):
            return folder.absolute()
    raise UsageError(f"{path} holds no run.json: name a run directory (a training's --logger.run_dir)")


def held_lock(run_dir: Path):
    lock = outbox.take_lock(run_dir)
    if lock is None:
        raise UsageError(
            f"process {outbox.who_pushes(run_dir)} is pushing this run at the moment (see {run_dir / 'hub.json'}): wait "
            "for it, or end it first"
        )
    write_holder(lock)
    return lock


def check_targets(args: argparse.Namespace, run_dir: Path, api) -> None:
    """Check --repo, or the repos of what waits, and print notices.

    Raises:
        UsageError: no right to write there, or the repo holds something else.
    """
    targets = {args.repo: not args.public} if args.repo else {i.repo: i.private for i in outbox.items(run_dir)}
    run = public_run(read_run(run_dir)) if args.repo else None
    for repo, private in targets.items():
        print(*check_target(api, repo, private, run), sep="\n", file=sys.stderr)


def queue(args: argparse.Namespace, run_dir: Path) -> None:
    step, model, full_state = chosen_model(args, run_dir)
    check_waiting(args, run_dir, step)
    how = {"private": not args.public, "not_secret": args.not_secret}
    outbox.add(run_dir, step, model, repo=args.repo, full_state=full_state, **how)


def check_waiting(args: argparse.Namespace, run_dir: Path, step: int) -> None:
    """Check that no snapshot of the step is lost: a new one replaces it.

    Raises:
        UsageError: the snapshot that waits goes to another repo, or holds more.
    """
    item = next((item for item in outbox.items(run_dir) if item.step == step), None)
    if not item:
        return
    finish = (
        f"finish that first: openrlhf-ebpo hub push {shlex.quote(str(run_dir))}, or give it up: "
        f"rm -r {shlex.quote(str(item.path))}"
    )
    if item.repo != args.repo:
        raise UsageError(f"step {step} waits to be pushed to {item.repo}: {finish}")
    if not args.full_state and any(path.startswith(f"{FULL_STATE}/") for path in item.files()):
        raise UsageError(f"step {step} waits to be pushed with the optimizer's state: {finish}")


def saved_model(run_dir: Path, step: int | None) -> tuple[int, Path, Path | None]:
    """(step, exported model, DeepSpeed checkpoint or None) of a saved step, the last one for None.

    Raises:
        UsageError: it does not exist; names those that do.
    """
    found: dict[int, tuple[Path, Path | None]] = {}
    gone = []
    for each in saved(run_dir):
        if each.model and each.model.is_dir():
            found[each.step] = each.model, each.checkpoint if each.checkpoint and each.checkpoint.is_dir() else None
        elif each.model:
            gone.append(f"step {each.step} was saved in {each.recorded}, which is gone")
    if final := final_model(run_dir):
        found.setdefault(final[0], (final[1], None))
    wanted = max(found, default=None) if step is None else step
    if wanted not in found:
        there = ", ".join(map(str, sorted(found))) or "none: " + (
            gone[-1] if gone else "train with --ckpt.save_hf and --ckpt.save_steps"
        )
        raise UsageError(f"{run_dir}: no saved model{'' if step is None else f' of step {step}'}; saved steps: {there}")
    return wanted, *found[wanted]


def nothing_to_do(run_dir: Path) -> list[str]:
    steps = outbox.read_state(run_dir)["steps"]
    if not steps:
        raise UsageError(f"{run_dir}: nothing is queued, for it was trained without --hub.repo: give --repo owner/name")
    return [f"nothing is waiting; step {step}: {row['state']}, {row.get('url')}" for step, row in steps.items()]


def chosen_files(args: argparse.Namespace, run_dir: Path) -> tuple[int, dict[str, Content]]:
    """(step, path in the repo -> content) that --repo would get, card included."""
    step, model, full_state = chosen_model(args, run_dir)
    print_skipped(run_dir, model, full_state)
    return step, {**contents(run_dir, model, full_state, args.not_secret), **card(run_dir, step, args.repo)}


def dry_run(args: argparse.Namespace, run_dir: Path, api) -> None:
    """List what would go, without leaving a trace."""
    if args.repo:
        step, files = chosen_files(args, run_dir)
        pushes = [(step, args.repo, files)]
    else:
        items = outbox.items(run_dir)
        pushes = [(i.step, i.repo, outbox.snapshot_files(i) | card(run_dir, i.step, i.repo)) for i in items]
    if not pushes:
        print("\n".join(nothing_to_do(run_dir)))
    for step, repo, files in pushes:
        print(f"step {step} to {repo}, tag {step_tag(step)}:")
        print_plan(plan(api, repo, files, delete=STALE), repo)


def write_folder(args: argparse.Namespace, run_dir: Path) -> None:
    """Write the files that a push would send, all or none, into a new folder; no Hub is asked.

    Raises:
        UsageError: something is at `--folder` already, and stays.
    """
    folder = args.folder
    if folder.is_symlink() or (folder.exists() and not (folder.is_dir() and not any(folder.iterdir()))):
        raise UsageError(f"--folder {folder} is there already; remove it, or name another one")
    step, found = chosen_files(args, run_dir)
    files = complete(found, MANIFEST)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as part:
        for name, content in files.items():
            outbox.put(content, Path(part, "files", name), links=False)
        Path(part, "files").replace(folder)
    total = megabytes(sum(size(file) for file in files.values()))
    print(
        f"step {step}: {len(files)} files, {total}, are in {folder} as they would stand in {args.repo}; nothing was sent"
    )


def chosen_model(args: argparse.Namespace, run_dir: Path) -> tuple[int, Path, list[Path]]:
    """(step, exported model, checkpoints to go along)."""
    step, model, checkpoint = saved_model(run_dir, args.step)
    if args.full_state and not checkpoint:
        raise UsageError(f"--full_state: the optimizer's state of step {step} is not there any more")
    return step, model, [checkpoint] if args.full_state else []


main = command("openrlhf-ebpo hub push", __doc__, add_flags, run, extra="hub")
