"""A small run directory and small evaluation results, written by the project's own writers."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from estimates import ebpo_step

from openrlhf_ebpo.estimator.config import EstimatorConfig
from openrlhf_ebpo.estimator.ebpo import EBPO
from openrlhf_ebpo.estimator.prior import Prior
from openrlhf_ebpo.estimator.stored import pack
from openrlhf_ebpo.eval import metrics
from openrlhf_ebpo.run import results
from openrlhf_ebpo.run.run_log import close_run
from openrlhf_ebpo.run.run_settings import RunSettings
from openrlhf_ebpo.run.run_start import open_run
from openrlhf_ebpo.run.run_writer import RunWriter
from openrlhf_ebpo.upstream.controller.rollouts import Rollouts

G = 2
PROTOCOL = {"name": "default", "fingerprint": "f00d", "version": 1, "n": 4, "temperature": 1.0}
GREEDY = {"name": "greedy", "fingerprint": "beef", "version": 1, "n": 1, "temperature": 0.0}
GOOD = [[0, 0, 0, 1], [0, 0, 0, 0], [1, 1, 0, -1]]  # pass@1 8/12
POOR = [[1, 1, 0, 2], [0, 1, 1, 1], [-1, -1, -1, -1]]  # pass@1 2/12


class Tokenizer:
    def batch_decode(self, rows, skip_special_tokens):
        return [" ".join(map(str, row)) for row in rows]


def arguments(folder: Path, **data) -> dict:
    """Resolved arguments, those that cards and readers look at."""
    return {
        "actor": {"model_name_or_path": str(folder / "base"), "adam": {"lr": 1e-6}, "policy_loss_type": "ppo"},
        "data": {
            "prompt_dataset": str(folder / "train.jsonl"),
            "input_key": "prompt",
            "input_template": "{}\n",
            "apply_chat_template": False,
            **data,
        },
        "rollout": {"n_samples_per_prompt": G, "batch_size": 2, "max_new_tokens": 8, "temperature": 1.0, "top_p": 1.0},
        "train": {"seed": 7, "batch_size": 4},
        "ckpt": {"path": str(folder / "ckpt"), "output_dir": str(folder / "model")},
        "algo": {
            "advantage": {"estimator": "ebpo", "ebpo": {"preset": "paper", "fail_reward": 0.0}},
            "kl": {"init_coef": 0.0},
        },
        "ds": {"lora": {"rank": 0}},
        "logger": {"run_dir": str(folder / "run"), "wandb": {"key": "<redacted>", "run_name": "tiny"}},
    }


def write_run(
    folder: Path,
    steps: int = 3,
    prompts: tuple[str, str] = ("1 + 1?", "2 + 2?"),
    error: str = "",
    args: dict | None = None,
    name: str = "tiny",
) -> Path:
    """<folder>/run: `steps` steps of two prompts with two responses each, a checkpoint at the last step."""
    run_dir = folder / "run"
    args = args or arguments(folder)
    argv = ["--actor.model_name_or_path", args["actor"]["model_name_or_path"], "--logger.wandb.key", "<redacted>"]
    open_run(RunSettings(run_dir, folder / "ckpt", name=name), argv=argv, args=args)
    write_steps(run_dir, range(1, steps + 1), prompts, error)
    RunWriter(run_dir, Tokenizer()).write_checkpoint(
        steps, tag=f"global_step{steps}", checkpoint=str(folder / "ckpt/_actor/g"), model=None
    )
    close_run(run_dir, "complete")
    return run_dir


def write_steps(run_dir: Path, steps, prompts: tuple[str, str] = ("1 + 1?", "2 + 2?"), error: str = "") -> None:
    log, prior, config = RunWriter(run_dir, Tokenizer()), Prior(), EstimatorConfig(n_samples_per_prompt=G)
    for step in steps:
        rollouts = Rollouts.before_shaping([experience(prompts)], ["", "", "", error], [None] * 4)
        rewards = rollouts.raw_rewards.reshape(2, G)
        result = ebpo_step(rewards, rewards.isfinite(), prior, config)
        prior = result.state
        log.write_rollouts(step, rollouts.with_result(result))
        log.write_prior(pack(EBPO(config), prior))
        own = {"rollout/reward_mean": step / 10, "policy/entropy": 1 / step, "correct_format": 1.0}
        log.write_metrics(step, {**own, **result.metrics})
    log.flush()


def experience(prompts: tuple[str, str]) -> SimpleNamespace:
    """Two groups: one half solved, one all-fail with an unusable reward."""
    return SimpleNamespace(
        index=[0, 1, 2, 3],
        sequences=torch.tensor([[1, 10, 11], [1, 12, 13], [2, 14, 15], [2, 16, 17]]),
        attention_mask=torch.ones(4, 3, dtype=torch.long),
        action_mask=torch.ones(4, 2, dtype=torch.long),
        action_log_probs=torch.tensor([[-0.1, -2.0]] * 4),
        rewards=torch.tensor([1.0, 0.0, 0.0, float("nan")]),
        truncated=torch.tensor([False] * 4),
        response_length=torch.tensor([2] * 4),
        prompts=[prompts[0]] * G + [prompts[1]] * G,
        labels=["2", "2", "4", "4"],
    )


def save_result(
    root: Path, task: str, /, classes: list[list[int]], step: int = 0, protocol: dict = PROTOCOL, **summary
) -> Path:
    """A result below `root` (a run's eval/) in which class 0 is the right answer."""
    found = np.array(classes)[:, : protocol["n"]]
    rows = [
        {
            "question_id": f"{task}-{q}",
            "question": "1 + 1?",
            "gold": "2",
            "response": "two",
            "extracted": None if answer < 0 else str(answer),
            "correct": bool(answer == 0),
            "error": None,
            "length": 10,
            "finish_reason": "length" if answer < 0 else "stop",
            "seed": 1,
            "sample": i,
            "class": int(answer),
            "rules": "{}",
        }
        for q, group in enumerate(found)
        for i, answer in enumerate(group)
    ]
    directory = results.step_directory(root, protocol["name"], task, step)
    whole = {
        "model": f"/data/somebody/ckpt/global_step{step}_hf",
        "step": step,
        "task": {"name": task, "source": f"math-ai/{task}@abc", "questions": len(found), "fingerprint": f"of {task}"},
        "protocol": protocol,
        "metrics": metrics.summarise(found == 0, found, np.ones(found.shape), found < 0),
        "settings": {"model": f"global_step{step}_hf@123"},
    }
    results.save_result(directory, {**whole, **summary}, rows)
    return directory
