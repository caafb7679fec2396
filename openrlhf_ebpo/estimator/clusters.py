"""One prior a cluster, pooled towards the run's: what is known of few groups stays close to the run's prior.

A cluster's mean is the run's until groups of the cluster say otherwise: n_c of them have weight n_c / (n_c + κ). κ is
estimated by one-way analysis of variance: the variance of group means inside clusters over that of the clusters' true
means. Variances are pooled in the same way, with a κ from the variances inside groups, and τ² towards what is typical inside
clusters. Clusters that do not differ have κ = ∞, which is one prior for the run; a new cluster (n_c = 0) has the run's.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from openrlhf_ebpo.estimator.history import History
from openrlhf_ebpo.estimator.prior import Moments, Prior, check_keys

if TYPE_CHECKING:
    from openrlhf_ebpo.estimator.config import EstimatorConfig
    from openrlhf_ebpo.estimator.evidence import Groups

COLUMNS = ("rewards", "group_means", "within", "inverse_sizes")
LIMIT = 4096  # clusters that are remembered; beyond it those that were seen longest ago are forgotten
LEAST_COUNT = 1e-3  # groups; a cluster of which less is left is forgotten


@dataclass(frozen=True)
class Table:
    """Moments of every cluster, as Moments of arrays (C,), and the batch in which it was last seen."""

    names: tuple[str, ...] = ()
    moments: dict[str, Moments] = field(default_factory=lambda: {name: each_empty(0) for name in COLUMNS})
    seen: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))

    def to_dict(self) -> dict:
        moments = {
            name: {key: value.tolist() for key, value in asdict(each).items()} for name, each in self.moments.items()
        }
        return {"names": list(self.names), "moments": moments, "seen": self.seen.tolist()}

    @classmethod
    def from_dict(cls, saved: dict) -> Table:
        """Raises:
        KeyError, TypeError, ValueError: it is damaged.
        """
        check_keys(saved, ("names", "moments", "seen"))
        check_keys(saved["moments"], COLUMNS)
        names, seen = tuple(saved["names"]), np.array(saved["seen"], np.int64)
        moments = {
            name: Moments(*(np.array(saved["moments"][name][key], np.float64) for key in ("count", "mean", "m2")))
            for name in COLUMNS
        }
        columns = [seen, *(getattr(each, key) for each in moments.values() for key in ("count", "mean", "m2"))]
        if not all(isinstance(name, str) for name in names) or len(set(names)) != len(names):
            raise ValueError("names of clusters are strings, each there once")
        if any(column.shape != (len(names),) or not np.isfinite(column).all() for column in columns):
            raise ValueError(f"every column of {len(names)} clusters holds as many finite numbers")
        if any((each.count < 0).any() or (each.m2 < 0).any() for each in moments.values()):
            raise ValueError("no values have a negative count or spread")
        return cls(names, moments, seen)


@dataclass(frozen=True)
class Clustered:
    """State of the run's history, and the table of clusters."""

    run: Any
    table: Table = field(default_factory=Table)

    def to_dict(self) -> dict:
        return {"run": self.run.to_dict(), "clusters": self.table.to_dict()}


def clustered(history: History) -> History:
    """The same history, with a prior for each cluster."""

    def update(before: Clustered, batch: Prior, groups: Groups, config: EstimatorConfig) -> Clustered:
        run = history.update(before.run, batch, groups, config)
        return Clustered(run, updated(before.table, groups, history.factor(run, groups, config)))

    def restore(saved: dict) -> Clustered:
        check_keys(saved, ("run", "clusters"))
        return Clustered(history.restore(saved["run"]), Table.from_dict(saved["clusters"]))

    return replace(
        history,
        update=update,
        initial=lambda: Clustered(history.initial()),
        restore=restore,
        read=lambda state, groups: pooled(state.table, history.read(state.run, groups), groups),
        metrics=lambda state: {**history.metrics(state.run), "ebpo/clusters": len(state.table.names)},
    )


def updated(before: Table, groups: Groups, factor: float) -> Table:
    """Older groups count `factor` times as much; then those of this batch enter."""
    names = dict.fromkeys((*before.names, *filter(None, groups.clusters)))
    rows = rows_of(groups, {name: row for row, name in enumerate(names)})
    evidence = moments_of(groups, rows, len(names))
    older = {name: padded(each, len(names), factor) for name, each in before.moments.items()}
    moments = {name: merged(older[name], evidence[name]) for name in COLUMNS}
    seen = np.concatenate([before.seen, np.zeros(len(names) - len(before.names), np.int64)])
    seen[rows[(rows >= 0) & groups.alive[:, 0]]] = before.seen.max(initial=0) + 1
    return kept(Table(tuple(names), moments, seen))


def kept(table: Table) -> Table:
    """Without clusters of which next to nothing is left, and with at most LIMIT of them."""
    there = np.flatnonzero(table.moments["group_means"].count >= LEAST_COUNT)
    latest = there[np.argsort(-table.seen[there], kind="stable")[:LIMIT]]
    if len(latest) == len(table.names):
        return table
    rows = np.sort(latest)
    moments = {name: at(each, rows) for name, each in table.moments.items()}
    return Table(tuple(table.names[row] for row in rows), moments, table.seen[rows])


