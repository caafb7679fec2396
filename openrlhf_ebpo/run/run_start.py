"""Start a training in a run directory: what forbids it, the checkpoint that it resumes, the locks, and run.json."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any

from openrlhf_ebpo.files import TEMPORARY, write_json
from openrlhf_ebpo.run import checkpoint_list, manifest, resume
from openrlhf_ebpo.run.resume import CheckpointError, Search
from openrlhf_ebpo.run.run_lock import acquire_lock, check_free, hold_lock
from openrlhf_ebpo.run.run_log import (
    FULL_DISK,
    LOCK,
    SCHEMA,
    RunDirectoryError,
    get_nested,
    move_aside,
    read_metrics,
    read_run,
    timestamp,
    versions,
)
from openrlhf_ebpo.run.run_settings import RunSettings


def claim(settings: RunSettings, **run) -> list[IO]:
    """Claim the run directory as `open_run` does (`run` is what it takes), and the checkpoints.

    Returns:
        The locks, which are held until they are closed in this process and in those that have been given them.

    Raises:
        RunDirectoryError: another training is at work there, or `open_run` refuses.
    """
    run_dir, ckpt_path, force = settings.run_dir, settings.ckpt_path, settings.force
    if force and settings.resume and ckpt_path.resolve().is_relative_to(run_dir.resolve()):
        raise RunDirectoryError(
            f"--force would move --logger.run_dir {run_dir} aside with the checkpoints in it ({ckpt_path}), from which "
            "--ckpt.load_enable resumes: leave --force out, or name another --logger.run_dir"
        )
    if force and (run_dir / "run.json").exists():
        with hold_lock(run_dir):
            move_aside(run_dir)
    check_free(ckpt_path)
    locks = [acquire_lock(run_dir)]
    open_run(settings, **run)
    checkpoint_list.relocate(run_dir, ckpt_path)
    if ckpt_path.resolve() != run_dir.resolve():  # not sooner: it may lie in the run directory, which must be empty
        locks.append(acquire_lock(ckpt_path))
    if force and not settings.resume:
        for group in resume.groups(ckpt_path, "gae"):  # whichever the other run had
            if group.is_dir():
                print(f"moved the checkpoints of another run to {move_aside(group)}", flush=True)
    return [lock for lock in locks if lock]


def open_run(
    settings: RunSettings,
    *,
    argv: list[str],
    args: dict,
    instruction: Mapping | None = None,
    hardware: str | None = None,
    seams: Sequence[str] | None = None,
    resumed: Mapping = MappingProxyType({}),
) -> dict:
    """Claim the run directory and write run.json with status "running".

    Args:
        args: the resolved arguments, nested, already redacted.
        instruction: template and system message that the prompts have in common, already redacted; None: not known.
        hardware: the GPUs or the processor, in a few words.
        seams: what is replaced in OpenRLHF while it runs.
        resumed: the checkpoint that it resumes from, and the settings that have changed, already redacted.

    Raises:
        RunDirectoryError: the directory holds another run, the path is not a directory, or its disk is full.
    """
    run_dir, found = settings.run_dir, check_run_dir(settings, argv, args)
    now = timestamp()
    run = {
        "schema": SCHEMA,
        "id": (found or {}).get("id") or secrets.token_hex(8),
        "name": settings.name,
        "status": "running",
        "argv": argv,
        "args": args,
        "versions": versions(),
        "hardware": hardware,
        "seams": list(seams or ()),
        "model": args["actor"]["model_name_or_path"],
        "dataset": args["data"]["prompt_dataset"],
        "instruction": instruction,
        "seed": args["train"]["seed"],
        "started": found["started"] if found else now,
        "resumed": [*found.get("resumed", []), {"time": now, **resumed}] if found else [],
        "ended": None,
        **({"restarts": found["restarts"]} if found and "restarts" in found else {}),
    }
    try:
        write_json(run_dir / "run.json", run)
    except OSError as error:
        if error.errno not in FULL_DISK:
            raise
        raise RunDirectoryError(
            f"the disk of {run_dir} is full ({error}): make room on it, or name another --logger.run_dir"
        ) from error
    return run


def check_run_dir(settings: RunSettings, argv: list[str], args: dict, force: bool = False) -> dict | None:
    """Return the run that this command continues, None if it begins a new one.

    Args:
        force: an existing run is moved aside.

    Raises:
        RunDirectoryError: as `open_run`.
    """
    run_dir = settings.run_dir
    if run_dir.exists() and not run_dir.is_dir():
        raise RunDirectoryError(f"--logger.run_dir {run_dir} is a file; name a directory")
    if (
        not (run_dir / "run.json").exists()
        and run_dir.is_dir()
        and any(p.name != LOCK and p.suffix != TEMPORARY for p in run_dir.iterdir())
    ):
        raise RunDirectoryError(
            f"--logger.run_dir {run_dir} is not empty and holds no run.json: name an empty or a new directory"
        )
    if force:
        return None
    found = read_run(run_dir)
    if found is None:
        return None
    described = f"{run_dir} holds run {found.get('name')!r} ({found.get('status')}, started {found.get('started')})"
    ways = "choose another --logger.run_dir, or move it aside with --force"
    if found.get("schema") != SCHEMA:
        raise RunDirectoryError(f"{described} of schema {found.get('schema')}; this version writes {SCHEMA}: {ways}.")
    if not settings.resume:
        raise RunDirectoryError(f"{described}. Continue it with --ckpt.load_enable, {ways}.")
    before = found.get("args", {})
    same = found.get("argv") == argv or _comparable(before) == _comparable(args)
    if found.get("status") == "complete" and same and not settings.load_step:
        raise RunDirectoryError(
            f"{described} with these very settings: nothing is left to do. Raise --train.num_episodes to "
            f"continue, {ways}."
        )
    for flag in ("ckpt.path", "actor.model_name_or_path", "algo.advantage.estimator"):
        was, now = get_nested(before, *flag.split(".")), get_nested(args, *flag.split("."))
        if was != now and not _is_moved(flag, was, now, settings, found):
            raise RunDirectoryError(f"{described}, a foreign run: its --{flag} is {was}, yours {now}; {ways}.")
    return found


def _is_moved(flag: str, was: Any, now: Any, settings: RunSettings, found: dict) -> bool:
    """Return True for another path in a run that was moved or copied: the newest checkpoint in --ckpt.path is this
    run's, and the model's name is the same."""
    if flag == "algo.advantage.estimator" or not (isinstance(was, str) and isinstance(now, str)):
        return False
    if flag != "ckpt.path" and Path(was).name != Path(now).name:
        return False
    newest = resume.newest_complete(resume.groups(settings.ckpt_path, settings.estimator), settings.load_step)
    if newest.tag is None or not found.get("id"):
        return False
    return manifest.read(newest.folders[0] / newest.tag).run == found["id"]


def _comparable(args: dict) -> dict:
    """Return the settings without the run's name, whose default is the time of day, without the wish to resume, and
    from where."""
    logger = {k: v for k, v in args.get("logger", {}).items() if k != "wandb"}
    ckpt = {k: v for k, v in args.get("ckpt", {}).items() if k not in ("load_enable", "load_step", "attempt")}
    return {**args, "logger": logger, "ckpt": ckpt}


def checkpoint_to_resume(settings: RunSettings, contents: bool = False) -> Search:
    """Search the checkpoint that a resume begins with; without a tag if none was ever complete.

    Args:
        contents: compare checksums too, which reads all of it.

    Raises:
        CheckpointError: as `Search.check`, and if the run in the run directory has lost its checkpoints.
    """
    folders = resume.groups(settings.ckpt_path, settings.estimator)
    found = resume.newest_complete(folders, settings.load_step, contents)
    found.check()
    if found.tag is None and not settings.force:
        check_none_lost(settings.run_dir, folders[0])
    return found


def check_none_lost(run_dir: Path, folder: Path) -> None:
    """Check, where `folder` has no checkpoint, that the run never saved one: it would begin at step 0 again.

    Raises:
        CheckpointError: checkpoints.jsonl lists some, or the run is complete.
    """
    run = read_run(run_dir)
    steps = max((row["step"] for row in read_metrics(run_dir)), default=0) if run else 0
    tags = [row.get("tag") for row in checkpoint_list.rows(run_dir) if row.get("checkpoint")] if steps else []
    if not (tags or (steps and run.get("status") == "complete")):
        return
    listed = f" and checkpoints, the last {tags[-1]}" if tags else ""
    raise CheckpointError(
        f"{run_dir} records {steps} steps{listed}, and no checkpoint is in {folder}: training would begin at step 0 "
        "again. Put the checkpoints back, or begin again with --force, which moves this run aside"
    )
