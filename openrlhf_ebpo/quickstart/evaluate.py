"""Held-out success of a model, and what an all-fail group does to its gradient."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import NormalDist

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from openrlhf_ebpo.files import replacing, write_json
from openrlhf_ebpo.quickstart.tasks import DATASET, TEMPLATE
from openrlhf_ebpo.rewards import gym

N_SAMPLES = 8
MAX_NEW_TOKENS = 14
SEED = 7


def load(model: str | Path):
    from transformers import AutoModelForCausalLM, AutoTokenizer, logging

    logging.disable_progress_bar()
    tokenizer = AutoTokenizer.from_pretrained(model, padding_side="left")
    policy = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    return policy.to("cuda" if torch.cuda.is_available() else "cpu"), tokenizer


@torch.no_grad()
def sample(model: str | Path, prompts: list[str]) -> list[list[str]]:
    """N_SAMPLES responses a prompt at temperature 1, top-p 1."""
    policy, tokenizer = load(model)
    inputs = tokenizer([TEMPLATE.format(p) for p in prompts], return_tensors="pt", padding=True).to(policy.device)
    torch.manual_seed(SEED)
    outputs = policy.generate(
        **inputs,
        do_sample=True,
        temperature=1.0,
        top_p=1.0,
        top_k=0,
        num_return_sequences=N_SAMPLES,
        max_new_tokens=MAX_NEW_TOKENS,
    )
    texts = tokenizer.batch_decode(outputs[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    return [texts[i : i + N_SAMPLES] for i in range(0, len(texts), N_SAMPLES)]


def graded(tasks: list[dict], responses: list[list[str]]) -> list[list[bool]]:
    return [
        [gym.score(task["entry"], gym.answer_of(response)) >= 1.0 for response in group]
        for task, group in zip(tasks, responses, strict=True)
    ]


def success_rate(model: str | Path, tasks: list[dict]) -> float:
    return float(np.mean(graded(tasks, sample(model, [task["prompt"] for task in tasks]))))


def evaluate(model: str | Path, tasks: list[dict], directory: Path) -> dict:
    """Success rate on `tasks`; writes summary.json and samples.parquet to `directory` and returns the summary."""
    responses = sample(model, [task["prompt"] for task in tasks])
    correct = graded(tasks, responses)
    rows = [
        {"question": t["prompt"], "gold": t["label"], "response": r, "correct": c, "sample": i}
        for t, group, marks in zip(tasks, responses, correct, strict=True)
        for i, (r, c) in enumerate(zip(group, marks, strict=True))
    ]
    directory.mkdir(parents=True, exist_ok=True)
    with replacing(directory / "samples.parquet") as temporary:
        pq.write_table(pa.Table.from_pylist(rows), temporary, compression="zstd")
    summary = {
        "model": str(model),
        "task": DATASET,
        "questions": len(tasks),
        "samples_per_question": N_SAMPLES,
        "temperature": 1.0,
        "pass@1": float(np.mean(correct)),
        "per_question": np.mean(correct, axis=1).tolist(),
    }
    write_json(directory / "summary.json", summary)
    return summary


def paired_difference(before: dict, after: dict, level: float = 0.95) -> tuple[float, float, float]:
    """Mean difference of two evaluations on the same questions, and its interval over questions."""
    difference = np.subtract(after["per_question"], before["per_question"])
    margin = NormalDist().inv_cdf(0.5 + level / 2) * difference.std(ddof=1) / len(difference) ** 0.5
    return float(difference.mean()), float(difference.mean() - margin), float(difference.mean() + margin)


def all_fail_fraction(rollouts: pa.Table) -> float:
    """Share of the groups in which every response has reward 0."""
    best = rollouts.group_by("group").aggregate([("reward", "max")])["reward_max"].to_numpy()
    return float((best == 0).mean())


def all_fail_gradient(model: str | Path, rollouts: pa.Table, column: str) -> float | None:
    """Norm of the policy gradient that one all-fail group of a mixed batch causes, with the advantages in `column`
    ("advantage": EBPO's, "grpo_advantage": GRPO's). None where the batch has no such group."""
    rows = rollouts.to_pylist()
    groups: dict[int, list[dict]] = {}
    for row in rows:
        groups.setdefault(row["group"], []).append(row)
    failed = [group for group in groups.values() if all(row["reward"] == 0 for row in group)]
    if not failed or len(failed) == len(groups):
        return None
    policy, tokenizer = load(model)
    loss = torch.zeros((), device=policy.device)
    for row in failed[0]:
        prompt = tokenizer(row["prompt"], return_tensors="pt")["input_ids"]
        tokens = tokenizer(row["prompt"] + row["response"], return_tensors="pt")["input_ids"].to(policy.device)
        log_p = policy(tokens).logits[:, :-1].log_softmax(-1).gather(-1, tokens[:, 1:, None])
        loss = loss - row[column] * log_p[:, prompt.shape[1] - 1 :].sum()
    loss.backward()
    return torch.stack([p.grad.norm() for p in policy.parameters() if p.grad is not None]).norm().item()


def read_tasks(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]
