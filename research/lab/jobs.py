"""Measurements of the small models. torch is imported where it is needed: a command that only lists them starts without
it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from lab.cells import LR, Cell
from lab.measured import Job, Record

DIGITS = 5  # of what is measured, significant ones


@dataclass(frozen=True)
class Learning(Job):
    """The small network trained with an estimator, its prompts in an order of lab/orders.py."""

    at_once: ClassVar[int] = 20
    cell: Cell
    estimator: str
    order: str = "drawn"
    lr: float = LR
    replicate: int = 0  # of the random numbers that prompts and responses are drawn with
    width: int = 32
    layers: int = 1

    @property
    def title(self) -> str:
        return f"{self.estimator}, {self.order}, lr {self.lr:g}, {self.cell.title}"

    def measure(self, seeds: list[int], work: Path) -> list[Record]:
        from lab import learner, orders, tasks
        from lab.warm_starts import warm_start

        shape, cell = tasks.shape(self.width, self.layers, self.cell.task), self.cell
        weights = warm_start(work / "warm_starts", shape, cell.task, cell.examples, cell.start, seeds)
        batches = orders.batches(self.order, cell, seeds, weights, shape, self.replicate)
        rows = learner.train(cell, self.estimator, weights, batches, shape, self.lr)
        return [by_metric(rows, number) for number in range(len(seeds))]


def by_metric(rows: list[dict], seed: int) -> Record:
    """The curves of one seed; what is not known before the first step begins with the first row that has it."""
    names = rows[-1].keys()
    return {name: [number(row[name], seed) for row in rows if name in row] for name in names}


def number(value, seed: int) -> float:
    return value if isinstance(value, int) else rounded(value[seed])


def rounded(value) -> float:
    return float(f"{float(value):.{DIGITS}g}")


@dataclass(frozen=True)
class Tables(Job):
    """The bandit's success after training, each seed at each of `rates`: the best of them on average counts."""

    start: float
    optimizer: str
    estimator: str
    rates: tuple[float, ...]
    steps: int = 400

    @property
    def title(self) -> str:
        return f"{self.estimator}, bandit, {self.optimizer}"

    def one(self, seed: int, work: Path) -> Record:
        from lab.bandit import Bandit, train

        bandit = Bandit(self.start, self.optimizer, steps=self.steps)
        return {"end": [rounded(train(bandit, self.estimator, rate, seed)) for rate in self.rates]}


@dataclass(frozen=True)
class BaselineError(Job):
    """Mean squared error of EBPO's baseline over the Bayes risk, on simulated prompts.

    source: a function of lab/baseline_error.py that gives prompts, and its arguments. settings: EBPO's preset or parts.
    """

    source: tuple
    group: int
    settings: tuple[tuple[str, str], ...] = ()
    steps: int = 90

    @property
    def title(self) -> str:
        return f"error of the baseline, G = {self.group}"

    def one(self, seed: int, work: Path) -> Record:
        from lab import baseline_error
        from openrlhf_ebpo.estimator.config import EstimatorConfig
        from openrlhf_ebpo.estimator.ebpo import EBPO

        name, *arguments = self.source
        source = getattr(baseline_error, name)(*arguments)
        estimator = EBPO(EstimatorConfig(self.group, **dict(self.settings)))
        return {"error": [rounded(baseline_error.error_over_risk(estimator, source, self.steps, seed))]}


@dataclass(frozen=True)
class Penalty(Job):
    """The penalty that EBPO takes from each response of a group that failed entirely, where prompts succeed by Beta(2m,
    2(1 − m)): −V, before standardising; one number for each m of `means`."""

    group: int
    means: tuple[float, ...]
    prompts: int = 512

    @property
    def title(self) -> str:
        return f"penalty, G = {self.group}"

    def one(self, seed: int, work: Path) -> Record:
        return {"penalty": [rounded(self.penalty(mean, np.random.default_rng(seed))) for mean in self.means]}

    def penalty(self, mean: float, rng: np.random.Generator) -> float:
        from openrlhf_ebpo.estimator.config import EstimatorConfig
        from openrlhf_ebpo.estimator.contract import Batch
        from openrlhf_ebpo.estimator.ebpo import EBPO

        rates = rng.beta(2 * mean, 2 * (1 - mean), (self.prompts, 1))
        rewards = (rng.random((self.prompts, self.group)) < rates).astype(float)
        rewards[0] = 0  # there is always one to look at
        estimator = EBPO(EstimatorConfig(self.group))
        step = estimator.step(Batch.of(rewards, np.ones_like(rewards, bool)), estimator.initial())
        return -float(step.baselines[0, 0])
