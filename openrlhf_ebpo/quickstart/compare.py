"""Compare the arms of a quickstart on the same held-out tasks: result.json, the table, the picture."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from openrlhf_ebpo.estimator import registry
from openrlhf_ebpo.files import write_json
from openrlhf_ebpo.quickstart.stages import N_SAMPLES_PER_PROMPT, PROMPTS_PER_STEP, STEPS
from openrlhf_ebpo.run.run_log import read_metrics, read_rollouts, read_run

ESTIMATORS = ("ebpo", "group_norm")
REFERENCE = "group_norm"  # what the other is held against
ARMS = "arms"
PICTURE = "comparison.png"
RESULTS = "docs/results.md"
MEASURED = {"success": "held-out success", "greedy": "decoded greedily", "pass": "a sample of eight passes"}


def compare(directory: Path) -> None:
    """Evaluate the warm start and every arm, draw the picture, write result.json."""
    from openrlhf_ebpo.eval.differences import of_tasks
    from openrlhf_ebpo.quickstart.evaluate import evaluate, read_tasks, success_rate
    from openrlhf_ebpo.run.plot import plot_runs

    heldout = read_tasks(directory / "data" / "heldout.jsonl")
    runs = {name: directory / ARMS / name / "run" for name in ESTIMATORS}

    def measured(model: Path, correct: np.ndarray) -> dict[str, float]:
        return {
            "success": float(correct.mean()),
            "greedy": success_rate(model, heldout, greedy=True),
            "pass": float(correct.any(1).mean()),
        }

    before = evaluate(directory / "warm_start", heldout, runs.values(), 0)
    after = {
        name: evaluate(directory / ARMS / name / "model", heldout, [run_dir], last_step(run_dir))
        for name, run_dir in runs.items()
    }
    rates = {name: correct.mean(1) for name, correct in after.items()}
    arms = {}
    for name, run_dir in runs.items():
        arms[name] = {
            "after": measured(directory / ARMS / name / "model", after[name]),
            "difference": None if name == REFERENCE else of_tasks([(rates[REFERENCE], rates[name], before.shape[1])]),
            "steps": last_step(run_dir),
            "all_fail_first_ten_steps": float(
                np.mean([row["ebpo/all_fail_fraction"] for row in read_metrics(run_dir)[:10]])
            ),
        }
    titles = " and ".join(map(registry.title, ESTIMATORS))
    heading = f"{titles}: reasoning-gym spell_backward, G = {N_SAMPLES_PER_PROMPT}, one warm start"
    plot_runs({registry.title(name): run_dir for name, run_dir in runs.items()}, directory / PICTURE, heading)
    result = {
        "heldout_questions": before.shape[0],
        "samples_per_question": before.shape[1],
        "prompts_per_step": PROMPTS_PER_STEP,
        "n_samples_per_prompt": N_SAMPLES_PER_PROMPT,
        "steps": STEPS,
        "before": measured(directory / "warm_start", before),
        "reference": REFERENCE,
        "same_prompts": same_prompts(list(runs.values())),
        "arms": arms,
        "versions": read_run(runs[REFERENCE])["versions"],
    }
    write_json(directory / "result.json", result)


def last_step(run_dir: Path) -> int:
    return read_metrics(run_dir)[-1]["step"]


def same_prompts(run_dirs: Sequence[Path]) -> bool:
    """Return True if all runs were given the same prompts, step by step."""
    orders = [prompts(run_dir) for run_dir in run_dirs]
    return all(order == orders[0] for order in orders)


def prompts(run_dir: Path) -> list[set[str]]:
    """Read the prompts of each step; a set, since a batch is complete in the order in which its responses end."""
    columns = (read_rollouts(run_dir, step).column("prompt") for step in range(1, last_step(run_dir) + 1))
    return [set(column.to_pylist()) for column in columns]


def table(result: dict, directory: Path) -> str:
    arms = result["arms"]
    rows = [("", [registry.title(name) for name in arms])]
    for name, measured in MEASURED.items():
        rows.append((f"{measured} before", [f"{result['before'][name]:.3f}"] * len(arms)))
        rows.append((f"{measured} after", [f"{arm['after'][name]:.3f}" for arm in arms.values()]))
    all_fail = [f"{arm['all_fail_first_ten_steps']:.0%}" for arm in arms.values()]
    rows.append(("groups that all fail, first ten steps", all_fail))
    width = max(len(name) for name, _ in rows)
    cell = max(7, *(len(title) for title in rows[0][1]))
    lines = [f"{name:<{width}}" + "".join(f"  {value:>{cell}}" for value in values) for name, values in rows]
    lines += ["", *differences(result), ""]
    lines += [
        f"picture          {os.path.relpath(directory / PICTURE)}",
        f"run directories  {os.path.relpath(directory / 'arms')}/*/run",
    ]
    return "\n" + "\n".join(f"  {line}".rstrip() for line in lines) + "\n"


def differences(result: dict) -> list[str]:
    """Describe the differences between the arms, and their intervals."""
    against = registry.title(result["reference"])
    lines = []
    for name, arm in result["arms"].items():
        if arm["difference"]:
            mean, low, high = arm["difference"]
            lines += [f"{registry.title(name)} - {against}  {mean:+.3f}, 95 % interval [{low:+.3f}, {high:+.3f}]"]
    measured = f"{result['heldout_questions']} tasks x {result['samples_per_question']} samples"
    same = "the same prompts, in the same order" if result["same_prompts"] else "NOT the same prompts"
    return [
        *lines,
        f"The interval is of the tasks ({measured}), not of training: other seeds are in {RESULTS}.",
        f"All began with the same model and were given {same}: {result['steps']} steps of "
        f"{result['prompts_per_step']} x {result['n_samples_per_prompt']} responses.",
    ]
