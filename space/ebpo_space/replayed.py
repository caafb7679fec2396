"""A logged step under every estimator of the registry: what the answers of a group would have got, as a table. It comes from
the code that trains (openrlhf_ebpo/estimator), without torch."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from openrlhf_ebpo.errors import ReportedError, UsageError
from openrlhf_ebpo.estimator.config import EstimatorConfig
from openrlhf_ebpo.estimator.contract import Batch
from openrlhf_ebpo.estimator.registry import ESTIMATORS, offline, title
from openrlhf_ebpo.estimator.replay import Logged, ReplayError, keeps_state, logged, stepped
from openrlhf_ebpo.run.rollout_columns import read_columns

from .errors import RunError, reading
from .figures import number, signed
from .groups import Groups, file_of
from .runs import inside
from .tables import table
from .text import HTML, harmless, html, joined
from .workspace import Opened

MAX_RESPONSES = 2**16  # of a step
KINDS = 3  # of rewards in a group, a column each; of more, the lowest and the highest
_SAME = 0.005  # advantages that are shown as one number
_NOTHING = 1e-9  # what rounding leaves


@dataclass(frozen=True)
class Given:
    """The result of one estimator. baselines, advantages: (M, G). alone: in a run it would know earlier batches too."""

    baselines: np.ndarray
    advantages: np.ndarray
    alone: bool = False


@dataclass(frozen=True)
class Step:
    """left_out: titles of estimators that cannot be computed for this step."""

    logged: Logged
    found: dict[str, Given]
    left_out: list[str]


def on_step(opened: Opened, step: int, size: int) -> Step:
    """Compute all groups of a step under every estimator.

    Raises:
        RunError: the step's file does not hold what is needed.
    """
    name = file_of(opened.run, step)
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
    found = logged(step, read_columns(path, named, MAX_RESPONSES), config.n_samples_per_prompt, named)
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


def under_every(batch: Batch, config: EstimatorConfig) -> tuple[dict[str, Given], list[str]]:
    """name -> what it gives, in the registry's order; and the names of those that cannot work with this batch."""
    found, left_out = {}, []
    for name in ESTIMATORS:
        try:
            if estimator := offline(name, config):
                result = stepped(estimator, batch, estimator.initial(), "this batch")
                baselines = np.broadcast_to(result.baselines, result.advantages.shape)
                found[name] = Given(baselines, result.advantages, keeps_state(estimator))
        except (UsageError, ReplayError):
            left_out.append(name)
    return found, left_out


def _section(step: Step, group: int, ran: str) -> HTML:
    batch = step.logged.batch
    if not 0 <= group < len(batch.rewards):
        raise RunError(f"Group {group} is not in the file of its step.")
    valid, rewards = batch.valid[group], batch.rewards[group]
    levels = np.unique(rewards[valid])[::-1]
    levels = levels if len(levels) <= KINDS else levels[[0, -1]]
    kinds = [valid & (rewards == level) for level in levels]
    heads = [
        f"reward {number(level)}, {int(k.sum())} answer{'s' if k.sum() > 1 else ''}"
        for level, k in zip(levels, kinds, strict=True)
    ]
    names = list(step.found) if ran in step.found else [ran, *step.found]
    rows = []
    for name in names:
        baselines, advantages = _numbers(step, name, group, kinds, name == ran)
        rows.append([_name(step, name, ran), _span(baselines, number), *(_span(each, signed) for each in advantages)])
    missing = f" Not to be computed from these rollouts: {', '.join(step.left_out)}." if step.left_out else ""
    return html(
        '<p class="more">What the answers of this group would have got in this batch.{}</p>{}',
        *(missing, table(["estimator", "baseline", *heads], rows, "This group under every estimator", "estimators")),
    )


def _numbers(step: Step, name: str, group: int, kinds: list[np.ndarray], trained: bool) -> tuple:
    """Baselines of the group's answers, and advantages of each kind of them; as logged where this is what trained."""
    given = step.found.get(name)
    baselines = given.baselines[group] if given else step.logged.baselines[group]
    if trained and np.isfinite(step.logged.baselines[group]).any():
        baselines = step.logged.baselines[group]
    advantages = (step.logged if trained else given).advantages[group]
    return baselines[np.any(kinds, axis=0)] if kinds else baselines[:0], [advantages[kind] for kind in kinds]


def _name(step: Step, name: str, ran: str) -> HTML:
    mark = HTML(' <em class="good">used in training</em>') if name == ran else ""
    alone = HTML(" <em>from this batch alone</em>") if name != ran and step.found[name].alone else ""
    return html("<b>{}</b>{}{}", harmless(title(name), 40), mark, alone)


def _span(values: np.ndarray, written: Callable) -> HTML:
    """One number, or the lowest and the highest."""
    values = values[np.isfinite(values)]
    if not values.size:
        return HTML('<span class="none">–</span>')
    low, high = float(values.min()), float(values.max())
    parts = [0.0 if abs(edge) < _NOTHING else edge for edge in ([low] if high - low < _SAME else [low, high])]
    return joined([html("{}", written(parts[0])), *(html(" … {}", written(part)) for part in parts[1:])])
