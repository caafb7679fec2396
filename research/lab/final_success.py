"""Success at the end of trainings in OpenRLHF: results by folder or file, and their tables, paired with GRPO's
seeds.

A result is a job's fields, its seed and its record: `end`, prompts_per_step, n_samples_per_prompt, tasks, samples,
prompts (an identity), and, where they were measured, start, age (of the samples, by step), pass and start_pass (pass@k
of the held-out tasks), greedy and start_greedy (success of greedy decoding), and by step seconds, length, entropy;
own_share is a part of the seconds.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from lab.markdown_tables import table
from lab.measured import Job, measure, recorded
from lab.statistics import interval
from lab.summaries import title
from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.files import write_text

BASE = "group_norm"
COMMON = ("task", "start", "steps", "prompts_per_step", "tasks", "samples", "warm_start")  # of all results of one table
LAST = 5  # steps, of which means are shown
BY_STEP = {"length": "tokens, last 5 steps", "entropy": "entropy, last 5 steps", "seconds": "seconds a step"}
NOTE = (
    "Minus GRPO's: the mean difference over seeds, with its 95 % t-interval. Visible: the smallest difference that so "
    "many pairs as noisy as these would show four times in five."
)


def add_flags(parser: argparse.ArgumentParser, output: str, seeds: int) -> None:
    add = parser.add_argument
    add("--output", type=Path, default=Path(output), metavar="DIR")
    add("--seeds", nargs="+", type=int, default=[*range(1, seeds + 1)], metavar="N", help=f"default: 1 to {seeds}")
    add("--minutes", type=float, default=math.inf, metavar="N", help="begin no further seed after so many")
    add("--table", action="store_true", help="train nothing; --output may be a file of --export")
    add("--export", type=Path, metavar="FILE", help="also write all results into one file")


def run(options: argparse.Namespace, jobs: Sequence[Job]) -> None:
    """Measure what is missing, one setting after the other, and print the tables of all results."""
    kind = type(jobs[0])
    if not options.table:
        check_steps(options.output, kind, jobs[0].steps)
        for _, together in itertools.groupby(jobs, lambda job: getattr(job, "sampling", "")):
            measure(list(together), list(dict.fromkeys(options.seeds)), options.output, minutes=options.minutes)
    results = read_results(options.output, kind)
    print(report(results))
    if options.export:
        write_text(options.export, "[\n" + ",\n".join(json.dumps(result) for result in results) + "\n]\n")


def check_steps(output: Path, kind: type[Job], steps: int) -> None:
    """
    Raises:
        UsageError: `output` holds trainings of another length, which cannot be compared with these.
    """
    if others := {job["steps"] for job, _ in recorded(output, kind)} - {steps}:
        raise UsageError(
            f"--output {output} holds trainings of {others.pop()} steps, not {steps}: name another directory"
        )


def kept(path: Path, measure: Callable[[], dict]) -> dict:
    """The success before any training, as a record names it: measured once.

    Args:
        measure: the record of an evaluation.
    """
    if not path.exists():
        found, names = measure(), {"end": "start", "pass": "start_pass", "greedy": "start_greedy"}
        write_text(path, json.dumps({name: found[key] for key, name in names.items() if key in found}) + "\n")
    return json.loads(path.read_text())


def read_results(source: Path, kind: type[Job]) -> list[dict]:
    """The results of a folder, or of a file of --export.

    Raises:
        UsageError: there is nothing, or runs of different settings.
    """
    if source.is_file():
        results = json.loads(source.read_text())
    else:
        found = recorded(source, kind)
        results = [job | {"seed": seed} | record for job, records in found for seed, record in records.items()]
    if not results:
        raise UsageError(f"--output {source}: no result in this folder")
    for together in settings(results).values():
        for name in COMMON:
            found = {each.get(name) for each in together}
            if len(found) > 1:
                raise UsageError(f"--output {source}: runs of different {name} cannot be compared: {sorted(found)}")
    return results


def settings(results: Sequence[dict]) -> dict[tuple, list[dict]]:
    """The results by what one table compares: responses per prompt, and how they were sampled."""
    found: dict[tuple, list[dict]] = {}
    for result in sorted(results, key=lambda result: result["n_samples_per_prompt"]):
        found.setdefault((result["n_samples_per_prompt"], result.get("sampling", "")), []).append(result)
    return found


def report(results: Sequence[dict]) -> str:
    """In Markdown, a table a setting: held-out success at the end, and the difference to GRPO's for the same seeds."""
    parts = [part for together in settings(results).values() for part in of_setting(together)]
    return "\n\n".join([*parts, NOTE, *other_prompts(results)])