def pooled(table: Table, run: Prior, groups: Groups) -> Prior:
    """The prior of every group of a batch, as Moments of arrays (M, 1)."""
    rows = rows_of(groups, {name: row for row, name in enumerate(table.names)})[:, None]
    own = {name: at(padded(each, len(table.names) + 1, 1.0), rows) for name, each in table.moments.items()}  # -1: empty
    count = own["group_means"].count
    of_means, of_variances = (share(count, pooling(table.moments[name])) for name in ("group_means", "within"))
    typical = mixed(inside(table.moments["group_means"]), run.group_means.variance, of_means)
    moments = {
        "rewards": (
            mixed(own["rewards"].mean, run.mean, of_means),
            mixture_variance(own["rewards"], run.rewards, of_means),
        ),
        "group_means": (
            mixed(own["group_means"].mean, run.group_means.mean, of_means),
            mixed(own["group_means"].variance, typical, of_variances),
        ),
        "within": (mixed(own["within"].mean, run.within.mean, of_variances), 0.0),
        "inverse_sizes": (run.inverse_sizes.mean, 0.0),
    }
    counted = np.full_like(count, max(run.rewards.count, 1))
    known = {name: Moments(counted, mean, counted * variance) for name, (mean, variance) in moments.items()}
    return Prior(**known, batches=run.batches)


def pooling(values: Moments) -> float:
    """κ, the weight of the run's prior in groups: variance inside clusters over variance between them (one-way analysis of
    variance); infinite where clusters do not differ."""
    there = values.count > 0
    counts, means = values.count[there], values.mean[there]
    total = counts.sum()
    if len(counts) < 2 or total <= len(counts):
        return np.inf
    within = inside(values)
    between = counts @ (means - counts @ means / total) ** 2 - (len(counts) - 1) * within
    return within * (total - counts @ counts / total) / between if between > 0 else np.inf


def inside(values: Moments) -> float:
    """Mean variance inside a cluster."""
    return values.m2.sum() / max(values.count.sum() - (values.count > 0).sum(), LEAST_COUNT)


def share(count: np.ndarray, kappa: float) -> np.ndarray:
    return count / np.maximum(count + kappa, LEAST_COUNT)


def mixed(own: np.ndarray, run: np.ndarray | float, weight: np.ndarray) -> np.ndarray:
    return weight * own + (1 - weight) * run


def mixture_variance(own: Moments, run: Moments, weight: np.ndarray) -> np.ndarray:
    return mixed(own.variance, run.variance, weight) + weight * (1 - weight) * (own.mean - run.mean) ** 2


def moments_of(groups: Groups, rows: np.ndarray, size: int) -> dict[str, Moments]:
    """A batch's moments in each cluster."""
    inside = (rows >= 0)[:, None] & groups.alive
    rows = np.where(inside, rows[:, None], 0)
    totals = groups.totals * inside
    responses = groups.weights * groups.importance * inside
    return {
        "rewards": each_of(groups.rewards, responses, np.broadcast_to(rows, responses.shape), size),
        "group_means": each_of(groups.means, totals, rows, size),
        "within": each_of(groups.variances, totals * groups.freedom, rows, size),
        "inverse_sizes": each_of(1 / groups.sizes, totals, rows, size),
    }


def rows_of(groups: Groups, known: dict[str, int]) -> np.ndarray:
    """The row of each group's cluster; -1 for one without."""
    return np.array([known.get(name, -1) for name in groups.clusters or (None,) * len(groups.means)], np.int64)


# Moments of arrays: one entry a cluster


def each_empty(size: int) -> Moments:
    return Moments(np.zeros(size), np.zeros(size), np.zeros(size))


def each_of(values: np.ndarray, weights: np.ndarray, rows: np.ndarray, size: int) -> Moments:
    values, weights, rows = values.ravel(), weights.ravel(), rows.ravel()
    count = np.bincount(rows, weights, size)
    mean = np.bincount(rows, weights * values, size) / np.where(count > 0, count, 1)
    return Moments(count, mean, np.bincount(rows, weights * (values - mean[rows]) ** 2, size))


def merged(one: Moments, other: Moments) -> Moments:
    """`Moments.merge` for each."""
    count = one.count + other.count
    share = other.count / np.where(count > 0, count, 1)
    delta = other.mean - one.mean
    return Moments(count, one.mean + delta * share, one.m2 + other.m2 + delta**2 * one.count * share)


def padded(each: Moments, size: int, factor: float) -> Moments:
    empty = np.zeros(size - len(each.count))
    return Moments(*(np.append(values, empty) for values in (each.count * factor, each.mean, each.m2 * factor)))


def at(each: Moments, rows: np.ndarray) -> Moments:
    return Moments(each.count[rows], each.mean[rows], each.m2[rows])
