"""How often the 95 % intervals of the evaluation hold the truth: simulated models, whose success rates are known.

A question's success rate is drawn from a Beta distribution, its n responses are right that often. Held against the truth:
  questions   a score's interval over questions, and the score of the whole population: pass@1, pass@k, maj@k
  runs        pass@1's interval across runs, and the mean success rate of the very questions that were drawn
  difference  of two models' pass@1 on the same questions, whose success rates are correlated

maj@k twice: wrong answers all alike, and all different. A table of percentages, one column for each n. `!` marks what lies
outside 93 to 97 % by more than three standard errors of the simulation. Above 97 % is no fault (`+`) where fewer than
five questions' worth of successes or of failures are expected: nothing between "all alike" and "not all" is seen there, and
an interval that is always wide enough is then too wide as often. A minute or two on one core; numpy and scipy.

python benchmarks/coverage.py               the table, in Markdown
python benchmarks/coverage.py --check       exit status 1 where there is a `!`
python benchmarks/coverage.py --candidates  other intervals beside ours: pass@1 over questions, and across runs
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from scipy import special, stats

from openrlhf_ebpo.eval import intervals, metrics

RUNS = (1, 2, 4, 8, 16, 32, 64)
GOAL = (0.93, 0.97)
FEW = 5  # expected successes, or failures
DRAWS = 2_000  # of a bootstrap
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
            found[f"pass@{k}"] = passes(n, k), 1 - np.exp(special.betaln(shape.a, shape.b + k) - _log_beta(shape))
    k = min(n, MAJ_K)
    chances = stats.betabinom(k, shape.a, shape.b).pmf(np.arange(k + 1))
    for name, alike in {"wrong alike": True, "wrong different": False}.items():
        if n > 1:
            found[f"maj@{MAJ_K}, {name}"] = votes(n, k, alike), float(chances @ votes(k, k, alike))
    return found


def _log_beta(shape: Shape) -> float:
    return special.betaln(shape.a, shape.b)


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
    found = covered(intervals.of_difference(a, b, n), other.mean - shape.mean)
    return Cell(found, few(shape, shape.mean) or few(other, other.mean))


def quantiles(shape: Shape, z: np.ndarray) -> np.ndarray:
    """Success rates at the quantiles of standard normal values; from a table, since the exact ones take minutes."""
    grid = np.linspace(-8, 8, 4_001)
    return np.interp(z, grid, stats.beta.ppf(special.ndtr(grid), shape.a, shape.b))


def table(repetitions: int, seed: int) -> dict[tuple[str, str], dict[int, Cell]]:
    found: dict[tuple[str, str], dict[int, Cell]] = {}
    for task, shape in SHAPES.items():
        for n in RUNS:
            rng = np.random.default_rng([seed, shape.questions, n])
            for name, cell in task_cells(shape, n, rng, repetitions):
                found.setdefault((task, name), {})[n] = cell
    return found


def markdown(found: dict[tuple[str, str], dict[int, Cell]], repetitions: int) -> str:
    rows = [["task", "interval", *(f"n = {n}" for n in RUNS)], ["---", "---", *["---:"] * len(RUNS)]]
    for (task, name), cells in found.items():
        shown = [f"{100 * cells[n].coverage:.1f}{cells[n].mark(repetitions)}" if n in cells else "" for n in RUNS]
        rows.append([task, name, *shown])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


# what else could have been chosen: intervals of (Q, …) values of a question, and of (Q, n, …) responses


def student(values: np.ndarray) -> np.ndarray:
    return _around(values.mean(axis=0), stats.t.ppf(0.975, len(values) - 1) * _error(values))


def logit(values: np.ndarray) -> np.ndarray:
    mean = values.mean(axis=0).clip(1e-9, 1 - 1e-9)
    ends = _around(special.logit(mean), stats.t.ppf(0.975, len(values) - 1) * _error(values) / (mean * (1 - mean)))
    return special.expit(ends)


def percentile_bootstrap(values: np.ndarray) -> np.ndarray:
    return np.quantile(_resampled(values)[0], [0.025, 0.975], axis=0)


def studentised_bootstrap(values: np.ndarray) -> np.ndarray:
    means, errors = _resampled(values)
    mean = values.mean(axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        t = np.nan_to_num((means - mean) / errors, nan=0)
        low, high = np.quantile(t, [0.025, 0.975], axis=0)
        return np.nan_to_num(np.stack([mean - high * _error(values), mean - low * _error(values)]), nan=0)


def wilson_without_prior(values: np.ndarray) -> np.ndarray:
    return intervals._wilson(values.mean(axis=0), values.var(axis=0, ddof=1), len(values), 1e-9)


def runs_deviation(responses: np.ndarray) -> np.ndarray:
    """As before: the standard deviation of the runs' means, times 1.96."""
    return _around(*_of_runs(responses, intervals.Z))