def of_setting(results: Sequence[dict]) -> list[str]:
    runs: dict[str, dict[int, dict]] = {}
    for result in results:
        runs.setdefault(result["estimator"], {})[result["seed"]] = result
    ends = {name: {seed: run["end"] for seed, run in own.items()} for name, own in runs.items()}
    start, base = results[0].get("start"), ends.get(BASE, {})
    seeds = sorted({result["seed"] for result in results})
    aged = any(result.get("age") for result in results)
    powers = sorted({k for result in results for k in result.get("pass", {})}, key=int)
    head = ["estimator", *(f"seed {seed}" for seed in seeds), "mean", "rise, in GRPO's", "minus GRPO's", "visible"]
    head += [*(["steps old"] if aged else []), *(f"pass@{k}" for k in powers)]
    head += [f"pass@{powers[-1]} minus GRPO's"] if powers else []
    greedy = any("greedy" in result for result in results)
    head += ["greedy", "greedy minus GRPO's"] if greedy else []
    by_step = [name for name in BY_STEP if all(isinstance(result.get(name), list) for result in results)]
    head += [BY_STEP[name] for name in by_step] + (["own code"] if any("own_share" in r for r in results) else [])
    rows = []
    for name in sorted(ends, key=lambda name: (name != BASE, -np.mean(list(ends[name].values())))):
        own = ends[name]
        cells = [title(name), *(f"{own[seed]:.3f}" if seed in own else "" for seed in seeds)]
        cells += [f"{np.mean(list(own.values())):.3f}"]
        cells += ["1", "", ""] if name == BASE else compared(paired(own, base), start)
        mine = list(runs[name].values())
        if aged:
            cells.append(f"{np.mean([np.mean(run['age']) for run in mine]):.1f}")
        cells += [f"{np.mean([run['pass'][k] for run in mine]):.3f}" for k in powers]
        cells += [against_base(runs, name, lambda run: run["pass"][powers[-1]])] if powers else []
        if greedy:
            cells += [f"{np.mean([run['greedy'] for run in mine]):.3f}"]
            cells += [against_base(runs, name, lambda run: run["greedy"])]
        cells += [f"{np.mean([np.mean(run[metric][-LAST:]) for run in mine]):.3g}" for metric in by_step]
        cells += [f"{np.mean([run['own_share'] for run in mine]):.1%}"] if "own_share" in mine[0] else []
        rows.append(cells)
    return [described(results[0]), table(head, rows)]


def described(result: dict) -> str:
    sampling = f", {result['sampling']}" if result.get("sampling", "sync") != "sync" else ""
    start = f"; start {result['start']:.3f}" if "start" in result else ""
    start += f", greedy {result['start_greedy']:.3f}" if "start_greedy" in result else ""
    start += "".join(f", pass@{k} {value:.3f}" for k, value in result.get("start_pass", {}).items())
    return (
        f"**G = {result['n_samples_per_prompt']}{sampling}, {result['prompts_per_step']} prompts a step, "
        f"{result['steps']} steps{start}** (held-out success on {result['tasks']} tasks × {result['samples']} samples)"
    )


def against_base(runs: dict[str, dict[int, dict]], name: str, value: Callable[[dict], float]) -> str:
    if name == BASE:
        return ""
    own, base = ({seed: value(run) for seed, run in runs.get(each, {}).items()} for each in (name, BASE))
    return compared(paired(own, base), None)[1]


def paired(own: dict[int, float], base: dict[int, float]) -> np.ndarray:
    """(seeds, 2): both values of the seeds that both have."""
    return np.array([(own[seed], base[seed]) for seed in sorted(own) if seed in base]).reshape(-1, 2)


def compared(pairs: np.ndarray, start: float | None) -> list[str]:
    """Of (seeds, 2) ends, an estimator's and GRPO's: ratio of rises, difference, smallest visible."""
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
    mixed = [key for key, orders in seen.items() if len(orders) > 1]
    return [f"Seed {seed}, G = {group}: NOT the same prompts in all runs." for group, seed in mixed]
