"""A training with TRL's GRPOTrainer, or with EBPOTrainer in its place, and the success of its model on held-out tasks.

It needs torch, transformers, accelerate, trl and datasets alone: generation is transformers' own.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from datasets import Dataset
from tqdm import tqdm
from transformers import AutoModelForCausalLM, AutoTokenizer, ProgressCallback, set_seed
from trl import GRPOConfig, GRPOTrainer

from lab.cells import parsed
from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.files import read_json_lines
from openrlhf_ebpo.integrations.trl import EBPOTrainer

PLAIN = "group_norm"  # the arm that is TRL's own GRPOTrainer
Reward = Callable[[list[str], list[str], list[str]], dict]  # OpenRLHF's reward_func(queries, prompts, labels)


@dataclass(frozen=True)
class Sizes:
    """steps: optimizer steps of a training. prompts, group: of a step, and responses to each. tokens: of a response, at
    most. micro_batch: responses in a forward pass."""

    steps: int
    prompts: int
    group: int
    tokens: int
    micro_batch: int
    lr: float


def device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def read_tasks(path: Path) -> list[dict]:
    """Read prompts and labels, a JSON object with both on each line.

    Raises:
        UsageError: a line lacks one.
    """
    rows = read_json_lines(path)
    for number, row in enumerate(rows, 1):
        if not {"prompt", "label"} <= row.keys():
            raise UsageError(f"--tasks {path}, line {number}: it has {sorted(row)}; prompt and label are needed")
    return [{"prompt": row["prompt"], "label": str(row["label"])} for row in rows]


def load_reward(path: Path) -> Reward:
    """Load a reward file as OpenRLHF's `--reward.remote_url FILE` does.

    Raises:
        UsageError: it has no reward_func.
    """
    spec = importlib.util.spec_from_file_location("trl_compare_reward", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if not hasattr(module, "reward_func"):
        raise UsageError(f"--reward {path}: it defines no reward_func(queries, prompts, labels)")
    return module.reward_func


def rewards_of(reward: Reward, prompts: list[str], completions: list[str], labels: list[str]) -> list[float]:
    queries = [prompt + completion for prompt, completion in zip(prompts, completions, strict=True)]
    found = reward(queries, prompts, labels)
    return torch.as_tensor(found["rewards"] if isinstance(found, dict) else found).double().tolist()


def load_model(path: Path):
    """Return model and tokenizer. Weights are float32, so that small steps of the optimizer are not rounded away; on a
    GPU TRL computes in bf16."""
    tokenizer = AutoTokenizer.from_pretrained(path, padding_side="left")
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32), tokenizer


class Bar(ProgressCallback):
    """The progress bar without the lines of each step's metrics."""

    def on_log(self, *args, **kwargs):
        pass


class Timed:
    """A function that adds up the seconds of its calls."""

    def __init__(self, function):
        self.function, self.seconds = function, 0.0

    def __call__(self, *args, **kwargs):
        started = time.perf_counter()
        try:
            return self.function(*args, **kwargs)
        finally:
            self.seconds += time.perf_counter() - started


def build_trainer(estimator: str, model, tokenizer, rows: list[dict], reward: Reward, sizes: Sizes, **settings):
    """Return TRL's trainer for an estimator, and the list to which it adds the prompts of each step.

    Args:
        estimator: of the registry; ebpo.PRESET; PLAIN is GRPOTrainer itself.
        settings: of GRPOConfig.
    """
    seen: list[list[str]] = []

    def reward_of(prompts, completions, label, **_) -> list[float]:
        seen.append(prompts)
        return rewards_of(reward, prompts, completions, label)

    config = GRPOConfig(
        num_generations=sizes.group,
        per_device_train_batch_size=sizes.micro_batch,
        gradient_accumulation_steps=sizes.prompts * sizes.group // sizes.micro_batch,
        max_steps=sizes.steps,
        max_completion_length=sizes.tokens,
        learning_rate=sizes.lr,
        **{"lr_scheduler_type": "constant", "beta": 0.0, "temperature": 1.0, "logging_steps": 1, "report_to": "none"},
        **{"bf16": device() == "cuda", "use_cpu": device() == "cpu", "disable_tqdm": False, **settings},
    )
    arguments = (model, reward_of, config, Dataset.from_list(rows), None, tokenizer)
    if estimator == PLAIN:
        trainer = GRPOTrainer(*arguments)
    else:
        name, parts = parsed(estimator)
        trainer = EBPOTrainer(*arguments, estimator=name, estimator_settings=parts)
    trainer.remove_callback(ProgressCallback)
    trainer.add_callback(Bar())
    return trainer, seen


