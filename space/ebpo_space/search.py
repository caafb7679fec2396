"""Choosing groups by filters, their prompts, one group's answers, and the same prompt at other steps."""

from __future__ import annotations

import contextlib
import functools
import re
import time
from collections import Counter
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from openrlhf_ebpo.run.run_log import rollouts_path

from .errors import RunError, reading
from .figures import finite
from .groups import Groups, open_file, read_columns
from .parquet import columns_of, flags, numbers, rows_of, to_python
from .runs import Run, stamp

PUSHED_DOWN = "all fail, penalised"  # under EBPO, where GRPO would have left them alone
KINDS = {
    "all": "all groups",
    "rescued": PUSHED_DOWN,
    "all_fail": "all fail",
    "mixed": "mixed",
    "all_pass": "all pass",
    "truncated": "truncated",
    "errors": "reward errors",
}
SECONDS = 3.0  # a text search ends after
MAX_FOUND = 500  # groups of a text search
ERROR_FILES = 24  # steps whose errors are counted
MAX_MESSAGES = 1000  # of a step
MAX_ANSWERS = 4096  # of a group
COPIED_STEPS, COPIED_ROWS = 8, 256  # that are read to tell whether passing answers are one text
LEAST_COPIED, LEAST_COPIED_GROUPS = 8, 3
_BATCH = 1024
_STEPS = re.compile(r"(\d{1,9})(?:\s*[-–]\s*(\d{1,9}))?")


@dataclass(frozen=True)
class Filter:
    """Filters of a visitor. steps: "latest", "all", "12" or "10-20"; ranges are inclusive."""

    steps: str = "latest"
    kind: str = "all"
    cluster: str = ""
    success: tuple[float, float] = (0.0, 1.0)
    text: str = ""
    fields: tuple[str, ...] = ("prompt", "response", "label")  # that the text is looked for in


def step_range(text: str, groups: Groups) -> tuple[int, int]:
    """First and last step of a filter's text.

    Raises:
        RunError: the text is not a range of steps.
    """
    if not len(groups):
        return 0, 0
    if text in ("all", "latest"):
        return (0 if text == "all" else int(groups.step.max())), int(groups.step.max())
    match = _STEPS.fullmatch(text)
    if not match:
        raise RunError("Steps are “latest”, “all”, one step such as 12, or a range such as 10-20.")
    return int(match[1]), int(match[2] or match[1])


def choose(run: Run, groups: Groups, chosen: Filter, fail: float = 0.0, passing: float = 1.0) -> tuple[np.ndarray, str]:
    """Find groups by the index alone; with a text, the texts of those that fit are searched, latest first.

    Returns:
        positions in the index, latest step first; a note on what a text search has not read, or "".
    """
    first, last = step_range(chosen.steps, groups)
    failed, passed = groups.all_fail(fail), groups.all_pass(passing)
    kinds = {
        "rescued": failed & (groups.pushed_down > 0),
        "mixed": (groups.valid > 0) & ~failed & ~passed,
        "all_fail": failed,
        "all_pass": passed,
        "truncated": groups.truncated > 0,
        "errors": groups.errors > 0,
    }
    keep = (groups.step >= first) & (groups.step <= last) & kinds.get(chosen.kind, True)
    if chosen.cluster:
        keep &= groups.cluster == chosen.cluster
    if tuple(chosen.success) != (0.0, 1.0):
        keep &= (groups.success >= chosen.success[0] - 1e-9) & (groups.success <= chosen.success[1] + 1e-9)
    positions = np.flatnonzero(keep)
    positions = positions[np.argsort(-groups.step[positions], kind="stable")]
    return _with_text(run, groups, positions, chosen) if chosen.text else (positions, "")


def _with_text(run: Run, groups: Groups, positions: np.ndarray, chosen: Filter) -> tuple[np.ndarray, str]:
    started, kept, searched = time.monotonic(), [], 0
    steps = list(dict.fromkeys(groups.step[positions].tolist()))
    for step in steps:
        if len(kept) >= MAX_FOUND or time.monotonic() - started > SECONDS:
            break
        rows, whole = _rows_with(run, step, chosen, started + SECONDS)
        searched += whole
        here = positions[groups.step[positions] == step]
        first = groups.row[here]
        kept += here[np.searchsorted(rows, first) < np.searchsorted(rows, first + groups.size[here])].tolist()
    left = len(steps) - searched
    note = f"Searched the latest {searched} of {len(steps)} steps; narrow the steps to search others." if left else ""
    if len(kept) > MAX_FOUND:
        note = f"More than {MAX_FOUND} groups have this text; the latest {MAX_FOUND} are listed."
    return np.array(kept[:MAX_FOUND], int), note


def _rows_with(run: Run, step: int, chosen: Filter, until: float) -> tuple[np.ndarray, bool]:
    """Rows, ascending, that hold the text, whatever its case; and whether there was time for all of them."""
    found, row = [np.zeros(0, int)], 0
    with (
        contextlib.suppress(RunError),
        reading(f"step {step}"),
    ):  # the index names damaged files; hits before that count
        file = open_file(run, step)
        columns = [c for c in chosen.fields if c in columns_of(file)]
        for batch in file.iter_batches(_BATCH, columns=columns):
            hits = np.zeros(batch.num_rows, bool)
            for column in batch.columns:
                match = pc.match_substring(column.cast(pa.string()), chosen.text, ignore_case=True)
                hits |= pc.fill_null(match, False).to_numpy(zero_copy_only=False)
            found.append(np.flatnonzero(hits) + row)
            row += batch.num_rows
            if time.monotonic() > until and row < file.metadata.num_rows:
                return np.concatenate(found), False
    return np.concatenate(found), True