def runs_student(responses: np.ndarray) -> np.ndarray:
    return _around(*_of_runs(responses, stats.t.ppf(0.975, responses.shape[1] - 1)))


def within_normal(responses: np.ndarray) -> np.ndarray:
    rates, n = responses.mean(axis=1), responses.shape[1]
    return _around(rates.mean(axis=0), intervals.Z * intervals.standard_error(rates, n))


def within_wilson(responses: np.ndarray) -> np.ndarray:
    return intervals.across_runs(responses.mean(axis=1), responses.shape[1])


def _around(mean: np.ndarray, half: np.ndarray) -> np.ndarray:
    return np.stack([mean - half, mean + half])


def _error(values: np.ndarray) -> np.ndarray:
    return values.std(axis=0, ddof=1) / len(values) ** 0.5


def _of_runs(responses: np.ndarray, quantile: float) -> tuple[np.ndarray, np.ndarray]:
    means = responses.mean(axis=0)
    return means.mean(axis=0), quantile * means.std(axis=0, ddof=1) / len(means) ** 0.5


def _resampled(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Means and standard errors of resamples; the repetitions share them."""
    questions = len(values)
    shares = np.random.default_rng(0).multinomial(questions, [1 / questions] * questions, DRAWS) / questions
    means = shares @ values
    return means, np.maximum(shares @ values**2 - means**2, 0) ** 0.5 / questions**0.5


OVER_QUESTIONS = {
    "percentile bootstrap": percentile_bootstrap,
    "Student": student,
    "logit, Student": logit,
    "studentised bootstrap": studentised_bootstrap,
    "Wilson, no prior": wilson_without_prior,
    "**Wilson, prior**": intervals.over_questions,
}
ACROSS_RUNS = {
    "1.96 deviations of runs": runs_deviation,
    "Student over runs": runs_student,
    "1.96 deviations within": within_normal,
    "**Wilson within, prior**": within_wilson,
}


def candidates(repetitions: int, seed: int) -> dict[tuple[str, str], dict[int, Cell]]:
    found: dict[tuple[str, str], dict[int, Cell]] = {}
    for task, shape in SHAPES.items():
        for n in RUNS if shape.questions < 100 else ():
            rng = np.random.default_rng([seed, shape.questions, n])
            rates = shape.rates(rng, repetitions)
            responses = (rng.random((n, *rates.shape)) < rates).astype(float).swapaxes(0, 1)
            _hold(
                found,
                f"{task}, questions",
                n,
                OVER_QUESTIONS,
                responses.mean(axis=1),
                shape.mean,
                few(shape, shape.mean),
            )
            if n > 1:
                _hold(found, f"{task}, runs", n, ACROSS_RUNS, responses, rates.mean(axis=0), few(shape, shape.mean))
    return dict(sorted(found.items(), key=lambda item: item[0][0]))


def _hold(found: dict, task: str, n: int, methods: dict[str, Callable], data: np.ndarray, truth, few: bool) -> None:
    for name, method in methods.items():
        found.setdefault((task, name), {})[n] = Cell(covered(method(data), truth), few)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--repetitions", type=int, default=4_000, metavar="N", help="simulated evaluations (%(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--check", action="store_true", help="exit status 1 where coverage is not what it should be")
    what.add_argument("--candidates", action="store_true", help="other intervals beside ours")
    options = parser.parse_args(argv)
    found = (candidates if options.candidates else table)(options.repetitions, options.seed)
    print(markdown(found, options.repetitions))
    print(f"\nThe simulation's own standard error is {100 * (0.95 * 0.05 / options.repetitions) ** 0.5:.2f} points.")
    wrong = [
        f"{task}, {name}, n = {n}"
        for (task, name), cells in found.items()
        for n, cell in cells.items()
        if cell.mark(options.repetitions) == "!"
    ]
    if options.check and wrong:
        sys.exit(f"error: outside 93 to 97 %: {'; '.join(wrong)}")


if __name__ == "__main__":
    main()