def train(
    estimator: str,
    folder: Path,
    work: Path,
    tasks: list[dict],
    heldout: list[dict],
    reward: Reward,
    sizes: Sizes,
    seed: int,
) -> dict:
    """Train a copy of the model in `folder`, and return its record: success, and the means of what TRL logs by step."""
    set_seed(seed)
    model, tokenizer = load_model(folder)
    output = work / "trainings" / f"{estimator.replace(':', '.')}-{seed}"
    trainer, seen = build_trainer(
        estimator, model, tokenizer, tasks, reward, sizes, output_dir=str(output), seed=seed, save_strategy="no"
    )
    if estimator != PLAIN:
        trainer.running.step = Timed(trainer.running.step)
    trainer.train()
    rows = [row for row in trainer.state.log_history if "reward" in row]
    seconds = [row["step_time"] for row in rows]
    own = trainer.running.step.seconds if estimator != PLAIN else 0.0
    return {
        **{name: [row[key] for row in rows] for name, key in LOGGED.items() if key in rows[0]},
        "own_share": own / sum(seconds),
        "prompts": hashlib.sha256(json.dumps(seen).encode()).hexdigest()[:16],
        **evaluate(trainer.accelerator.unwrap_model(trainer.model), tokenizer, heldout, reward, sizes),
    }


LOGGED = {"rewards": "reward", "entropy": "entropy", "length": "completions/mean_length", "seconds": "step_time"}
SAMPLES = 8  # of a held-out task


@torch.no_grad()
def evaluate(model, tokenizer, rows: list[dict], reward: Reward, sizes: Sizes) -> dict:
    """Measure success: `end` at temperature 1, `pass` (pass@k) and `greedy`."""
    model.eval()
    torch.manual_seed(0)
    sampled = generated(model, tokenizer, rows, reward, sizes, do_sample=True, num_return_sequences=SAMPLES)
    greedy = generated(model, tokenizer, rows, reward, sizes, do_sample=False)
    failing = 1 - sampled.view(len(rows), SAMPLES)
    return {
        "end": float(sampled.mean()),
        "pass": {str(SAMPLES): float((1 - failing.prod(1)).mean())},
        "greedy": float(greedy.mean()),
    }


def generated(model, tokenizer, rows: list[dict], reward: Reward, sizes: Sizes, **how) -> torch.Tensor:
    """Return the rewards (len(rows) · responses,) of generated responses, as 0 or 1."""
    copies = how.get("num_return_sequences", 1)
    at_once = max(1, sizes.micro_batch * 4 // copies)
    found: list[float] = []
    for i in tqdm(range(0, len(rows), at_once), desc="held-out tasks", leave=False, mininterval=5):
        some = rows[i : i + at_once]
        prompts = [row["prompt"] for row in some for _ in range(copies)]
        labels = [row["label"] for row in some for _ in range(copies)]
        inputs = tokenizer([row["prompt"] for row in some], return_tensors="pt", padding=True, add_special_tokens=False)
        inputs = inputs.to(model.device)
        sampling = {"temperature": 1.0, "top_k": 0, "top_p": 1.0} if how["do_sample"] else {}
        with torch.autocast(model.device.type, torch.bfloat16, enabled=model.device.type == "cuda"):
            tokens = model.generate(
                input_ids=inputs.input_ids,
                attention_mask=inputs.attention_mask,
                max_new_tokens=sizes.tokens,
                pad_token_id=tokenizer.pad_token_id,
                **sampling,
                **how,
            )
        texts = tokenizer.batch_decode(tokens[:, inputs.input_ids.shape[1] :], skip_special_tokens=True)
        found += rewards_of(reward, prompts, texts, labels)
    return (torch.tensor(found, dtype=torch.float64) > 0.5).double()
