"""A logged step under every estimator: what the answers of a group would have got."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from openrlhf_ebpo.errors import ReportedError
from openrlhf_ebpo.estimator.config import EstimatorConfig
from openrlhf_ebpo.estimator.registry import ESTIMATORS, title
from openrlhf_ebpo.estimator.replay import Logged, logged
from openrlhf_ebpo.run.rollout_columns import read_columns

from .comparison import Line, comparison
from .errors import RunError, reading
from .estimators import Given, under_every
from .figures import number
from .groups import Groups, file_of
from .runs import inside
from .text import HTML, harmless, html
from .workspace import Opened

MOST_RESPONSES = 2**16  # of a step
KINDS = 3  # of rewards in a group, a column each; of more, the lowest and the highest


@dataclass(frozen=True)
class Step:
    """left_out: titles of estimators that cannot be computed for this step."""

    logged: Logged
    found: dict[str, Given]
    left_out: list[str]


def on_step(opened: Opened, step: int, size: int) -> Step:
    """All groups of a step under every estimator.

    Raises:
        RunError: the step's file does not hold what is needed.
    """
    name = file_of(opened.run, step)
    if name is None:
        raise RunError(f"There are no rollouts of step {step}.")
    path, named = inside(opened.run, "rollouts", name), f"rollouts/{name}"
    with reading(named):
        status = path.stat()
        sign = status.st_mtime_ns, status.st_size
        try:
            return _on_file(path, sign, step, named, EstimatorConfig(size, "paper", *opened.rewards))
        except (ReportedError, ValueError) as error:  # it says more
            raise RunError(str(error)) from None


@functools.lru_cache(maxsize=4)
def _on_file(path: Path, sign: tuple[int, int], step: int, named: str, config: EstimatorConfig) -> Step:
    found = logged(step, read_columns(path, named, MOST_RESPONSES), config.n_samples_per_prompt, named)
    given, left_out = under_every(found.batch, config)
    return Step(found, given, [title(name) for name in left_out])


def batch_scale(opened: Opened, step: int, size: int) -> tuple[float, float] | None:
    """Mean m and deviation s with which training made the advantages of a step's responses: A = (r − V − m) / s. None unless
    one m and s fit them all.

    Raises:
        RunError: as `on_step`.
    """
    logged = on_step(opened, step, size).logged
    raw, advantages = logged.batch.rewards - logged.baselines, logged.advantages
    known = logged.batch.valid & np.isfinite(raw) & np.isfinite(advantages)
    x, y = raw[known], advantages[known]
    if not x.size or not np.ptp(x) > 0:
        return None
    slope = float(((x - x.mean()) * (y - y.mean())).sum() / ((x - x.mean()) ** 2).sum())
    offset = float(y.mean() - slope * x.mean())
    if not slope > 0 or np.abs(slope * x + offset - y).max() > 1e-3 * max(1.0, float(np.abs(y).max())):
        return None
    return -offset / slope, 1 / slope


def under_every_estimator(opened: Opened, groups: Groups, p: int, ran: str) -> HTML:
    """The section of one group. ran: the name of the estimator that trained."""
    try:
        step = on_step(opened, int(groups.step[p]), int(groups.size[p]))
        text = _section(step, int(groups.group[p]), ran)
    except RunError as error:
        text = html('<p class="more">{}</p>', harmless(error, 300))
    return html('<section class="passage every"><h3>Under every estimator</h3>{}</section>', text)


def _section(step: Step, group: int, ran: str) -> HTML:
    batch = step.logged.batch
    if not 0 <= group < len(batch.rewards):
        raise RunError(f"Group {group} is not in the file of its step.")
    valid = batch.valid[group]
    rewards = batch.rewards[group]
    levels = np.unique(rewards[valid])[::-1]
    levels = levels if len(levels) <= KINDS else levels[[0, -1]]
    kinds = [valid & (rewards == level) for level in levels]
    names = [
        f"reward {number(level)}, {int(k.sum())} answer{'s' if k.sum() > 1 else ''}"
        for level, k in zip(levels, kinds, strict=True)
    ]
    lines = [
        _line(name, given, group, kinds, step.logged if name == ran else None) for name, given in step.found.items()
    ]
    if ran not in step.found:
        lines.insert(0, _line(ran, None, group, kinds, step.logged))
    note = "What the answers of this group would have got in this batch."
    missing = f" Not to be computed from these rollouts: {', '.join(step.left_out)}." if step.left_out else ""
    return html(
        '<p class="more">{}{}</p>{}', note, missing, comparison(lines, names, "This group under every estimator")
    )


def _line(name: str, given: Given | None, group: int, kinds: list[np.ndarray], used: Logged | None) -> Line:
    """As logged where this is what trained."""
    baselines, advantages = (used.baselines, used.advantages) if used else (given.baselines, given.advantages)
    known = np.isfinite(baselines[group]).any()
    baselines = baselines if known or given is None else given.baselines
    about = ESTIMATORS[name].baseline if name in ESTIMATORS else ""
    return Line(
        title(name),
        about,
        baselines[group][np.logical_or.reduce(kinds)] if kinds else baselines[group][:0],
        [advantages[group][kind] for kind in kinds],
        strong=used is not None,
        trained=used is not None,
        alone=given is not None and given.alone and used is None,
    )
