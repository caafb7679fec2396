"""Measure how far each baseline is from the best one: mean squared error against the true success rate, over the Bayes
risk.

Success rates p of prompts are drawn from a known distribution, G responses of each succeed or fail, and an estimator
gives its baseline V. The best possible baseline is the posterior mean of p; its error is the Bayes risk, and a table
shows E (V − p)² divided by it: 1.000 is the best, 1.250 has a quarter more error. In the simulated tables the part of
the error that no baseline can remove is taken as its exact mean, which leaves E (V − E[p | rewards])² to be simulated;
± is one standard error over seeds. Everything but the first table runs through the estimator that trains.

1. In closed form: p ~ Beta(a, b), moments known exactly.
2. Presets: the same prompts, 128 a step, moments estimated as in a run.
3. Histories: with gaussian prior, σ² within and τ² corrected; the mean success rate stands still, or rises from 0.17 to
   0.8 over the run. `half_life 4` is a half-life of 4 steps.
4. Clusters: p ~ Beta around its cluster's mean; the best baseline knows every cluster's mean.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator

from lab.baseline_error import Source, clustered, error_over_risk, exact_ratios, rising, still
from lab.markdown_tables import head, line
from openrlhf_ebpo.command import command
from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.estimator.config import EstimatorConfig
from openrlhf_ebpo.estimator.ebpo import EBPO

SHAPES = ((1.0, 1.0), (0.3, 0.3), (2.0, 6.0), (0.2, 1.8))
SIZES = (2, 4, 8, 16, 32)
PRESETS = ("paper", "release", "revision", "corrected")
BEST = {"within_variance": "within", "between_variance": "corrected"}


def add_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--seeds", type=int, default=4, help="of every cell (4)")
    add("--steps", type=int, default=200, help="of a run in tables 3 and 4; a quarter of it in table 2 (200)")
    add("--quick", action="store_true", help="2 seeds of 20 steps: does it all work?")


def run(args: argparse.Namespace) -> None:
    if args.quick:
        args.seeds, args.steps = 2, 20
    if args.seeds < 2 or args.steps < 4:
        raise UsageError("--seeds must be at least 2 and --steps at least 4")
    for title, table in (
        ("In closed form", closed_form()),
        ("Presets, 128 prompts a step", presets(args)),
        ("Histories, G = 4", histories(args)),
        ("Clusters, G = 4, 128 prompts a step", clusters(args)),
    ):
        print(f"\n{title}\n\n{head(next(table))}")
        for row in table:
            print(line(row), flush=True)


# 1. In closed form; each table yields its columns, then its rows


def closed_form() -> Iterator[list[str]]:
    yield ["Beta(a, b), G", "group mean", "paper", "within, raw τ²", "within, corrected τ²", "Beta-Binomial (revision)"]
    for a, b in SHAPES:
        for size in SIZES:
            yield [f"({a:g}, {b:g}), {size}", *(f"{ratio:.3f}" for ratio in exact_ratios(a, b, size))]


# 2. to 4. Simulated


def presets(args: argparse.Namespace) -> Iterator[list[str]]:
    yield ["Beta(a, b), G", *PRESETS]
    for a, b in SHAPES:
        for size in SIZES:
            source = still(a, b, 128)
            cells = [cell(args, args.steps // 4, size, {"preset": preset}, source) for preset in PRESETS]
            yield [f"({a:g}, {b:g}), {size}", *cells]


def histories(args: argparse.Namespace) -> Iterator[list[str]]:
    names = ("run", "batch", "half_life 4", "half_life 8", "adaptive")
    yield ["prompts a step", "Beta(a, b)", "preset paper", *names]
    for prompts in (128, 32):
        sources = {f"({a:g}, {b:g})": still(a, b, prompts) for a, b in SHAPES}
        for size in dict.fromkeys(map(sum, SHAPES)):
            sources[f"a + b = {size:g}, rising"] = rising(size, args.steps, prompts)
        for title, source in sources.items():
            settings = [{"preset": "paper"}, *(history(name, prompts) | BEST for name in names)]
            yield [str(prompts), title, *(cell(args, args.steps, 4, each, source) for each in settings)]


def history(name: str, prompts: int) -> dict:
    kind, _, steps = name.partition(" ")
    return {"history": kind} | ({"half_life": int(steps) * prompts} if steps else {})


def clusters(args: argparse.Namespace) -> Iterator[list[str]]:
    yield ["clusters", "their means", "one prior", "one a cluster"]
    spreads = {"alike": None, "differ a little, Beta(6, 18)": 24.0, "differ much, Beta(0.5, 1.5)": 2.0}
    for count in (1, 10, 100, 1000):
        for title, spread in spreads.items():
            source = clustered(count, spread)
            settings = ({"clusters": kind, "preset": "corrected"} for kind in ("run", "cluster"))
            yield [str(count), title, *(cell(args, args.steps, 4, each, source) for each in settings)]


def cell(args: argparse.Namespace, steps: int, size: int, settings: dict, source: Source) -> str:
    estimator = EBPO(EstimatorConfig(size, **settings))
    ratios = [error_over_risk(estimator, source, steps, seed) for seed in range(args.seeds)]
    return f"{statistics.fmean(ratios):.3f} ± {statistics.stdev(ratios) / len(ratios) ** 0.5:.3f}"


main = command("python research/estimator_quality.py", __doc__, add_flags, run)

if __name__ == "__main__":
    main()
