"""EBPO and its parts once more: slow, plain Python, from the formulas of docs/estimator.md. Nothing is updated: every
step goes through all batches so far with the weight that each still has."""

import math
from dataclasses import dataclass, field

from openrlhf_ebpo.estimator.config import EstimatorConfig

HALF_LIVES = (1, 2, 4, 8, 16, 32, 64, 128, math.inf)


@dataclass
class Group:
    rewards: list[float]
    weights: list[float]
    cluster: str | None
    total: float = 1.0  # mean weight over the batch's

    @property
    def mean(self) -> float:
        return weighted_mean(zip(self.rewards, self.weights, strict=True))

    @property
    def size(self) -> float:
        return sum(self.weights) ** 2 / sum(w * w for w in self.weights)

    @property
    def variance(self) -> float:
        if len(self.rewards) < 2:
            return 0.0
        squares = sum(w * (r - self.mean) ** 2 for r, w in zip(self.rewards, self.weights, strict=True))
        return squares / (sum(self.weights) - sum(w * w for w in self.weights) / sum(self.weights))


@dataclass
class Known:
    """Hold what a weighted past says."""

    mean: float = 0.0
    group_mean: float = 0.0
    pooled: float = 0.0
    raw: float = 0.0
    within: float = 0.0
    inverse_size: float = 0.0
    count: float = 0.0
    spread: float | None = None

    @property
    def corrected(self) -> float:
        return max(self.raw - self.within * self.inverse_size, 0.0)


def remaining(factors: list[float]) -> list[float]:
    """The weight that each batch still has, where each multiplied its past with its factor."""
    return [math.prod(factors[i + 1 :]) for i in range(len(factors))]


def weighted_mean(pairs) -> float:
    pairs = list(pairs)
    total = sum(w for _, w in pairs)
    return sum(v * w for v, w in pairs) / total if total else 0.0


def weighted_variance(pairs) -> float:
    pairs = list(pairs)
    mean = weighted_mean(pairs)
    return weighted_mean(((v - mean) ** 2, w) for v, w in pairs)


def known(past: list[tuple[list[Group], float]]) -> Known:
    """Of batches, each with the weight that it still has."""
    groups = [(g, f) for batch, f in past for g in batch]
    rewards = [(r, w * f) for g, f in groups for r, w in zip(g.rewards, g.weights, strict=True)]
    means = [(g.mean, g.total * f) for g, f in groups]
    spreads = []
    for batch, f in past:
        totals = [g.total for g in batch]
        freedom = sum(totals) - sum(t * t for t in totals) / sum(totals)
        if freedom > 1e-6:
            squares = weighted_variance([(g.mean, g.total) for g in batch]) * sum(totals)
            spreads.append((squares / freedom, freedom * f))
    return Known(
        weighted_mean(rewards),
        weighted_mean(means),
        weighted_variance(rewards),
        weighted_variance(means),
        weighted_mean((g.variance, g.total * (1 - 1 / g.size) * f) for g, f in groups if len(g.rewards) > 1),
        weighted_mean((1 / g.size, g.total * f) for g, f in groups),
        sum(w for _, w in means),
        weighted_mean(spreads) if spreads else None,
    )


