"""The cost of this package per step: a training with upstream's estimator and all of ours off, against one with all of ours on.

Both arms run the same tiny training on a Ray of their own, at learning rate 0 so that both generate equally much, one after the
other, in pairs; the order within a pair alternates. Compared are medians of the seconds from one logged step to the next.

  off   --advantage_estimator group_norm (OpenRLHF's own code), no rollouts kept, --logger.no_policy_metrics. What cannot be off:
        the seams, without which OpenRLHF does not run here, the guard around rewards, and the line in metrics.jsonl
  on    --advantage_estimator ebpo, all rollouts kept, policy metrics, prior.json, and all else that is on by default

Then what each arm's steps spend where (the phases of metrics.jsonl; what is in none of them is not shown), so that a ratio above the goal
names its cause. Ends with `overhead N.NNN`, the geometric mean of the pairs' ratios on / off; the interval is Student's over the pairs. Goal: at most 1.00.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from pathlib import Path

import numpy as np

from lab import training
from lab.statistics import alternated, ratio
from openrlhf_ebpo.record.run_log import read_metrics

WARM_UP = 5  # steps
STEP, PHASE = "step", "phase/"
ARMS = {
    "off": ("group_norm", "--logger.rollouts_every", "1000000000", "--logger.no_policy_metrics"),
    "on": ("ebpo",),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=6, help="of trainings (default 6)")
    parser.add_argument("--steps", type=int, default=60, help="of each training (default 60)")
    parser.add_argument("--prompts", type=int, default=16, help="of a step (default 16)")
    parser.add_argument("--samples", type=int, default=8, help="responses per prompt (default 8)")
    parser.add_argument("--tokens", type=int, default=64, help="of a response, at most (default 64)")
    options = parser.parse_args()
    if options.pairs < 2 or options.steps <= 2 * WARM_UP:
        parser.error(f"--pairs must be at least 2, --steps more than {2 * WARM_UP}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))  # and end the training
    with tempfile.TemporaryDirectory() as directory:
        training.prepare(Path(directory), options.steps, options.prompts)
        pairs = [pair(Path(directory), number, options) for number in range(options.pairs)]
    found = ratio([each["on"][STEP] / each["off"][STEP] for each in pairs])
    print(phase_table(pairs))
    print(f"{len(pairs)} pairs of {options.steps} steps: 95 % interval {found.low:.3f} to {found.high:.3f}")
    print(f"overhead {found.mean:.3f}")


def pair(directory: Path, number: int, options: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Of each arm, seconds of a step, and of its phases."""
    arms = {
        arm: seconds_of(directory, directory / f"{number}-{arm}", arm, options)
        for arm in alternated(list(ARMS), number)
    }
    off, on = arms["off"][STEP], arms["on"][STEP]
    print(f"{number + 1}: off {off:.3f} s, on {on:.3f} s a step, ratio {on / off:.3f}", flush=True)
    return arms


def phase_table(pairs: list[dict[str, dict[str, float]]]) -> str:
    """Means over the pairs, in milliseconds."""
    names = [STEP, *sorted({name for each in pairs for arm in each.values() for name in arm if name != STEP})]
    lines = [f"{'ms':>24} {'off':>8} {'on':>8} {'on - off':>9}"]
    for name in names:
        off, on = (1000 * float(np.mean([each[arm].get(name, 0.0) for each in pairs])) for arm in ARMS)
        lines.append(f"{name:>24} {off:8.1f} {on:8.1f} {on - off:+9.1f}")
    return "\n".join(lines)


def seconds_of(directory: Path, output: Path, arm: str, options: argparse.Namespace) -> dict[str, float]:
    """Medians over the steps after the first ones."""
    responses = options.prompts * options.samples
    flags = {
        "rollout.batch_size": options.prompts,
        "rollout.n_samples_per_prompt": options.samples,
        "rollout.micro_batch_size": responses,
        "rollout.max_new_tokens": options.tokens,
        "data.max_len": options.tokens + 16,
        "train.batch_size": responses,
        "actor.adam.lr": 0,
    }
    words = [word for flag, value in flags.items() for word in (f"--{flag}", str(value))]
    estimator, *own = ARMS[arm]
    process = training.start(training.command(directory, output, estimator, *own, *words), output / "log")
    try:
        process.wait()
    finally:
        process.terminate()
    if process.returncode:
        sys.exit((output / "log").read_text()[-3000:] + f"\nerror: the training failed ({process.returncode})")
    rows = read_metrics(output / "run")
    phases = sorted({name for row in rows for name in row if name.startswith(PHASE)})
    return {
        STEP: float(np.median(np.diff([row["time"] for row in rows])[WARM_UP:])),
        **{name[len(PHASE) :]: float(np.median([row.get(name, 0.0) for row in rows[WARM_UP:]])) for name in phases},
    }


if __name__ == "__main__":
    main()
