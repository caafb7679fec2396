"""A training that is worth killing: a model of a few thousand weights, a handful of prompts, and steps that take a second.

Both rewards are the same; `pooled.py` has its workers grade beside it, so that there are some to kill.
"""

import json
import sys
from pathlib import Path

REWARD = """
import torch
def reward_func(queries, prompts, labels, **kwargs):
    # about a third pass, and some prompts fail every time: the first letters decide
    rewards = [float(sum(map(ord, q[len(p):])) % 3 == 0 and ord(p[0]) % 4 > 0) for q, p in zip(queries, prompts)]
    return {"rewards": torch.tensor(rewards), "scores": torch.tensor(rewards)}
"""
POOLED = """
from openrlhf_ebpo.rewards import math
letters = reward_func
def reward_func(queries, prompts, labels, **kwargs):
    math.reward_func([query + r" \\boxed{1}" for query in queries], prompts, ["1"] * len(labels))
    return letters(queries, prompts, labels)
"""
ROWS, BATCH, GROUP = 24, 4, 2  # prompts, prompts a step, responses a prompt
STEPS = ROWS // BATCH  # an episode
RANKS = {"sync": 1, "async": 1, "ranks": 2}


def build(folder: Path) -> None:
    """Model, prompts and rewards, once."""
    from openrlhf_ebpo.quickstart import tiny_model

    if (folder / "pooled.py").is_file():
        return
    prompts = [f"{a}{b}{c}\n" for a in "abcd" for b in "pq" for c in "xyz"]
    tiny_model.build(folder / "base", prompts, hidden_size=32, intermediate_size=64)
    rows = [{"prompt": prompt, "label": prompt[0]} for prompt in prompts]
    (folder / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "reward.py").write_text(REWARD)
    (folder / "pooled.py").write_text(REWARD + POOLED)


def flags(
    folder: Path, output: Path, mode: str, episodes: int, *, pooled: bool = False, repo: str | None = None
) -> list[str]:
    settings = {
        "actor.model_name_or_path": folder / "base",
        "data.prompt_dataset": folder / "prompts.jsonl",
        "data.input_key": "prompt",
        "data.label_key": "label",
        "data.max_len": 24,
        "reward.remote_url": folder / ("pooled.py" if pooled else "reward.py"),
        "advantage_estimator": "ebpo",
        "rollout.n_samples_per_prompt": GROUP,
        "rollout.batch_size": BATCH,
        "rollout.micro_batch_size": BATCH * GROUP // RANKS[mode],
        "rollout.max_new_tokens": 4,
        "train.batch_size": BATCH * GROUP,
        "train.micro_batch_size": BATCH * GROUP // RANKS[mode],
        "train.num_episodes": episodes,
        "actor.adam.lr": 1e-3,
        "actor.num_gpus_per_node": RANKS[mode],
        "vllm.num_engines": 1,
        "algo.kl.init_coef": 0,
        "ds.zero_stage": 2 if mode == "ranks" else 0,
        "ckpt.path": output / "ckpt",
        "ckpt.output_dir": output / "model",
        "ckpt.save_steps": 1,
        "ckpt.max_num": 3,
        "ckpt.load_enable": True,
        "logger.no_policy_metrics": True,
    }
    if mode == "async":
        settings |= {"train.async_enable": True, "train.async_queue_size": 2, "rollout.vllm_generate_batch_size": 10}
    if repo:
        settings |= {"ckpt.save_hf": True, "hub.repo": repo}
    return [
        word
        for name, value in settings.items()
        for word in ([f"--{name}"] if value is True else [f"--{name}", str(value)])
    ]


def start_hub():
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from hub_server import HubServer

    return HubServer().start()
