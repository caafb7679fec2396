"""Estimators compared by what a model learns on the real stack: Ray, DeepSpeed, vLLM; the quickstart's model and task.

Every seed has its own order of prompts and its own sampling. All estimators of a seed begin with the same warm start (one
for all seeds) and are given the same prompts in the same order; success is that on held-out tasks after the last step.

    python research/learning_real.py --output runs/learning_real             train what is not there yet
    python research/learning_real.py --table --output runs/learning_real     the table, in Markdown, of what is there
    python research/learning_real.py --table --output docs/results/learning_real.json      the same of what --export wrote

A run takes two to three minutes on two cores. An interrupted call resumes where it stopped.
"""

from __future__ import annotations

import argparse
import functools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from lab.measured import Job, Record, Tick, measure, recorded
from lab.real import train
from lab.statistics import interval
from lab.tables import table
from openrlhf_ebpo.command import command
from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.estimator import registry
from openrlhf_ebpo.files import write_text
from openrlhf_ebpo.progress import fingerprint, model_identity
from openrlhf_ebpo.quickstart.compare import REFERENCE, prompts
from openrlhf_ebpo.quickstart.evaluate import N_SAMPLES, evaluate, read_tasks
from openrlhf_ebpo.quickstart.stages import N_SAMPLES_PER_PROMPT, PROMPTS_PER_STEP, SIZES, STEPS

ESTIMATORS = ["ebpo", "group_norm", "score_weighted"]
SEEDS = [1, 2, 3]
COMMON = ("start", "steps", "prompts_per_step", "n_samples_per_prompt", "tasks", "samples", "warm_start")  # of all runs


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--output", type=Path, default=Path("runs/learning_real"), metavar="DIR")
    parser.add_argument("--estimators", nargs="+", type=registry.known, default=ESTIMATORS, metavar="NAME")
    parser.add_argument("--seeds", nargs="+", type=int, default=SEEDS, metavar="N", help="default: 1 2 3")
    parser.add_argument("--steps", type=int, default=60, help=f"default: 60; at most {STEPS}")
    parser.add_argument("--table", action="store_true", help="train nothing; --output may be a file of --export")
    parser.add_argument("--export", type=Path, metavar="FILE", help="also write all results into one file")


def run(options: argparse.Namespace) -> None:
    if not options.table:
        if not 1 <= options.steps <= STEPS:
            raise UsageError(f"--steps {options.steps}: the quickstart's tasks are enough for 1 to {STEPS}")
        if "gae" in options.estimators:
            raise UsageError("--estimators gae learns with a critic, and the quickstart trains none")
        check_steps(options.output, options.steps)
        jobs = [RealLearning(estimator, options.steps) for estimator in options.estimators]
        measure(jobs, list(dict.fromkeys(options.seeds)), options.output)
    results = read_results(options.output)
    print(report(results))
    if options.export:
        write_text(options.export, "[\n" + ",\n".join(json.dumps(result) for result in results) + "\n]\n")


def check_steps(output: Path, steps: int) -> None:
    """
    Raises:
        UsageError: `output` holds trainings of another length, which cannot be compared with these.
    """
    if others := {job["steps"] for job, _ in recorded(output, RealLearning)} - {steps}:
        raise UsageError(
            f"--output {output} holds trainings of {others.pop()} steps, not {steps}: name another directory"
        )


@dataclass(frozen=True)
class RealLearning(Job):
    """Held-out success before and after a training; its record is also a line of the export."""

    at_once: ClassVar[int] = 1
    cost: ClassVar[float] = PROMPTS_PER_STEP * N_SAMPLES_PER_PROMPT
    estimator: str
    steps: int

    @property
    def title(self) -> str:
        return f"{self.estimator}, {self.steps} steps"

    def measure(self, seeds: list[int], work: Path, tick: Tick) -> list[Record]:
        (seed,) = seeds
        work = work.absolute()
        arm = train(work, self.estimator, seed, self.steps)
        tick(self.cost)
        return [
            {
                "start": success(work, work / "warm_start"),
                "end": success(work, arm / "model", arm / "run", self.steps),
                "prompts_per_step": PROMPTS_PER_STEP,
                "n_samples_per_prompt": N_SAMPLES_PER_PROMPT,
                "tasks": SIZES["heldout"],
                "samples": N_SAMPLES,
                "warm_start": model_identity(str(work / "warm_start")),
                "prompts": fingerprint(json.dumps([sorted(step) for step in prompts(arm / "run")]).encode()),
            }
        ]


