"""The cost of this package per step: a training with upstream's estimator and all of ours off, against one with all of
ours on.

Both arms run the same training on their own Ray, at learning rate 0 so that both generate equally much, one after the
other, in pairs; the order within a pair alternates. Compared are medians of the seconds from one logged step to the
next.

  off   --advantage_estimator group_norm (OpenRLHF's own code), no rollouts kept, --logger.no_policy_metrics. What
        cannot be off: the seams, without which OpenRLHF does not run here, the guard around rewards, and the line in
        metrics.jsonl
  on    --advantage_estimator ebpo, all rollouts kept, policy metrics, prior.json, and all else that is on by default

The model is a tiny one, or with --large a Qwen3 of 0.5 billion random weights, for a GPU. The table has what each arm's
steps spend where (phase/* of metrics.jsonl), so that a ratio above the goal names its cause. Below it: the share of our
own code in the trainer's process (goal: under 1 %), the seconds from the command to the first step, the GPU's memory,
and `overhead N.NNN`, the geometric mean of the pairs' ratios on / off with Student's interval (goal: at most 1.00).

overhead.json and overhead.md in --output hold the same. The same command resumes after the last finished pair; more
--pairs add to them.
"""

from __future__ import annotations

import argparse
import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from lab import training
from lab.gpu_memory import peak
from lab.markdown_tables import table
from lab.measured import Job, Record, measure
from lab.statistics import alternated, ratio
from openrlhf_ebpo.command import command
from openrlhf_ebpo.errors import ReportedError, UsageError
from openrlhf_ebpo.files import write_json, write_text
from openrlhf_ebpo.quickstart.launch import launch
from openrlhf_ebpo.run.run_log import read_metrics, versions

WARM_UP = 5  # steps, in which kernels are compiled and caches filled
STEP, FIRST, MEMORY, PHASE = "step", "first step", "peak_mib", "phase/"
OWN = ("checking_samples", "advantages", "run_log")  # phases of our own code in the trainer's process
OWN_GOAL = 0.01
OFF = {"logger.rollouts_every": 10**9, "logger.no_policy_metrics": True}
ARMS = {"off": {"advantage_estimator": "group_norm", **OFF}, "on": {"advantage_estimator": "ebpo"}}
LARGE = {"steps": 10, "prompts": 64, "samples": 8, "tokens": 512}


def add_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--output", type=Path, default=Path("runs/overhead"), metavar="DIR")
    add("--pairs", type=int, default=6, help="of trainings (default 6)")
    add("--steps", type=int, default=60, help="of each training (default 60)")
    add("--prompts", type=int, default=16, help="of a step (default 16)")
    add("--samples", type=int, default=8, help="responses per prompt (default 8)")
    add("--tokens", type=int, default=64, help="of a response, at most (default 64)")
    add("--large", action="store_true", help=f"0.5 billion weights, {LARGE}; the flags above but --pairs do not count")
    add("--force", action="store_true", help="measure all again; the old measured.jsonl is kept under another name")


def run(options: argparse.Namespace) -> None:
    """
    Raises:
        ReportedError: a training failed.
        UsageError: no pair, or too few steps.
    """
    own = {name: getattr(options, name) for name in LARGE}
    job = Pair(**(LARGE if options.large else own), large=options.large)
    if options.pairs < 1 or job.steps < WARM_UP + 2:
        raise UsageError(f"--pairs must be at least 1, --steps at least {WARM_UP + 2}")
    os.environ.setdefault("RAY_ADDRESS", "local")  # not a cluster of somebody else, who may end it
    pairs = measure([job], range(options.pairs), options.output, options.force).of(job)
    found = summary(pairs)
    about = {"job": asdict(job), "machine": training.machine(), "versions": versions()}
    write_json(options.output / "overhead.json", {**about, **found, "pairs": pairs})
    write_text(options.output / "overhead.md", report(pairs, found) + "\n")
    print(report(pairs, found))


