"""One prior a cluster, pooled towards the run's: what is known of few groups stays close to the run's prior.

A cluster's mean is the run's until groups of the cluster say otherwise: n_c of them have weight n_c / (n_c + κ). κ is
estimated by one-way analysis of variance: the variance of group means inside clusters over that of the clusters' true
means. Variances are pooled in the same way, with a κ from the variances inside groups, and τ² towards what is typical
inside clusters. Clusters that do not differ have κ = ∞, which is one prior for the run; a new cluster (n_c = 0) has the
run's.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from openrlhf_ebpo.estimator.history import History
from openrlhf_ebpo.estimator.prior import Moments, Prior

if TYPE_CHECKING:
    from openrlhf_ebpo.estimator.config import EstimatorConfig
    from openrlhf_ebpo.estimator.groups import Groups

TABLE_COLUMNS = ("rewards", "group_means", "within", "inverse_sizes")
REWARDS, MEANS, WITHIN = range(3)  # rows of TABLE_COLUMNS
KEYS = ("count", "mean", "m2")  # of Moments
MAX_CLUSTERS = 4096  # beyond it those that were seen longest ago are forgotten
LEAST_COUNT = 1e-3  # groups; a cluster of which less is left is forgotten


@dataclass(frozen=True)
class Table:
    """moments: (3, 4, C), KEYS of each of TABLE_COLUMNS of each cluster. seen: (C,), the batch in which a cluster was
    last seen."""

    names: tuple[str, ...] = ()
    moments: np.ndarray = field(default_factory=lambda: np.zeros((len(KEYS), len(TABLE_COLUMNS), 0)))
    seen: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))

    def column(self, row: int) -> Moments:
        """Return the moments of every cluster, arrays (C,)."""
        return Moments(*self.moments[:, row])

    def rows(self, groups: Groups) -> np.ndarray:
        """Return the place of each group's cluster, (M,); -1 for a group without one."""
        known = {name: row for row, name in enumerate(self.names)}
        return np.array([known.get(name, -1) for name in groups.clusters or (None,) * len(groups.means)], np.int64)

    def to_dict(self) -> dict:
        columns = zip(TABLE_COLUMNS, self.moments.swapaxes(0, 1).tolist(), strict=True)
        moments = {name: dict(zip(KEYS, column, strict=True)) for name, column in columns}
        return {"names": list(self.names), "moments": moments, "seen": self.seen.tolist()}

    @classmethod
    def from_dict(cls, saved: dict) -> Table:
        """Raises:
        KeyError, TypeError, ValueError: it is damaged.
        """
        names, seen = tuple(saved["names"]), np.array(saved["seen"], np.int64)
        moments = np.array([[saved["moments"][name][key] for name in TABLE_COLUMNS] for key in KEYS], np.float64)
        if moments.shape != (len(KEYS), len(TABLE_COLUMNS), len(names)) or seen.shape != (len(names),):
            raise ValueError(f"every column of {len(names)} clusters holds as many numbers")
        if not np.isfinite(moments).all() or not all(isinstance(name, str) for name in names):
            raise ValueError("clusters have texts as names and finite numbers")
        if (moments[[0, 2]] < 0).any():
            raise ValueError("counts and sums of squares of clusters are not negative")
        return cls(names, moments, seen)


@dataclass(frozen=True)
class Clustered:
    """State of the run's history, and the table of clusters."""

    run: Any
    table: Table = field(default_factory=Table)

    def to_dict(self) -> dict:
        return {"run": self.run.to_dict(), "clusters": self.table.to_dict()}


def with_clusters(history: History) -> History:
    """Return the same history, with a prior for each cluster."""

    def update(before: Clustered, batch: Prior, groups: Groups, config: EstimatorConfig) -> Clustered:
        run = history.update(before.run, batch, groups, config)
        return Clustered(run, update_table(before.table, groups, history.factor(run, groups, config)))

    return replace(
        history,
        update=update,
        initial=lambda: Clustered(history.initial()),
        restore=lambda saved: Clustered(history.restore(saved["run"]), Table.from_dict(saved["clusters"])),
        read=lambda state, groups: prior_of_groups(state.table, history.read(state.run, groups), groups),
        metrics=lambda state: {**history.metrics(state.run), "ebpo/clusters": len(state.table.names)},
    )


