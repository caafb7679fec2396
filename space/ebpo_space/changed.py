"""What the estimator changed against GRPO: which responses got an advantage that GRPO gives none, and how far all moved.

Read from the rollouts of some steps, spread over the run: a file at a time, once per file, without its texts.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import astuple, dataclass

import numpy as np
import pyarrow as pa

from .errors import RunError
from .groups import read_columns, rollout_files
from .runs import Run, inside

FILES = 24  # steps that are read
_COLUMNS = ("advantage", "grpo_advantage", "baseline", "group_mean", "reward", "valid")


@dataclass(frozen=True)
class Changed:
    """Sums over valid responses. ignored: without an advantage under GRPO; moved: those of them that have one here, failed and
    passed by their group; push_…: sums of their advantages; shift: sum of |advantage − GRPO's|."""

    steps: int = 0
    responses: int = 0
    ignored: int = 0
    failed: int = 0
    passed: int = 0
    push_failed: float = 0.0
    push_passed: float = 0.0
    shift: float = 0.0

    def __add__(self, other: Changed) -> Changed:
        return Changed(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))

    def per(self, name: str, of: str) -> float | None:
        """One of the sums per response of a kind; None where there are none."""
        count = getattr(self, of)
        return getattr(self, name) / count if count else None


def changed(run: Run, middle: float) -> tuple[Changed, int]:
    """What is known, and how many steps have rollouts; files that cannot be read count as nothing: Samples names them.
    middle: between fail and pass reward."""
    files = rollout_files(run)
    chosen = [files[i] for i in sorted({round(i) for i in np.linspace(0, len(files) - 1, min(FILES, len(files)))})]
    return sum(_each(run, chosen, middle), Changed()), len(files)


def _each(run: Run, files: Iterable, middle: float) -> Iterable[Changed]:
    for path in files:
        try:
            status = inside(run, "rollouts", path.name).stat()
            yield _of_file(run, path.name, (status.st_mtime_ns, status.st_size), middle)
        except (RunError, OSError):
            yield Changed()


@functools.lru_cache(2048)
def _of_file(run: Run, name: str, changed: tuple, middle: float) -> Changed:
    return summed(read_columns(run, name, _COLUMNS), middle)


def summed(table: pa.Table, middle: float) -> Changed:
    """Of one step's rollouts; nothing where columns are missing or of another type."""
    try:
        advantage, grpo, baseline, mean, reward = (_floats(table, name) for name in _COLUMNS[:5])
        valid = table["valid"].cast(pa.bool_()).fill_null(False).to_numpy(zero_copy_only=False)
    except Exception:  # of a file from anywhere; the index says which cannot be read
        return Changed()
    known = valid & np.isfinite(reward) & np.isfinite(advantage) & np.isfinite(grpo)
    ignored = known & (grpo == 0)
    moved = (
        ignored & (advantage != 0) & np.isfinite(baseline)
    )  # OpenRLHF's own have none, and a KL penalty moves theirs
    failed, passed = moved & (mean <= middle), moved & (mean > middle)
    return Changed(
        steps=1,
        responses=int(known.sum()),
        ignored=int(ignored.sum()),
        failed=int(failed.sum()),
        passed=int(passed.sum()),
        push_failed=float(advantage[failed].sum()),
        push_passed=float(advantage[passed].sum()),
        shift=float(np.abs(advantage - grpo)[known].sum()),
    )


def _floats(table: pa.Table, name: str) -> np.ndarray:
    return table[name].cast(pa.float64()).to_numpy(zero_copy_only=False).astype(float)