@dataclass(frozen=True)
class Pair(Job):
    """A pair of trainings; its record has, of each arm, medians of seconds: of a step and of its phases."""

    at_once: ClassVar[int] = 1
    steps: int
    prompts: int
    samples: int
    tokens: int
    large: bool = False

    @property
    def title(self) -> str:
        return f"{self.steps} steps off and on"

    def one(self, seed: int, work: Path) -> Record:
        work = work.absolute()
        training.prepare(work, self.steps, self.prompts, self.large)
        return {arm: self.train(work, work / f"pair-{seed + 1}-{arm}", arm) for arm in alternated(list(ARMS), seed)}

    def train(self, work: Path, output: Path, arm: str) -> dict[str, float | None]:
        shutil.rmtree(output, ignore_errors=True)  # of a pair that was interrupted
        output.mkdir()
        started = time.time()
        with peak() as memory:
            launch("train_ppo_ray", self.flags(work, output, arm), output / "log")
        for path in (output / "ckpt", *output.glob("*.safetensors")):  # only their times count
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        return {**times(read_metrics(output / "run"), started), **memory}

    def flags(self, work: Path, output: Path, arm: str) -> dict:
        responses = self.prompts * self.samples
        own = {
            "actor.adam.lr": 0,
            "data.max_len": self.tokens + (training.LARGE_PROMPT if self.large else 16),
            "rollout.batch_size": self.prompts,
            "rollout.n_samples_per_prompt": self.samples,
            "rollout.micro_batch_size": 8 if self.large else responses,
            "rollout.max_new_tokens": self.tokens,
            "train.batch_size": responses,
            "train.micro_batch_size": 8 if self.large else responses,
            "vllm.enforce_eager": True,
            "logger.run_dir": output / "run",
        }
        return training.flags(work, output, "ebpo") | own | training.placement(engine_share=0.4) | ARMS[arm]


def times(rows: Sequence[dict], started: float) -> dict[str, float]:
    """Medians over the steps after WARM_UP.

    Raises:
        ReportedError: too few steps were logged.
    """
    if len(rows) < WARM_UP + 2:
        raise ReportedError(f"{len(rows)} steps were logged, too few to time")
    names = sorted({name for row in rows for name in row if name.startswith(PHASE)})
    return {
        FIRST: rows[0]["time"] - started,
        STEP: float(np.median(np.diff([row["time"] for row in rows])[WARM_UP:])),
        **{name[len(PHASE) :]: float(np.median([row.get(name, 0.0) for row in rows[WARM_UP:]])) for name in names},
    }


def summary(pairs: Sequence[dict]) -> dict:
    """Ratios on / off as (mean, low, high), None for one pair or where nothing was measured; `own` is a share of a
    step."""
    own = [sum(pair["on"].get(name, 0.0) for name in OWN) / pair["on"][STEP] for pair in pairs]
    found = {"own": float(np.mean(own)), FIRST: float(np.median([pair["on"][FIRST] for pair in pairs]))}
    for name, key in (("overhead", STEP), ("memory", MEMORY)):
        ratios = [pair["on"][key] / pair["off"][key] for pair in pairs if pair["off"][key]]
        found[name] = ratio(ratios) if len(ratios) > 1 else None
    return found


def report(pairs: Sequence[dict], found: dict) -> str:
    verdict = "under" if found["own"] < OWN_GOAL else "NOT under"
    lines = [
        phase_table(pairs),
        "",
        f"our own code ({', '.join(OWN)}): {found['own']:.2%} of a step, {verdict} {OWN_GOAL:.0%}",
        f"first step {found[FIRST]:.1f} s after the command",
    ]
    if memory := found["memory"]:
        lines.append(f"GPU memory, on / off: {memory.mean:.3f}, 95 % interval {memory.low:.3f} to {memory.high:.3f}")
    if whole := found["overhead"]:
        lines.append(f"{len(pairs)} pairs: 95 % interval {whole.low:.3f} to {whole.high:.3f}")
    mean = whole.mean if whole else pairs[0]["on"][STEP] / pairs[0]["off"][STEP]
    return "\n".join([*lines, f"overhead {mean:.3f}"])


def phase_table(pairs: Sequence[dict]) -> str:
    """Means over the pairs, in milliseconds."""
    names = dict.fromkeys(name for pair in pairs for arm in pair.values() for name in arm)
    rows = []
    for name in [*(name for name in names if name not in (FIRST, STEP, MEMORY)), STEP]:
        off, on = (1000 * float(np.mean([pair[arm].get(name, 0.0) for pair in pairs])) for arm in ARMS)
        rows.append([name, f"{off:.1f}", f"{on:.1f}", f"{on - off:+.1f}"])
    return table(["ms a step", "off", "on", "on - off"], rows, numbers=3)


main = command("python research/overhead.py", __doc__, add_flags, run)

if __name__ == "__main__":
    main()
