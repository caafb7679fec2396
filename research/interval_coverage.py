"""Measure how often the 95 % intervals of the evaluation hold the truth, with simulated models, whose success rates are
known.

A question's success rate is drawn from a Beta distribution, its n responses are right that often. Held against the
truth:
  questions   a score's interval over questions, and the score of the population: pass@1, pass@k, maj@k
  runs        pass@1's interval across runs, and the mean success rate of the very questions that were drawn
  difference  of two models' pass@1 on the same questions, whose success rates are correlated

maj@k twice: wrong answers all alike, and all different. A table of percentages, one column for each n. `!` marks what
lies outside 93 to 97 % by more than three standard errors of the simulation. Above 97 % is not a fault (`+`) where
fewer than five questions' worth of successes or of failures are expected: nothing between "all alike" and "not all" is
seen there, and an interval that is always wide enough is then too wide as often. A minute or two on one core; numpy and
scipy.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from scipy import special, stats

from lab.markdown_tables import table
from openrlhf_ebpo.eval import differences, intervals, metrics

RUNS = (1, 2, 4, 8, 16, 32, 64)
GOAL = (0.93, 0.97)
FEW = 5  # expected successes, or failures
MAJ_K = metrics.MAJ_K


class Shape(NamedTuple):
    """A task: how many questions, and the Beta distribution of their success rates."""

    questions: int
    a: float
    b: float

    @property
    def mean(self) -> float:
        return self.a / (self.a + self.b)

    def rates(self, rng: np.random.Generator, repetitions: int) -> np.ndarray:
        return rng.beta(self.a, self.b, (self.questions, repetitions))


SHAPES = {
    "AIME": Shape(30, 0.1, 1.5),
    "AMC": Shape(40, 0.5, 0.7),
    "MATH": Shape(500, 3, 0.7),
    "Olympiad": Shape(674, 0.6, 0.6),
}
PAIRS = {"ρ = 0.99, alike": (0.99, 1.0), "ρ = 0.9, second better": (0.9, 1.5)}  # correlation, factor of the second's a


class Cell(NamedTuple):
    """coverage: share of the repetitions; few: whether the truth rests on few questions."""

    coverage: float
    few: bool

    def mark(self, repetitions: int) -> str:
        slack = 3 * (0.95 * 0.05 / repetitions) ** 0.5
        if self.coverage > GOAL[1] and self.few:
            return "+"
        return "" if GOAL[0] - slack <= self.coverage <= GOAL[1] + slack else "!"


def covered(interval: np.ndarray, truth: np.ndarray | float) -> float:
    low, high = interval
    return float(((low <= truth + 1e-12) & (truth - 1e-12 <= high)).mean())


def few(shape: Shape, truth: float) -> bool:
    return shape.questions * min(truth, 1 - truth) < FEW


def task_cells(shape: Shape, n: int, rng: np.random.Generator, repetitions: int) -> Iterator[tuple[str, Cell]]:
    rates = shape.rates(rng, repetitions)
    right = rng.binomial(n, rates)
    for name, (values, truth) in scores(shape, n).items():
        interval = intervals.over_questions(values[right], votes=name.startswith("maj@"))
        yield f"questions: {name}", Cell(covered(interval, truth), few(shape, truth))
    interval = intervals.across_runs(right / n, n)
    if interval is not None:
        yield "runs: pass@1", Cell(covered(interval, rates.mean(axis=0)), few(shape, shape.mean))
    for name, (correlation, factor) in PAIRS.items():
        yield f"difference: {name}", difference_cell(shape, n, rng, repetitions, correlation, factor)


@lru_cache
def scores(shape: Shape, n: int) -> dict[str, tuple[np.ndarray, float]]:
    """By metric: a question's value when 0 … n of its responses are right, and the mean of the population."""
    found = {}
    for k in dict.fromkeys([1, 4, 16, 64]):
        if k <= n:
            all_fail = np.exp(special.betaln(shape.a, shape.b + k) - special.betaln(shape.a, shape.b))
            found[f"pass@{k}"] = passes(n, k), 1 - all_fail
    k = min(n, MAJ_K)
    chances = stats.betabinom(k, shape.a, shape.b).pmf(np.arange(k + 1))
    for name, alike in {"wrong alike": True, "wrong different": False}.items():
        if n > 1:
            found[f"maj@{MAJ_K}, {name}"] = votes(n, k, alike), float(chances @ votes(k, k, alike))
    return found


def outcomes(n: int) -> np.ndarray:
    """(n + 1, n) bool: 0 … n right of n."""
    return np.arange(n) < np.arange(n + 1)[:, None]


def passes(n: int, k: int) -> np.ndarray:
    return metrics.pass_at_k(outcomes(n), k)


@lru_cache
def votes(n: int, k: int, alike: bool) -> np.ndarray:
    right = outcomes(n)
    return metrics.majority_at_k(right, np.where(right, 0, 1 if alike else 1 + np.arange(n)), k)


def difference_cell(shape: Shape, n: int, rng, repetitions: int, correlation: float, factor: float) -> Cell:
    other = shape._replace(a=shape.a * factor)
    first = rng.standard_normal((shape.questions, repetitions))
    second = correlation * first + (1 - correlation**2) ** 0.5 * rng.standard_normal(first.shape)
    a, b = (rng.binomial(n, quantiles(each, z)) / n for each, z in ((shape, first), (other, second)))
    found = covered(differences.of_questions(a, b, n), other.mean - shape.mean)
    return Cell(found, few(shape, shape.mean) or few(other, other.mean))


def quantiles(shape: Shape, z: np.ndarray) -> np.ndarray:
    """Success rates at the quantiles of standard normal values; from a table, since the exact ones take minutes."""
    grid = np.linspace(-8, 8, 4_001)
    return np.interp(z, grid, stats.beta.ppf(special.ndtr(grid), shape.a, shape.b))


def simulate(repetitions: int, seed: int) -> dict[tuple[str, str], dict[int, Cell]]:
    found: dict[tuple[str, str], dict[int, Cell]] = {}
    for task, shape in SHAPES.items():
        for n in RUNS:
            rng = np.random.default_rng([seed, shape.questions, n])
            for name, cell in task_cells(shape, n, rng, repetitions):
                found.setdefault((task, name), {})[n] = cell
    return found


def markdown(found: dict[tuple[str, str], dict[int, Cell]], repetitions: int) -> str:
    rows = []
    for (task, name), cells in found.items():
        shown = [f"{100 * cells[n].coverage:.1f}{cells[n].mark(repetitions)}" if n in cells else "" for n in RUNS]
        rows.append([task, name, *shown])
    return table(["task", "interval", *(f"n = {n}" for n in RUNS)], rows, numbers=len(RUNS))


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--repetitions", type=int, default=4_000, metavar="N", help="simulated evaluations (%(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)
    found = simulate(options.repetitions, options.seed)
    print(markdown(found, options.repetitions))
    print(f"\nThe simulation's own standard error is {100 * (0.95 * 0.05 / options.repetitions) ** 0.5:.2f} points.")


if __name__ == "__main__":
    main()
