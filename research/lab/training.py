"""A training of a tiny model on a Ray of its own, for benchmarks of what surrounds the model."""

from __future__ import annotations

import json
import os
import string
import subprocess
import sys
from pathlib import Path

from openrlhf_ebpo.quickstart import tiny_model

PROMPTS, SAMPLES = 8, 4  # of a step
# about a third pass, and some prompts fail every time: the letters decide
REWARD = """
import torch
def reward_func(queries, prompts, labels):
    rewards = [float(sum(map(ord, q[len(p):])) % 3 == 0 and ord(p[0]) % 4 > 0) for q, p in zip(queries, prompts)]
    return {"rewards": torch.tensor(rewards), "scores": torch.tensor(rewards)}
"""


def prepare(directory: Path, steps: int, prompts_per_step: int = PROMPTS) -> None:
    """A model, prompts for so many steps, and a reward."""
    prompts = [f"{a}{b}{c}\n" for a in string.ascii_lowercase for b in "pqrs" for c in "xyz"]
    tiny_model.build(directory / "model", prompts, hidden_size=32, intermediate_size=64)
    rows = (json.dumps({"prompt": prompts[i % len(prompts)]}) + "\n" for i in range(steps * prompts_per_step))
    (directory / "prompts.jsonl").write_text("".join(rows))
    (directory / "reward.py").write_text(REWARD)


def command(directory: Path, output: Path, estimator: str, *more: str) -> list[str]:
    """The command line; `more` flags come last and win."""
    flags = {
        "actor.model_name_or_path": directory / "model",
        "data.prompt_dataset": directory / "prompts.jsonl",
        "data.input_key": "prompt",
        "data.max_len": 24,
        "reward.remote_url": directory / "reward.py",
        "advantage_estimator": estimator,
        "rollout.n_samples_per_prompt": SAMPLES,
        "rollout.batch_size": PROMPTS,
        "rollout.micro_batch_size": PROMPTS * SAMPLES,
        "rollout.max_new_tokens": 8,
        "train.batch_size": PROMPTS * SAMPLES,
        "train.micro_batch_size": PROMPTS * SAMPLES,
        "actor.num_gpus_per_node": 1,
        "vllm.num_engines": 1,
        "algo.kl.init_coef": 0,
        "ds.zero_stage": 0,
        "ckpt.path": output / "ckpt",
        "ckpt.output_dir": output,
    }
    words = [word for flag, value in flags.items() for word in (f"--{flag}", str(value))]
    return [sys.executable, "-m", "openrlhf_ebpo.cli.train_ppo_ray", *words, *more]


def start(words: list[str], log: Path) -> subprocess.Popen:
    log.parent.mkdir(parents=True, exist_ok=True)  # not in the run directory, which must be empty
    environment = {**os.environ, "RAY_ADDRESS": "local", "OMP_NUM_THREADS": "1"}
    with open(log, "w") as output:
        return subprocess.Popen(words, env=environment, stdout=output, stderr=subprocess.STDOUT)
