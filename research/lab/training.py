"""Trainings by the real command: a model with random weights, its prompts and reward, the flags, and where it runs."""

from __future__ import annotations

import json
import os
import random
import string
import sys
from pathlib import Path

from openrlhf_ebpo.quickstart import tiny_model
from openrlhf_ebpo.upstream.stack import is_cpu_stack

PROMPTS, SAMPLES = 8, 4  # of a step
# about a third pass, and some prompts fail every time: the letters decide
REWARD = """
import torch
def reward_func(queries, prompts, labels):
    rewards = [float(sum(map(ord, q[len(p):])) % 3 == 0 and ord(p[0]) % 4 > 0) for q, p in zip(queries, prompts)]
    return {"rewards": torch.tensor(rewards), "scores": torch.tensor(rewards)}
"""
WORDS = 151_936  # of Qwen3's vocabulary
LARGE = {  # Qwen3-0.6B with 22 layers: 0.5 billion weights
    "num_hidden_layers": 22,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 1024,
    "initializer_range": 0.02,
}
LARGE_PROMPT = 64  # characters, which are tokens


def prepare(directory: Path, steps: int, prompts_per_step: int = PROMPTS, large: bool = False) -> None:
    """Write a model (tiny, or LARGE), prompts for so many steps, and a reward."""
    if large:
        words, choose = vocabulary(WORDS - 3), random.Random(0)  # less three special tokens
        prompts = ["".join(choose.choices(words, k=LARGE_PROMPT)) for _ in range(steps * prompts_per_step)]
        texts, sizes = words, LARGE
    else:
        texts = prompts = [f"{a}{b}{c}\n" for a in string.ascii_lowercase for b in "pqrs" for c in "xyz"]
        sizes = {"hidden_size": 32, "intermediate_size": 64}
    if not (directory / "model" / "tokenizer.json").exists():
        tiny_model.build(directory / "model", texts, **sizes)
    rows = (json.dumps({"prompt": prompts[i % len(prompts)]}) + "\n" for i in range(steps * prompts_per_step))
    (directory / "prompts.jsonl").write_text("".join(rows))
    (directory / "reward.py").write_text(REWARD)


def vocabulary(count: int) -> str:
    """So many different characters, without those that no text may hold."""
    return "".join(chr(i) for i in range(0x20, 0x20 + count + 0x800) if not 0xD800 <= i < 0xE000)[:count]


def flags(directory: Path, output: Path, estimator: str) -> dict:
    """Of a training with what `prepare` has written; `|` changes them."""
    return {
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


def placement(engine_share: float) -> dict:
    """Flags that put policy and engine on one GPU, or on this machine's processor.

    Args:
        engine_share: of the GPU's memory, for vLLM.
    """
    found: dict = {"actor.num_gpus_per_node": 1, "ref.num_gpus_per_node": 1, "vllm.num_engines": 1}
    if is_cpu_stack():
        return {**found, "ds.zero_stage": 0}
    shared = {"train.colocate_all": True, "vllm.gpu_memory_utilization": engine_share, "ds.zero_stage": 2}
    return found | shared


def command(flags: dict) -> list[str]:
    """The command line; a flag that is None is left out, one that is True stands alone."""
    words = [sys.executable, "-m", "openrlhf_ebpo.cli.train_ppo_ray"]
    for flag, value in flags.items():
        if value is not None:
            words += [f"--{flag}"] if value is True else [f"--{flag}", str(value)]
    return words


def machine() -> str:
    """In words, for a report."""
    import torch

    return f"{torch.cuda.get_device_name() if torch.cuda.is_available() else 'no GPU'}, {os.cpu_count()} cores"