@dataclass
class Reference:
    config: EstimatorConfig
    batches: list[list[Group]] = field(default_factory=list)
    log_weights: list[float] = field(default_factory=lambda: [0.0] * len(HALF_LIVES))
    factors: list[float] = field(default_factory=list)  # what batch i multiplied its past with

    @property
    def variant(self) -> dict:
        return self.config.variant()

    def step(self, rewards, valid, scores, clusters):
        """Shrinkage, baselines and advantages, as lists."""
        config, variant = self.config, self.variant
        made = self.groups(rewards, valid, scores, clusters)
        batch = [g for g in made if g]
        used, batches = self.read(), list(self.batches)
        if variant["history"] == "adaptive" and self.batches:
            self.weigh(batch)
        self.factors.append(self.factor(batch))
        self.batches.append(batch)
        if variant["order"] == "update_then_use":
            used, batches = self.read(), self.batches
        shrinkages, baselines, raw = [], [], []
        for g, rs, oks in zip(made, rewards, valid, strict=True):
            own = self.of_cluster(g, used, batches) if g and variant["clusters"] == "cluster" else used
            s, v = self.baseline(g, own, empty=not batches) if g else (None, None)
            shrinkages.append(s)
            baselines.append(v)
            raw.append([r - v if ok else 0.0 for r, ok in zip(rs, oks, strict=True)])
        return shrinkages, baselines, self.normalised(raw, rewards, valid, config)

    def groups(self, rewards, valid, scores, clusters) -> list[Group | None]:
        plain = self.variant["weights"] == "none"
        flat = [s for ss, oks in zip(scores, valid, strict=True) for s, ok in zip(ss, oks, strict=True) if ok]
        least = 1e-6 * sum(flat) / len(flat)
        made = []
        for rs, oks, ss, c in zip(rewards, valid, scores, clusters, strict=True):
            kept = [(r, 1.0 if plain else max(s, least)) for r, ok, s in zip(rs, oks, ss, strict=True) if ok]
            made.append(Group([r for r, _ in kept], [w for _, w in kept], c) if kept else None)
        there = [g for g in made if g]
        mean = sum(sum(g.weights) / g.size for g in there) / len(there)
        for g in there:
            g.total = sum(g.weights) / g.size / mean
        return made

    # Histories

    def factor(self, batch: list[Group]) -> float:
        """Return the factor by which this batch multiplies its past."""
        variant = self.variant
        if variant["history"] == "half_life":
            return 0.5 ** (len(batch) / variant["half_life"])
        if variant["history"] == "adaptive":
            weights = [math.exp(log) for log in self.log_weights]
            return sum(w * 0.5 ** (1 / h) for w, h in zip(weights, HALF_LIVES, strict=True)) / sum(weights)
        return float(variant["history"] == "run")

    def read(self) -> Known:
        if not self.batches:
            return Known()
        if self.variant["history"] == "adaptive":
            return self.mixture()
        return known(list(zip(self.batches, remaining(self.factors), strict=True)))

    def members(self) -> list[Known]:
        count = len(self.batches)
        found = [known(list(zip(self.batches, remaining([0.5 ** (1 / h)] * count), strict=True))) for h in HALF_LIVES]
        for i, each in enumerate(found):
            slower = found[min(i + 2, len(found) - 1)]
            each.slow = (slower.raw if slower.spread is None else slower.spread, slower.within, slower.inverse_size)
        for each in found:
            each.raw, each.within, each.inverse_size = each.slow
        return found

    def mixture(self) -> Known:
        members, total = self.members(), sum(map(math.exp, self.log_weights))
        weighed = [(each, math.exp(log) / total) for each, log in zip(members, self.log_weights, strict=True)]
        mean = sum(w * m.mean for m, w in weighed)
        group_mean = sum(w * m.group_mean for m, w in weighed)
        return Known(
            mean,
            group_mean,
            sum(w * (m.pooled + (m.mean - mean) ** 2) for m, w in weighed),
            sum(w * (m.raw + (m.group_mean - group_mean) ** 2) for m, w in weighed),
            sum(w * m.within for m, w in weighed),
            sum(w * m.inverse_size for m, w in weighed),
            1.0,
        )

    def weigh(self, batch: list[Group]) -> None:
        logs = [
            0.99 * log + self.log_likelihood(m, batch) for log, m in zip(self.log_weights, self.members(), strict=True)
        ]
        self.log_weights = [log - max(logs) for log in logs]

    def log_likelihood(self, member: Known, batch: list[Group]) -> float:
        low, reach = self.config.fail_reward, self.config.reward_range
        ends = (low, self.config.pass_reward)
        if self.variant["weights"] == "score" or any(r not in ends for g in batch for r in g.rewards):
            total = 0.0
            for g in batch:
                variance = max(member.corrected + member.within / g.size, 1e-6 * reach**2)
                total -= 0.5 * (math.log(variance) + (g.mean - member.group_mean) ** 2 / variance)
            return total
        rate = (member.count * (member.group_mean - low) / reach + 0.5) / (member.count + 1)
        rate = min(max(rate, 1e-4), 1 - 1e-4)
        most = rate * (1 - rate)
        size = most / min(max(member.corrected / reach**2, 1e-4 * most), (1 - 1e-4) * most) - 1
        a, b = size * rate, size * (1 - rate)
        total = 0.0
        for g in batch:
            n, s = len(g.rewards), sum(r == self.config.pass_reward for r in g.rewards)
            beta = lambda x, y: math.lgamma(x) + math.lgamma(y) - math.lgamma(x + y)  # noqa: E731
            total += beta(a + s, b + n - s) - beta(a, b)
        return total

    # Clusters

    def of_cluster(self, group: Group, run: Known, batches: list[list[Group]]) -> Known:
        weights = remaining(self.factors[: len(batches)])
        rows: dict[str, list] = {}
        for batch, f in zip(batches, weights, strict=True):
            for name in {g.cluster for g in batch if g.cluster}:
                rows.setdefault(name, []).append(([g for g in batch if g.cluster == name], f))
        past = {name: known(row) for name, row in rows.items()}
        past = {name: each for name, each in past.items() if each.count >= 1e-3}
        rows = {name: [(g, f) for groups, f in rows[name] for g in groups] for name in past}
        means = self.anova([[(g.mean, g.total * f) for g, f in row] for row in rows.values()])
        spreads = self.anova([[(g.variance, g.total * (1 - 1 / g.size) * f) for g, f in row] for row in rows.values()])
        own = past.get(group.cluster, Known())
        share = own.count / (own.count + means[0]) if own.count else 0.0
        second = own.count / (own.count + spreads[0]) if own.count else 0.0

        def mix(mine: float, runs: float, weight: float) -> float:
            return weight * mine + (1 - weight) * runs

        typical = mix(means[1], run.raw, share)
        return Known(
            mix(own.mean, run.mean, share),
            mix(own.group_mean, run.group_mean, share),
            mix(own.pooled, run.pooled, share) + share * (1 - share) * (own.mean - run.mean) ** 2,
            mix(own.raw, typical, second),
            mix(own.within, run.within, second),
            run.inverse_size,
            1.0,
        )

    @staticmethod
    def anova(clusters: list[list[tuple[float, float]]]) -> tuple[float, float]:
        """κ, and the variance inside clusters."""
        clusters = [values for values in clusters if any(w for _, w in values)]
        counts = [sum(w for _, w in values) for values in clusters]
        total = sum(counts)
        inside = sum(weighted_variance(v) * n for v, n in zip(clusters, counts, strict=True)) / max(
            total - len(counts), 1e-3
        )
        if len(counts) < 2 or total <= len(counts):
            return math.inf, inside
        centre = weighted_mean(pair for values in clusters for pair in values)
        between = sum(n * (weighted_mean(v) - centre) ** 2 for v, n in zip(clusters, counts, strict=True))
        between -= (len(counts) - 1) * inside
        return (inside * (total - sum(n * n for n in counts) / total) / between if between > 0 else math.inf), inside

    # What the prior says of a group

    def baseline(self, g: Group, prior: Known, empty: bool) -> tuple[float, float]:
        config, variant = self.config, self.variant
        if variant["saturated"] == "zero" and all(r == config.pass_reward for r in g.rewards):
            return 0.0, g.mean
        within = prior.pooled if variant["within_variance"] == "pooled" else prior.within
        between = prior.raw if variant["between_variance"] == "raw" else prior.corrected
        if variant["prior"] == "beta_binomial":
            return self.beta_binomial(g, prior, between, empty)
        if variant["prior"] == "none" or empty:
            return 0.0, g.mean
        noise = within / g.size
        degenerate = noise + between <= 1e-6 * config.reward_range**2
        s = 1.0 if degenerate else noise / (noise + between)
        return s, (1 - s) * g.mean + s * (prior.group_mean if variant["history"] == "batch" else prior.mean)

    def beta_binomial(self, g: Group, prior: Known, between: float, empty: bool) -> tuple[float, float]:
        low, reach = self.config.fail_reward, self.config.reward_range
        p, v = (0.5, 0.0) if empty else ((prior.group_mean - low) / reach, between / reach**2)
        nu = p * (1 - p) / v - 1 if 1e-6 < v < p * (1 - p) - 1e-6 else 2.0
        a, b = max(nu * p, 1e-6), max(nu * (1 - p), 1e-6)
        value = (a + sum((r - low) / reach for r in g.rewards)) / (a + b + len(g.rewards))
        return (a + b) / (a + b + len(g.rewards)), low + reach * value

    def normalised(self, raw, rewards, valid, config: EstimatorConfig):
        kind = self.variant["normalise"]
        if kind == "none":
            return raw
        flat = [a for row, oks in zip(raw, valid, strict=True) for a, ok in zip(row, oks, strict=True) if ok]
        present = [r for row, oks in zip(rewards, valid, strict=True) for r, ok in zip(row, oks, strict=True) if ok]
        mean = sum(flat) / len(flat)
        std = math.sqrt(sum((a - mean) ** 2 for a in flat) / max(len(flat) - 1, 1))
        if max(present) - min(present) <= 1e-6 * config.reward_range or std <= 1e-6 * config.reward_range:
            return [[0.0] * len(row) for row in raw]
        centre = mean if kind == "batch" else 0.0
        return [
            [(a - centre) / (std + 1e-6) if ok else 0.0 for a, ok in zip(row, oks, strict=True)]
            for row, oks in zip(raw, valid, strict=True)
        ]
