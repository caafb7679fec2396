"""Write the run directory from the training process: metrics, rollouts, prior, checkpoints; and roll it back at a
resume."""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import time
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import datetime
from pathlib import Path

import pyarrow.parquet as pq

from openrlhf_ebpo.files import append_json_line, read_json_lines, replace_file, write_json, write_json_lines
from openrlhf_ebpo.run.run_log import (
    PRIOR,
    PRIOR_START,
    RunDirectoryError,
    rollouts_path,
    step_files,
)

ROW_GROUP_SIZE = 128  # rows per Parquet row group: the least that is read to show one answer


class RunWriter:
    """Rollouts are decoded and written by a thread, in order; an error there is raised at the next step."""

    def __init__(self, run_dir: str | Path, tokenizer, rollouts_every: int = 1):
        self.run_dir = Path(run_dir)
        self.tokenizer = tokenizer
        self.rollouts_every = rollouts_every
        (self.run_dir / "rollouts").mkdir(parents=True, exist_ok=True)
        self._folder = self.run_dir.stat()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="run_log")
        self._pending: list[Future] = []
        self._continues = True

    def roll_back(self, step: int, continues: bool = True) -> None:
        """Move everything after `step`, the one a resumed run starts from, to superseded/<time>/.

        continues: the estimator continues from its state after that step, and not from another one.
        """
        roll_back(self.run_dir, step)
        there = rollouts_path(self.run_dir, step).exists()
        self._continues = continues and (step == 0 or there)

    def check_in_place(self) -> None:
        """Raises RunDirectoryError if the run directory was moved or deleted: what is written would make a new one."""
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(self.run_dir.stat(), self._folder):
                return
        raise RunDirectoryError(
            f"the run directory {self.run_dir} was moved or deleted while the training ran. Move it back, and resume "
            "with --ckpt.load_enable"
        )

    def write_metrics(self, step: int, metrics: dict) -> None:
        self.check_in_place()
        row = {**{k: plain(v) for k, v in metrics.items()}, "step": step, "time": time.time()}
        append_json_line(self.run_dir / "metrics.jsonl", row)

    def write_rollouts(self, step: int, rollouts, began_from: dict | None = None) -> None:
        """Hand one batch to the thread; waits only when two batches are still being written.

        began_from: the estimator's state before this step, as in prior.json. It is written where the rollouts before do
            not lead to it.
        """
        self.check_in_place()
        while len(self._pending) > 1 or (self._pending and self._pending[0].done()):
            self._pending.pop(0).result()
        logged = step % self.rollouts_every == 0
        if logged:
            start = None if self._continues else began_from
            self._pending.append(self._thread.submit(self._write_step, step, rollouts, start))
        self._continues = logged

    def _write_step(self, step: int, rollouts, start: dict | None) -> None:
        with replace_file(rollouts_path(self.run_dir, step)) as temporary:
            table = rollouts.table(step, self.tokenizer)
            if start is not None:
                table = table.replace_schema_metadata({PRIOR_START: json.dumps(start)})
            pq.write_table(table, temporary, compression="zstd", row_group_size=ROW_GROUP_SIZE)

    def write_prior(self, state: dict) -> None:
        self.check_in_place()
        write_json(self.run_dir / PRIOR, state)

    def write_checkpoint(self, step: int, **paths) -> None:
        self.check_in_place()
        append_json_line(self.run_dir / "checkpoints.jsonl", {"step": step, **paths, "complete": True})

    def flush(self) -> None:
        """Wait until all rollouts handed over are on disk; raises what went wrong."""
        while self._pending:
            self._pending.pop(0).result()


def roll_back(run_dir: Path, step: int) -> None:
    """Move what was recorded after `step` to superseded/."""
    aside = run_dir / "superseded" / f"{datetime.now():%Y%m%dT%H%M%S.%f}-after-step-{step:06d}"
    for name in ("metrics.jsonl", "checkpoints.jsonl"):
        path, rows = run_dir / name, read_json_lines(run_dir / name)
        keep = [row for row in rows if row["step"] <= step]
        text = path.read_text() if path.is_file() else ""
        if len(keep) < len(rows) or (text and not text.endswith("\n")):
            write_json_lines(aside / name, (row for row in rows if row["step"] > step))
            write_json_lines(path, keep)
    for number, path in step_files(run_dir).items():
        if number > step:
            (aside / "rollouts").mkdir(parents=True, exist_ok=True)
            shutil.move(path, aside / "rollouts" / path.name)
    for path in sorted((run_dir / "eval").glob("*/*/step-*")):
        if int(path.name.removeprefix("step-")) > step:
            target = aside / path.relative_to(run_dir)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.move(path, target)


def plain(value):
    """Return a JSON number: tensors and numpy scalars become floats, NaN and infinity null."""
    if isinstance(value, (str, bool, int, type(None))):
        return value
    number = float(value)
    return number if math.isfinite(number) else None
