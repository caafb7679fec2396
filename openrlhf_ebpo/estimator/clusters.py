"""One prior a cluster, pooled towards the run's: what is known of few groups stays close to the run's prior.

A cluster's mean is the run's until groups of the cluster say otherwise: n_c of them have weight n_c / (n_c + κ). κ is
estimated by one-way analysis of variance: the variance of group means inside clusters over that of the clusters' true
means. Variances are pooled in the same way, with a κ from the variances inside groups, and τ² towards what is typical inside
clusters. Clusters that do not differ have κ = ∞, which is one prior for the run; a new cluster (n_c = 0) has the run's.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from openrlhf_ebpo.estimator.history import History
from openrlhf_ebpo.estimator.prior import Moments, Prior

if TYPE_CHECKING:
    from openrlhf_ebpo.estimator.config import EstimatorConfig
    from openrlhf_ebpo.estimator.evidence import Groups

COLUMNS = ("rewards", "group_means", "within", "inverse_sizes")
KEYS = ("count", "mean", "m2")  # of Moments
MAX_CLUSTERS = 4096  # beyond it those that were seen longest ago are forgotten
LEAST_COUNT = 1e-3  # groups; a cluster of which less is left is forgotten


@dataclass(frozen=True)
class Table:
    """moments: of every cluster, as Moments of arrays (4, C), a row for each of COLUMNS. seen: (C,), the batch in which a
    cluster was last seen."""

    names: tuple[str, ...] = ()
    moments: Moments = field(default_factory=lambda: Moments(*np.zeros((3, len(COLUMNS), 0))))
    seen: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))

    def to_dict(self) -> dict:
        moments = {name: {key: getattr(column(self.moments, name), key).tolist() for key in KEYS} for name in COLUMNS}
        return {"names": list(self.names), "moments": moments, "seen": self.seen.tolist()}

    @classmethod
    def from_dict(cls, saved: dict) -> Table:
        """Raises:
        KeyError, TypeError, ValueError: it is damaged.
        """
        names, seen = tuple(saved["names"]), np.array(saved["seen"], np.int64)
        moments = np.array([[saved["moments"][name][key] for name in COLUMNS] for key in KEYS], np.float64)
        if moments.shape != (len(KEYS), len(COLUMNS), len(names)) or seen.shape != (len(names),):
            raise ValueError(f"every column of {len(names)} clusters holds as many numbers")
        return cls(names, Moments(*moments), seen)


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
    names = tuple(dict.fromkeys((*before.names, *filter(None, groups.clusters))))
    rows = rows_of(groups, names)
    moments = merged(padded(before.moments, len(names), factor), moments_of(groups, rows, len(names)))
    seen = np.concatenate([before.seen, np.zeros(len(names) - len(before.names), np.int64)])
    seen[rows[(rows >= 0) & groups.alive[:, 0]]] = before.seen.max(initial=0) + 1
    return kept(Table(names, moments, seen))


def kept(table: Table) -> Table:
    """Without clusters of which next to nothing is left, and with at most MAX_CLUSTERS of them."""
    there = np.flatnonzero(column(table.moments, "group_means").count >= LEAST_COUNT)
    latest = there[np.argsort(-table.seen[there], kind="stable")[:MAX_CLUSTERS]]
    rows = np.sort(latest)
    return Table(tuple(table.names[row] for row in rows), at(table.moments, rows), table.seen[rows])


def pooled(table: Table, run: Prior, groups: Groups) -> Prior:
    """The prior of every group of a batch, as Moments of arrays (M, 1)."""
    rows = rows_of(groups, table.names)[:, None]
    own = at(padded(table.moments, len(table.names) + 1), rows)  # row -1 is empty
    rewards, means, within = (column(own, name) for name in ("rewards", "group_means", "within"))
    of_means, of_variances = (
        share(means.count, pooling(column(table.moments, name))) for name in ("group_means", "within")
    )
    typical = mixed(inside(column(table.moments, "group_means")), run.group_means.variance, of_means)
    apart = of_means * (1 - of_means) * (rewards.mean - run.rewards.mean) ** 2
    count = np.full_like(means.count, max(run.rewards.count, 1))

    def known(mean: np.ndarray, variance: np.ndarray | float = 0.0) -> Moments:
        return Moments(count, mean, count * variance)

    return Prior(
        rewards=known(
            mixed(rewards.mean, run.rewards.mean, of_means),
            mixed(rewards.variance, run.rewards.variance, of_means) + apart,
        ),
        group_means=known(
            mixed(means.mean, run.group_means.mean, of_means), mixed(means.variance, typical, of_variances)
        ),
        within=known(mixed(within.mean, run.within.mean, of_variances)),
        inverse_sizes=known(run.inverse_sizes.mean),
        batches=run.batches,
    )


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


def moments_of(groups: Groups, rows: np.ndarray, size: int) -> Moments:
    """A batch's moments in each cluster."""
    inside = (rows >= 0)[:, None] & groups.alive
    rows = np.where(inside, rows[:, None], 0)
    totals = groups.totals * inside
    found = (
        each_of(groups.rewards, groups.weights * inside, rows, size),
        each_of(groups.means, totals, rows, size),
        each_of(groups.variances, totals * groups.freedom, rows, size),
        each_of(1 / groups.sizes, totals, rows, size),
    )
    return Moments(*np.stack(found, axis=1))


def rows_of(groups: Groups, names: tuple[str, ...]) -> np.ndarray:
    """The row of each group's cluster; -1 for one without."""
    known = {name: row for row, name in enumerate(names)}
    return np.array([known.get(name, -1) for name in groups.clusters or (None,) * len(groups.means)], np.int64)


# Moments of arrays: clusters along the last axis


def column(moments: Moments, name: str) -> Moments:
    return Moments(*(getattr(moments, key)[COLUMNS.index(name)] for key in KEYS))


def each_of(values: np.ndarray, weights: np.ndarray, rows: np.ndarray, size: int) -> np.ndarray:
    """`Moments.of` for each of `size` rows: count, mean and m2, (3, size)."""
    values, weights, rows = values.ravel(), weights.ravel(), np.broadcast_to(rows, weights.shape).ravel()
    count = np.bincount(rows, weights, size)
    mean = np.bincount(rows, weights * values, size) / np.where(count > 0, count, 1)
    return np.stack([count, mean, np.bincount(rows, weights * (values - mean[rows]) ** 2, size)])


def merged(one: Moments, other: Moments) -> Moments:
    """`Moments.merge` for each."""
    count = one.count + other.count
    share = other.count / np.where(count > 0, count, 1)
    delta = other.mean - one.mean
    return Moments(count, one.mean + delta * share, one.m2 + other.m2 + delta**2 * one.count * share)


def padded(moments: Moments, size: int, factor: float = 1.0) -> Moments:
    """With empty clusters up to `size`; the others count `factor` times as much."""
    wider = ((0, 0), (0, size - moments.count.shape[-1]))
    return Moments(*(np.pad(v, wider) for v in (moments.count * factor, moments.mean, moments.m2 * factor)))


def at(moments: Moments, rows: np.ndarray) -> Moments:
    return Moments(*(getattr(moments, key)[..., rows] for key in KEYS))