@functools.cache
def success(output: Path, model: Path, run_dir: Path | None = None, step: int = 0) -> float:
    heldout = read_tasks(output / "data" / "heldout.jsonl")
    return float(evaluate(model, heldout, [run_dir] if run_dir else [], step).mean())


def read_results(source: Path) -> list[dict]:
    """The results of a folder, or of a file of --export.

    Raises:
        UsageError: there is nothing, or runs of different settings.
    """
    if source.is_file():
        results = json.loads(source.read_text())
    else:
        kept = recorded(source, RealLearning)
        results = [job | {"seed": seed} | record for job, records in kept for seed, record in records.items()]
    if not results:
        raise UsageError(f"--output {source}: there is no result of learning_real.py")
    for name in COMMON:
        if len(found := {result[name] for result in results}) > 1:
            raise UsageError(f"--output {source}: runs of different {name} cannot be compared: {sorted(found)}")
    return results


# The table


def report(results: Sequence[dict]) -> str:
    """In Markdown: held-out success at the end, and the difference to GRPO's for the same seeds."""
    ends: dict[str, dict[int, float]] = {}
    for result in results:
        ends.setdefault(result["estimator"], {})[result["seed"]] = result["end"]
    start, base = results[0]["start"], ends.get(REFERENCE, {})
    seeds = sorted({result["seed"] for result in results})
    head = ["estimator", *(f"seed {seed}" for seed in seeds), "mean", "rise, in GRPO's", "minus GRPO's", "visible"]
    rows = []
    for name in sorted(ends, key=lambda name: (name != REFERENCE, -np.mean(list(ends[name].values())))):
        own = ends[name]
        cells = [registry.title(name), *(f"{own[seed]:.3f}" if seed in own else "" for seed in seeds)]
        cells += [f"{np.mean(list(own.values())):.3f}"]
        pairs = np.array([(own[seed], base[seed]) for seed in seeds if seed in own and seed in base]).reshape(-1, 2)
        rows.append([*cells, *(["1", "", ""] if name == REFERENCE else compared(pairs, start))])
    return "\n\n".join([described(results[0]), table(head, rows), NOTE, *other_prompts(results)])


NOTE = (
    "Minus GRPO's: the mean difference over seeds, with its 95 % t-interval. Visible: the smallest difference that so many "
    "pairs as noisy as these would show four times in five."
)


def described(result: dict) -> str:
    return (
        f"**G = {result['n_samples_per_prompt']}, {result['prompts_per_step']} prompts a step, {result['steps']} steps; start "
        f"{result['start']:.3f}** (held-out success on {result['tasks']} tasks × {result['samples']} samples)"
    )


def compared(pairs: np.ndarray, start: float) -> list[str]:
    """Of (seeds, 2) ends, an estimator's and GRPO's: ratio of rises, difference with its interval, what could be seen."""
    if not len(pairs):
        return ["", "", ""]
    rises = pairs.mean(0) - start
    ratio = f"{rises[0] / rises[1]:.2f}" if rises[1] > 0 else ""
    difference = pairs[:, 0] - pairs[:, 1]
    if len(difference) < 2:
        return [ratio, f"{difference[0]:+.3f}", ""]
    found = interval(difference)
    return [ratio, found.text(), f"{found.visible:.3f}"]


def other_prompts(results: Sequence[dict]) -> list[str]:
    """A line for each seed whose runs were not given the same prompts."""
    seen: dict[int, set[str]] = {}
    for result in results:
        seen.setdefault(result["seed"], set()).add(result["prompts"])
    return [f"Seed {seed}: NOT the same prompts in all runs." for seed, orders in seen.items() if len(orders) > 1]


main = command("python research/learning_real.py", __doc__, add_flags, run)

if __name__ == "__main__":
    main()
