"""Run the stages up to a trained model, each with its result in a folder: tasks, random model, warm start, training.

DIRECTORY/
  data/ base/ warm_start/     tasks, random model, model after train_sft: what all arms begin with
  logs/                       full output of each stage

An arm is one training with one estimator, in its own folder below DIRECTORY: checkpoints/, model/, run/.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tqdm import tqdm

from openrlhf_ebpo.errors import ReportedError
from openrlhf_ebpo.estimator import registry
from openrlhf_ebpo.quickstart import tasks
from openrlhf_ebpo.quickstart.launch import duration, launch, show_progress
from openrlhf_ebpo.upstream.stack import is_cpu_stack

STEPS = 80
PROMPTS_PER_STEP = 128
N_SAMPLES_PER_PROMPT = 2  # where the estimators differ most, for the same number of responses
SEED = 42  # of sampling
WARM_START_BATCH = 32
WARM_START_STEPS = 240
WARM_START_EXPORT_EVERY = 10  # optimizer steps
WARM_START_SUCCESS = 0.05  # most groups fail entirely, and there is much left to learn
SIZES = {
    "heldout": 512,
    "validation": 256,
    "train": STEPS * PROMPTS_PER_STEP,
    "warm_start": WARM_START_STEPS * WARM_START_BATCH,
}

Stage = tuple[str, Callable[[], bool], Callable[[], None]]  # what it says, whether it is done, what it does


def run_stages(stages: list[Stage]) -> None:
    """Run the stages in order; skip those whose results exist."""
    for number, (name, done, stage) in enumerate(stages, 1):
        print(f"[{number}/{len(stages)}] {name}", flush=True)
        if not done():
            began = time.monotonic()
            stage()
            print(f"      {duration(time.monotonic() - began)}", flush=True)


def preparation(directory: Path) -> list[Stage]:
    return [
        (
            "tasks: reasoning-gym, four disjoint sets",
            (directory / "data" / "warm_start.jsonl").exists,
            lambda: tasks.write(directory / "data", tasks.split(SIZES)),
        ),
        (
            "model: a tiny Qwen3 with random weights",
            (directory / "base" / "tokenizer.json").exists,
            partial(make_model, directory),
        ),
        (
            "warm start: OpenRLHF's train_sft",
            (directory / "warm_start" / "config.json").exists,
            partial(warm_start, directory),
        ),
    ]


def make_model(directory: Path) -> None:
    from openrlhf_ebpo.quickstart import tiny_model

    rows = [
        json.loads(line) for name in SIZES for line in (directory / "data" / f"{name}.jsonl").read_text().splitlines()
    ]
    tiny_model.build(directory / "base.part", [tasks.TEMPLATE.format(row["prompt"]) + row["label"] for row in rows])
    (directory / "base.part").rename(directory / "base")


def warm_start(directory: Path) -> None:
    exports = directory / "checkpoints" / "warm_start"
    flags = {
        "model.model_name_or_path": directory / "base",
        "data.dataset": directory / "data" / "warm_start.jsonl",
        "data.input_key": "prompt",
        "data.output_key": "label",
        "data.input_template": tasks.TEMPLATE,
        "data.max_len": 64,
        "train.batch_size": WARM_START_BATCH,
        "train.micro_batch_size": WARM_START_BATCH,
        "train.max_epochs": 1,
        "adam.lr": 6e-3,
        "lr_scheduler": "constant_with_warmup",
        "ds.zero_stage": 0,
        "ckpt.path": exports,
        "ckpt.output_dir": exports / "last",
        "ckpt.save_hf": True,
        "ckpt.disable_ds": True,
        "ckpt.save_steps": WARM_START_EXPORT_EVERY,
    }
    launch("train_sft", flags, directory / "logs" / "train_sft.log")
    from openrlhf_ebpo.quickstart.evaluate import read_tasks, success_rate

    validation = read_tasks(directory / "data" / "validation.jsonl")  # which nothing else uses
    chosen, success = nearest(in_order(exports), lambda model: success_rate(model, validation))
    print(f"      {chosen.name.removesuffix('_hf')} solves {success:.1%} of the validation tasks: taken", flush=True)
    shutil.copytree(chosen, directory / "warm_start.part", dirs_exist_ok=True)
    (directory / "warm_start.part").rename(directory / "warm_start")


def in_order(exports: Path) -> list[Path]:
    found = exports.glob("global_step*_hf")
    return sorted(found, key=lambda path: int(path.name.removesuffix("_hf")[len("global_step") :]))


def nearest(models: list[Path], success: Callable[[Path], float]) -> tuple[Path, float]:
    """Find the model whose success is nearest to what is wanted, by bisection: success grows in the order of training.

    Raises:
        ReportedError: even the last solves too little.
    """
    measured = {}
    low, high = 0, len(models) - 1
    while low <= high:
        middle = (low + high) // 2
        measured[models[middle]] = found = success(models[middle])
        low, high = (middle + 1, high) if found < WARM_START_SUCCESS else (low, middle - 1)
    if max(measured.values(), default=0) < WARM_START_SUCCESS:
        raise ReportedError(
            f"the warm start never solved {WARM_START_SUCCESS:.0%} of the validation tasks; see its logs/"
        )
    return min(measured.items(), key=lambda pair: abs(pair[1] - WARM_START_SUCCESS))


@dataclass(frozen=True)
class Training:
    """One arm: the warm start of `directory`, trained with one estimator.

    Attributes:
        arm: its folder, below `directory`.
        seed: of sampling.
        prompts: the file in `directory`/data with its tasks. They are taken in the file's order, so that all arms get
            the same: OpenRLHF's own shuffling of prompts does not follow --train.seed.
    """

    directory: Path
    arm: Path
    estimator: str
    steps: int = STEPS
    seed: int = SEED
    prompts: str = "train.jsonl"

    @property
    def stage(self) -> Stage:
        last = "prior.json" if registry.computed_here(self.estimator) else "tokenizer.json"  # what is written last
        name = f"training: {registry.title(self.estimator)}, {self.steps} steps"
        return name, (self.arm / "model" / last).exists, self.train

    def train(self) -> None:
        """Train. In a log file, lines show the progress instead of a bar."""
        in_a_file = not sys.stderr.isatty()
        if in_a_file:
            print("      starting Ray and vLLM", flush=True)
        log = self.directory / "logs" / f"train-{'-'.join(self.arm.relative_to(self.directory).parts)}.log"
        with tqdm(
            total=self.steps, unit="step", desc="      starting Ray and vLLM", disable=in_a_file, leave=False
        ) as bar:
            launch("train_ppo_ray", training_flags(self), log, lambda: show_progress(bar, self.arm / "run"))
            show_progress(bar, self.arm / "run")


def training_flags(training: Training) -> dict:
    flags = {
        "actor.model_name_or_path": training.directory / "warm_start",
        "data.prompt_dataset": training.directory / "data" / training.prompts,
        "data.order": "as_is",
        "data.max_samples": training.steps * PROMPTS_PER_STEP,
        "data.input_key": "prompt",
        "data.label_key": "entry",
        "data.input_template": tasks.TEMPLATE,
        "data.max_len": 48,
        "reward.remote_url": tasks.EXAMPLE / "reward.py",
        "advantage_estimator": training.estimator,
        "rollout.n_samples_per_prompt": N_SAMPLES_PER_PROMPT,
        "rollout.batch_size": PROMPTS_PER_STEP,
        "rollout.micro_batch_size": 64,
        "rollout.max_new_tokens": 14,
        "train.batch_size": PROMPTS_PER_STEP * N_SAMPLES_PER_PROMPT,
        "train.micro_batch_size": 64,
        "train.seed": training.seed,
        "actor.adam.lr": 8e-4,
        "actor.num_gpus_per_node": 1,
        "ref.num_gpus_per_node": 1,
        "vllm.num_engines": 1,
        "algo.kl.init_coef": 0,
        "ds.zero_stage": 0,
        "ckpt.path": training.arm / "checkpoints",
        "ckpt.output_dir": training.arm / "model",
        "ckpt.save_steps": 20,
        "ckpt.max_num": 2,
        "ckpt.load_enable": True,  # resumes from the last checkpoint, if there is one
        "logger.run_dir": training.arm / "run",
        "logger.wandb.run_name": f"{training.directory.name}-{training.arm.name}",
    }
    if not is_cpu_stack():  # policy and vLLM share one GPU
        flags |= {"train.colocate_all": True, "vllm.gpu_memory_utilization": 0.3, "vllm.enforce_eager": True}
    return flags
