"""Trainings in OpenRLHF (Ray, DeepSpeed, vLLM): the quickstart's words, synchronous and asynchronous.

A seed has its own order of prompts and its own sampling; all estimators of a seed are given the same prompts in the
same order. All seeds of a folder begin with the same model.
"""

from __future__ import annotations

import functools
import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from lab.jobs import rounded
from lab.measured import Job, Record
from openrlhf_ebpo.errors import ReportedError
from openrlhf_ebpo.files import write_text
from openrlhf_ebpo.progress import fingerprint, model_identity
from openrlhf_ebpo.run.run_log import read_metrics

METRICS = ("rollout/reward_mean", "actor_grad_norm", "policy/entropy", "policy/kl_per_step", "mismatch/k3_kl")

QUEUE_1 = {"train.async_enable": True, "train.async_queue_size": 1, "reward.workers": 1}
QUEUE_4 = QUEUE_1 | {"train.async_queue_size": 4}
CLIP = {"algo.advantage.is_correction_level": "token", "algo.advantage.is_correction_mode": "clip"}
SAMPLINGS = {  # flags that differ from the quickstart's
    "sync": {},
    "queue-4": QUEUE_4,
    "queue-4-clip": QUEUE_4 | CLIP,
    "queue-4-partial": QUEUE_4 | {"train.partial_rollout_enable": True},
    "queue-1": QUEUE_1,
}

# Grades as examples/reasoning_gym/reward.py does, and logs how many steps were trained when a response was finished.
# The engine's weights are at least as new, for the run log is written after the weights are sent.
AGED_REWARD = """
from pathlib import Path
import torch
from openrlhf_ebpo.quickstart.tasks import example

METRICS = Path({metrics!r})

def reward_func(queries, prompts, labels, **_kwargs):
    trained = METRICS.read_bytes().count(b"rollout/reward_mean") if METRICS.exists() else 0
    rewards = torch.tensor([example("reward").reward_func(queries, prompts, labels)["rewards"]])
    steps = torch.full(rewards.shape, float(trained))
    return {{"rewards": rewards, "scores": rewards, "extra_logs": {{"trained_steps": steps}}}}
"""


def train(directory: Path, job: RealLearning, seed: int) -> Path:
    """Train on the quickstart's words, unless that is done; return the folder that has model/ and run/. An interrupted
    training resumes.

    Raises:
        ReportedError: a training failed.
    """
    from openrlhf_ebpo.quickstart.launch import launch
    from openrlhf_ebpo.quickstart.stages import Training, preparation, run_stages, training_flags

    directory = directory.absolute()
    run_stages(preparation(directory))
    arm = directory / "arms" / job.sampling / f"seed-{seed}" / job.estimator.replace(":", ".")
    training = Training(directory, arm, job.estimator, job.steps, seed, shuffled(directory, seed))
    if training.stage[1]():
        return arm
    flags = training_flags(training) | SAMPLINGS[job.sampling]
    if "train.async_enable" in flags:
        arm.mkdir(parents=True, exist_ok=True)
        flags["reward.remote_url"] = arm / "reward.py"
        flags["reward.remote_url"].write_text(AGED_REWARD.format(metrics=str(arm / "run" / "metrics.jsonl")))
    launch("train_ppo_ray", flags, directory / "logs" / f"{job.sampling}-{seed}-{arm.name}.log")
    return arm


def shuffled(directory: Path, seed: int) -> str:
    """Return the name of the file in data/ with the training tasks in this seed's order."""
    path = directory / "data" / f"train-seed-{seed}.jsonl"
    if not path.exists():
        rows = (directory / "data" / "train.jsonl").read_text().splitlines(keepends=True)
        random.Random(seed).shuffle(rows)
        write_text(path, "".join(rows))
    return path.name


def prompts_identity(run_dir: Path) -> str:
    """Equal for runs that were given the same prompts at the same steps."""
    from openrlhf_ebpo.quickstart.compare import prompts

    return fingerprint(json.dumps([sorted(step) for step in prompts(run_dir)]).encode())


@dataclass(frozen=True)
class RealLearning(Job):
    """Held-out success before and after a training on the quickstart's words, and curves of METRICS.

    estimator: NAME, MODULE:NAME, or ebpo.PRESET. sampling: of SAMPLINGS.
    """

    at_once: ClassVar[int] = 1
    estimator: str
    steps: int
    sampling: str = "sync"

    @property
    def title(self) -> str:
        return f"{self.estimator}, {self.sampling}, {self.steps} steps"

    def one(self, seed: int, work: Path) -> Record:
        from openrlhf_ebpo.quickstart.evaluate import N_SAMPLES
        from openrlhf_ebpo.quickstart.stages import N_SAMPLES_PER_PROMPT, PROMPTS_PER_STEP, SIZES

        work = work.absolute()
        arm = train(work, self, seed)
        start = success(work, work / "warm_start")
        return {
            **{"start": start["end"], "start_pass": start["pass"], "start_greedy": start["greedy"]},
            **success(work, arm / "model", arm / "run", self.steps),
            "prompts_per_step": PROMPTS_PER_STEP,
            "n_samples_per_prompt": N_SAMPLES_PER_PROMPT,
            "tasks": SIZES["heldout"],
            "samples": N_SAMPLES,
            "warm_start": model_identity(str(work / "warm_start")),
            "prompts": prompts_identity(arm / "run"),
            **curves(arm / "run", self.steps),
            "age": ages(arm / "run"),
        }


def ages(run_dir: Path) -> list[float]:
    """By step of asynchronous training: how many steps older than the trainer's the weights were that finished its
    responses, at most."""
    return [rounded(row["step"] - 1 - row["trained_steps"]) for row in read_metrics(run_dir) if "trained_steps" in row]


def curves(run_dir: Path, steps: int) -> Record:
    """Each of METRICS by step.

    Raises:
        ReportedError: steps are missing.
    """
    rows = [row for row in read_metrics(run_dir) if all(name in row for name in METRICS)]
    if len(rows) != steps:
        raise ReportedError(
            f"{run_dir} has {len(rows)} of {steps} steps with all metrics: remove {run_dir.parent} and repeat"
        )
    return {name: [rounded(row[name]) for row in rows] for name in METRICS}


@functools.cache
def success(output: Path, model: Path, run_dir: Path | None = None, step: int = 0) -> Record:
    """Measure held-out success: of samples, of at least one of them, of greedy decoding."""
    from openrlhf_ebpo.quickstart.evaluate import N_SAMPLES, evaluate, read_tasks, success_rate

    heldout = read_tasks(output / "data" / "heldout.jsonl")
    correct = evaluate(model, heldout, [run_dir] if run_dir else [], step)
    passed = {str(N_SAMPLES): float(correct.any(1).mean())}
    return {"end": float(correct.mean()), "pass": passed, "greedy": success_rate(model, heldout, greedy=True)}
