"""Runs of one configuration that differ in their seed: which they are, and their mean with its band. Pure.

One training says little about an estimator: seeds of one configuration often end further apart than two estimators do
(Henderson et al. 2018, arXiv 1709.06560; Agarwal et al. 2021, arXiv 2108.13264).
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

import numpy as np

from openrlhf_ebpo.eval.differences import spread
from openrlhf_ebpo.run.run_log import get_nested

from .text import common_start

APART = frozenset({"ckpt", "logger", "hub"})  # sections on saving and logging, which do not change a training


def group_by_configuration(runs: Sequence) -> list[list]:
    """Put runs (each with its `run` and `about`) of one configuration together, in their order: the arguments are the
    same but seed, names and paths of what is written. A run without arguments stands alone, and so does the copy of
    another run."""
    found: dict[object, list] = {}
    for run in runs:
        same, mark = configuration(run.about), (seed_of(run.about), run.about.get("started"))
        # a run and its copy from the Hub are one training: the same seed and start
        copies = (mark == (seed_of(other.about), other.about.get("started")) for other in found.get(same, ()))
        alone = same is None or any(copies)
        found.setdefault(run.run.key if alone else same, []).append(run)
    return list(found.values())


def configuration(about: dict) -> str | None:
    """Text that is the same for runs of one configuration; None where run.json does not tell."""
    args = about.get("args")
    if not isinstance(args, dict) or seed_of(about) is None:
        return None
    kept = {section: values for section, values in args.items() if section not in APART}
    try:
        text = json.dumps(_without_seeds(kept), sort_keys=True, default=str)
    except (RecursionError, TypeError, ValueError):
        return None
    return re.sub(rf"seed[-_= ]?{seed_of(about)}(?!\d)", "seed*", text, flags=re.IGNORECASE)  # data/train-seed-3.jsonl


def seed_of(about: dict) -> int | None:
    seed = get_nested(about, "args", "train", "seed")
    return seed if type(seed) is int and abs(seed) < 2**63 else None


def _without_seeds(settings):
    if not isinstance(settings, dict):
        return settings
    return {str(name): _without_seeds(value) for name, value in settings.items() if name != "seed"}


def name(keys: Sequence[str]) -> str:
    """Name what the names share, with * where they differ: seed-*/ebpo."""
    if len(keys) < 2:
        return "".join(keys)
    start = common_start(keys)
    return f"{start}*{common_start([key[len(start) :][::-1] for key in keys])[::-1]}"


def band(series: Sequence[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, ...] | None:
    """Average (steps, values) of each run, at the steps that all of them have: where one ends, a mean of the others
    would jump. Values that are not finite count as absent.

    Returns:
        steps, mean, low, high of one length: two runs' own values, or the 95 % t-interval of the mean of more. None
        for fewer than two runs, or without a step of all.
    """
    if len(series) < 2:
        return None
    finite = [(np.asarray(x)[np.isfinite(y)], np.asarray(y, float)[np.isfinite(y)]) for x, y in series]
    steps = finite[0][0]
    for x, _ in finite[1:]:  # mostly the same, and sorting 20,000 of them for each panel takes its time
        steps = steps if np.array_equal(steps, x) else np.intersect1d(steps, x, assume_unique=True)
    if not len(steps):
        return None
    values = np.stack([y[np.searchsorted(x, steps)] for x, y in finite])
    return steps, values.mean(0), *spread(values)