def error_counts(run: Run, groups: Groups, positions: np.ndarray) -> list[tuple[str, int]]:
    """Messages of failed rewards in the steps of these groups and how often each came, the most frequent first. The
    latest ERROR_FILES steps with errors are read; a message is its first line."""
    found: Counter[str] = Counter()
    steps = np.unique(groups.step[positions[groups.errors[positions] > 0]])[-ERROR_FILES:]
    for step in steps.tolist():
        try:
            counted = pc.value_counts(read_columns(run, step, ("error",))["error"].drop_null())
            for each in counted.to_pylist()[:MAX_MESSAGES]:
                found[str(each["values"]).strip().split("\n")[0][:200]] += each["counts"]
        except (RunError, KeyError, pa.ArrowException, ValueError):
            continue  # the index says which files are damaged
    return found.most_common(5)


def position_of(groups: Groups, step: int, group: int) -> int | None:
    found = np.flatnonzero((groups.step == step) & (groups.group == group))
    return int(found[0]) if len(found) else None


def answers(run: Run, groups: Groups, position: int) -> list[dict]:
    """Read the rows of one group, all columns.

    Raises:
        RunError: the file is gone or damaged.
    """
    step, row, size = (int(values[position]) for values in (groups.step, groups.row, groups.size))
    columns = columns_of(open_file(run, step))
    table = read_columns(run, step, columns, slice(row, row + min(size, MAX_ANSWERS)))
    return rows_of(table)


def batch_scale(run: Run, step: int) -> tuple[float, float] | None:
    """Find mean m and deviation s with which training made the advantages of a step's responses: A = (r − V − m) / s.
    None unless one m and s fit them all.

    Raises:
        RunError: the file is gone or damaged.
    """
    table = read_columns(run, step, ("reward", "baseline", "advantage", "valid"))
    reward, baseline, advantages = (numbers(table, name) for name in ("reward", "baseline", "advantage"))
    raw = reward - baseline
    known = flags(table, "valid", np.isfinite(reward)) & np.isfinite(raw) & np.isfinite(advantages)
    x, y = raw[known], advantages[known]
    if not x.size or not np.ptp(x) > 0:
        return None
    slope = float(((x - x.mean()) * (y - y.mean())).sum() / ((x - x.mean()) ** 2).sum())
    offset = float(y.mean() - slope * x.mean())
    if not slope > 0 or np.abs(slope * x + offset - y).max() > 1e-3 * max(1.0, float(np.abs(y).max())):
        return None
    return -offset / slope, 1 / slope


def one_passing_text(run: Run, groups: Groups, middle: float) -> tuple[np.ndarray, np.ndarray]:
    """Steps, of the first to the last a few, and the share of their passing answers that are one and the same text.
    An answer that holds its label is not counted as such: right answers to questions with one label may be alike.

    Args:
        middle: the reward above which an answer passes.
    """
    present = np.unique(groups.step)
    steps = np.unique(present[np.linspace(0, len(present) - 1, COPIED_STEPS).astype(int)]) if len(present) else present
    found = []
    for step in steps.tolist():
        with contextlib.suppress(RunError):
            found.append((step, _one_text(run, step, stamp(rollouts_path(run.path, step)), middle)))
    return np.array([step for step, _ in found], int), np.array([share for _, share in found], float)


@functools.lru_cache(512)
def _one_text(run: Run, step: int, stamp: tuple[int, ...], middle: float) -> float:
    table = read_columns(run, step, ("group", "reward", "response", "label"), slice(0, COPIED_ROWS))
    passing = [row for row in rows_of(table) if (reward := finite(row["reward"])) is not None and reward > middle]
    if len(passing) < LEAST_COPIED:
        return 0.0
    labelled = lambda row: (label := str(row.get("label") or "").strip()) and label in str(row["response"])  # noqa: E731
    texts = Counter(str(row["response"]).strip() for row in passing if not labelled(row))
    text, count = texts.most_common(1)[0] if texts else ("", 0)
    prompts = {row["group"] for row in passing if str(row["response"]).strip() == text}
    return count / len(passing) if len(prompts) >= LEAST_COPIED_GROUPS else 0.0


def history(groups: Groups, prompt_id: str | None) -> np.ndarray:
    """Positions of the groups of one prompt, in order of step."""
    return np.flatnonzero(groups.prompt_id == prompt_id) if prompt_id else np.zeros(0, int)


def prompts_of(run: Run, groups: Groups, positions: np.ndarray) -> dict[int, str]:
    """Read the prompts of groups, by position, each file once; nothing for a file that cannot be read."""
    found: dict[int, str] = {}
    for step in dict.fromkeys(groups.step[positions].tolist()):
        here = [int(p) for p in positions if groups.step[p] == step]
        rows = groups.row[here]
        with contextlib.suppress(RunError):
            first, last = int(rows.min()), int(rows.max())
            table = read_columns(run, step, ("prompt",), slice(first, last + 1))
            texts = to_python(table["prompt"].take(pa.array(rows - first)))
            found |= {p: str(text or "") for p, text in zip(here, texts, strict=True)}
    return found