def update_table(before: Table, groups: Groups, factor: float) -> Table:
    """Discount older groups by `factor`, then add those of this batch. Drops clusters of which next to nothing is left,
    and those beyond MAX_CLUSTERS."""
    names = tuple(dict.fromkeys((*before.names, *filter(None, groups.clusters))))
    new = len(names) - len(before.names)
    older = np.pad(before.moments * np.array([factor, 1, factor])[:, None, None], ((0, 0), (0, 0), (0, new)))
    table = Table(names, older, np.concatenate([before.seen, np.zeros(new, np.int64)]))
    rows = table.rows(groups)
    inside = (rows >= 0)[:, None] & groups.alive
    totals = groups.totals * inside
    columns = (  # as TABLE_COLUMNS
        (groups.rewards, groups.weights * inside),
        (groups.means, totals),
        (groups.variances, totals * groups.freedom),
        (1 / groups.sizes, totals),
    )
    place = np.where(inside, rows[:, None], 0)
    batch = np.stack([moments_by_row(values, weights, place, len(names)) for values, weights in columns], axis=1)
    moments = merge_moments(older, batch)
    table.seen[rows[(rows >= 0) & groups.alive[:, 0]]] = before.seen.max(initial=0) + 1
    there = np.flatnonzero(moments[0, MEANS] >= LEAST_COUNT)
    kept = np.sort(there[np.argsort(-table.seen[there], kind="stable")[:MAX_CLUSTERS]])
    return Table(tuple(names[row] for row in kept), moments[..., kept], table.seen[kept])


def moments_by_row(values: np.ndarray, weights: np.ndarray, rows: np.ndarray, size: int) -> np.ndarray:
    """Compute `Moments.of` for each of `size` rows: (3, size)."""
    values, weights, rows = values.ravel(), weights.ravel(), np.broadcast_to(rows, weights.shape).ravel()
    count = np.bincount(rows, weights, size)
    mean = np.bincount(rows, weights * values, size) / np.where(count > 0, count, 1)
    return np.stack([count, mean, np.bincount(rows, weights * (values - mean[rows]) ** 2, size)])


def merge_moments(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Apply `Moments.merge` to each, (3, …)."""
    count = one[0] + other[0]
    share = other[0] / np.where(count > 0, count, 1)
    delta = other[1] - one[1]
    return np.stack([count, one[1] + delta * share, one[2] + other[2] + delta**2 * one[0] * share])


def prior_of_groups(table: Table, run: Prior, groups: Groups) -> Prior:
    """Return the prior of every group of a batch, as Moments of arrays (M, 1)."""
    own = np.pad(table.moments, ((0, 0), (0, 0), (0, 1)))[..., table.rows(groups)[:, None]]  # row -1 is empty
    rewards, means, within = (Moments(*own[:, row]) for row in (REWARDS, MEANS, WITHIN))
    kappas = (estimate_kappa(table.column(row)) for row in (MEANS, WITHIN))
    of_means, of_variances = (means.count / np.maximum(means.count + kappa, LEAST_COUNT) for kappa in kappas)
    typical = blend(mean_within_variance(table.column(MEANS)), run.group_means.variance, of_means)
    apart = of_means * (1 - of_means) * (rewards.mean - run.rewards.mean) ** 2
    count = np.full_like(means.count, max(run.rewards.count, 1))

    def known(mean: np.ndarray, variance: np.ndarray | float = 0.0) -> Moments:
        return Moments(count, mean, count * variance)

    return Prior(
        rewards=known(
            blend(rewards.mean, run.rewards.mean, of_means),
            blend(rewards.variance, run.rewards.variance, of_means) + apart,
        ),
        group_means=known(
            blend(means.mean, run.group_means.mean, of_means), blend(means.variance, typical, of_variances)
        ),
        within=known(blend(within.mean, run.within.mean, of_variances)),
        inverse_sizes=known(run.inverse_sizes.mean),
        batches=run.batches,
    )


def estimate_kappa(values: Moments) -> float:
    """κ, the weight of the run's prior in groups: variance inside clusters over variance between them (one-way analysis
    of variance); infinite where clusters do not differ."""
    there = values.count > 0
    counts, means = values.count[there], values.mean[there]
    total = counts.sum()
    if len(counts) < 2 or total <= len(counts):
        return np.inf
    within = mean_within_variance(values)
    between = counts @ (means - counts @ means / total) ** 2 - (len(counts) - 1) * within
    return within * (total - counts @ counts / total) / between if between > 0 else np.inf


def mean_within_variance(values: Moments) -> float:
    """Mean variance inside a cluster."""
    return values.m2.sum() / max(values.count.sum() - (values.count > 0).sum(), LEAST_COUNT)


def blend(own: np.ndarray, run: np.ndarray | float, weight: np.ndarray) -> np.ndarray:
    return weight * own + (1 - weight) * run
