"""Which rollouts go when --logger.keep_rollouts keeps the newest N steps, and what says so.

The oldest files go a few at a time, up to a step whose starting state is known, so that what is left can be replayed.
dropped.json is written first: a reader can tell what was dropped from what was lost, and an interruption does no harm.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence
from pathlib import Path

from openrlhf_ebpo.errors import ReportedError
from openrlhf_ebpo.files import write_json

DROPPED = "dropped.json"
RESPONSE_BYTES, TOKEN_BYTES = 150, 1.5  # of a row, compressed, and of a token of its text (docs/scaling.md)
_NAME = re.compile(r"step-(\d{1,9})\.parquet", re.ASCII)


def step_files(run_dir: Path) -> dict[int, Path]:
    """step -> file of its rollouts, in order of step."""
    named = ((_NAME.fullmatch(path.name), path) for path in (run_dir / "rollouts").glob("step-*.parquet"))
    return dict(sorted((int(match[1]), path) for match, path in named if match))


def first_kept(run_dir: Path) -> int:
    """The rollouts of the steps before this one were dropped on purpose; 1 where none were.

    Raises:
        ReportedError: dropped.json is damaged.
    """
    path = run_dir / DROPPED
    try:
        step = json.loads(path.read_text())["rollouts_before"]
    except FileNotFoundError:
        return 1
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise ReportedError(f"{path} is damaged ({str(error)[:300]})") from error
    if type(step) is not int or step < 1:
        raise ReportedError(f"{path} is damaged (rollouts_before is no step)")
    return step


def spare(keep: int) -> int:
    """How many more files than `keep` there may be: a state per prompt is large, and each removal needs one."""
    return max(1, keep // 10)


def next_first(steps: Sequence[int], keep: int, starts: Collection[int] | None) -> int | None:
    """The step that becomes the first to be kept; None where no step before it can go.

    steps: those in the log, in order. starts: of which the state before is known; None where nothing depends on it.
    """
    possible = [step for step in steps[1 : len(steps) - keep + 1] if starts is None or step in starts]
    return possible[-1] if possible else None


def drop_before(run_dir: Path, first: int) -> None:
    write_json(run_dir / DROPPED, {"rollouts_before": first})
    for step, path in step_files(run_dir).items():
        if step < first:
            path.unlink(missing_ok=True)


def roll_back(run_dir: Path, step: int) -> None:
    """Steps after `step` will be logged again."""
    if first_kept(run_dir) > step + 1:
        write_json(run_dir / DROPPED, {"rollouts_before": step + 1})


def size_notice(args) -> str:
    """What the rollouts of a training take, from upstream's nested `args`; texts that compress badly take more."""
    responses = args.rollout.batch_size * args.rollout.n_samples_per_prompt
    tokens = args.rollout.max_new_tokens or args.data.max_len
    step = responses * (RESPONSE_BYTES + TOKEN_BYTES * tokens) / 1e6
    every, keep = args.logger.rollouts_every, args.logger.keep_rollouts
    total = f"{step * (keep + spare(keep)):,.1f} MB" if keep else f"{step * 1000 / every:,.0f} MB in 1,000 steps"
    return (
        f"rollouts: up to about {step:,.2f} MB a logged step, {total} (--logger.rollouts_every {every}, "
        f"--logger.keep_rollouts {keep or 'all'})"
    )
