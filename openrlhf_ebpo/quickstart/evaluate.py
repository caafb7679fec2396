"""Measure a model's held-out success."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from openrlhf_ebpo.eval.metrics import summarise
from openrlhf_ebpo.progress import fingerprint, model_identity
from openrlhf_ebpo.quickstart.tasks import DATASET, TEMPLATE, example
from openrlhf_ebpo.run.results import sample_rows, save_result, step_directory
from openrlhf_ebpo.run.run_log import versions
from openrlhf_ebpo.run.votes import classes as classes_of

N_SAMPLES = 8
MAX_NEW_TOKENS = 14
SEED = 7
PROTOCOL = "quickstart"
SETTINGS = {
    "version": 1,
    "n": N_SAMPLES,
    "temperature": 1.0,
    "top_p": 1.0,
    "max_tokens": MAX_NEW_TOKENS,
    "template": TEMPLATE,
    "scorer": "reasoning-gym",
    "seed": SEED,
}


def load(model: str | Path):
    from transformers import AutoModelForCausalLM, AutoTokenizer, logging

    logging.disable_progress_bar()
    tokenizer = AutoTokenizer.from_pretrained(model, padding_side="left")
    policy = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    return policy.to("cuda" if torch.cuda.is_available() else "cpu"), tokenizer


class Sample(NamedTuple):
    """A response; length: in tokens, the end token among them; truncated: it has none."""

    text: str
    length: int
    truncated: bool


@torch.no_grad()
def sample(model: str | Path, prompts: list[str], greedy: bool = False) -> list[list[Sample]]:
    """Sample N_SAMPLES responses per prompt at temperature 1, top-p 1; or decode one greedily."""
    count = 1 if greedy else N_SAMPLES
    sampling = {"do_sample": False} if greedy else {"do_sample": True, "temperature": 1.0, "top_p": 1.0, "top_k": 0}
    policy, tokenizer = load(model)
    inputs = tokenizer([TEMPLATE.format(p) for p in prompts], return_tensors="pt", padding=True).to(policy.device)
    torch.manual_seed(SEED)
    outputs = policy.generate(
        **inputs,
        **sampling,
        num_return_sequences=count,
        max_new_tokens=MAX_NEW_TOKENS,
    )
    responses = outputs[:, inputs["input_ids"].shape[1] :]
    ends = responses == tokenizer.eos_token_id
    ended = ends.any(-1)
    lengths = torch.where(ended, ends.int().argmax(-1) + 1, responses.shape[1])
    texts = tokenizer.batch_decode(responses, skip_special_tokens=True)
    found = [Sample(*each) for each in zip(texts, lengths.tolist(), (~ended).tolist(), strict=True)]
    return [found[i : i + count] for i in range(0, len(found), count)]


def grade_responses(tasks: list[dict], responses: list[list[Sample]]) -> list[list[bool]]:
    reward = example("reward").reward_func
    return [
        [reward([task["prompt"] + each.text], [task["prompt"]], [task["entry"]])["rewards"] >= 1.0 for each in group]
        for task, group in zip(tasks, responses, strict=True)
    ]


def success_rate(model: str | Path, tasks: list[dict], greedy: bool = False) -> float:
    return float(np.mean(grade_responses(tasks, sample(model, [task["prompt"] for task in tasks], greedy))))


def evaluate(model: str | Path, tasks: list[dict], run_dirs: Iterable[Path], step: int) -> np.ndarray:
    """Grade responses to `tasks`, (tasks, N_SAMPLES) bool; also saved in each of the runs as a result of the
    evaluation harness, so that cards and the Space show it."""
    responses = sample(model, [task["prompt"] for task in tasks])
    correct = np.array(grade_responses(tasks, responses))
    for run_dir in run_dirs:
        save(run_dir, str(model), step, tasks, responses, correct)
    return correct


def save(
    run_dir: Path, model: str, step: int, tasks: list[dict], responses: list[list[Sample]], correct: np.ndarray
) -> None:
    answers = [[each.text.strip() or None for each in group] for group in responses]
    classes = np.array([classes_of(*pair, str, lambda *_: False) for pair in zip(answers, correct, strict=True)])
    lengths, truncated = (np.array([[getattr(s, n) for s in g] for g in responses]) for n in ("length", "truncated"))
    summary = {
        "model": model,
        "step": step,
        "task": {
            "name": DATASET,
            "source": "reasoning-gym",
            "questions": len(tasks),
            "fingerprint": content_hash(tasks),
        },
        "protocol": {"name": PROTOCOL, "fingerprint": content_hash(SETTINGS), **SETTINGS},
        "metrics": summarise(correct, classes, lengths, truncated),
        "settings": {"model": model_identity(model)},
        "versions": versions(),
    }
    directory = step_directory(run_dir / "eval", PROTOCOL, DATASET, step)
    save_result(directory, summary, list(rows(tasks, responses, correct, classes)))


def content_hash(value) -> str:
    return fingerprint(json.dumps(value, sort_keys=True).encode())


def rows(tasks: list[dict], responses: list[list[Sample]], correct: np.ndarray, classes: np.ndarray) -> Iterator[dict]:
    """Yield one row per response, with the columns of the harness."""
    for q, (task, group) in enumerate(zip(tasks, responses, strict=True)):
        columns = {
            "response": [each.text for each in group],
            "extracted": [each.text.strip() or None for each in group],
            "correct": correct[q].tolist(),
            "length": [each.length for each in group],
            "finish_reason": ["length" if each.truncated else "stop" for each in group],
            "seed": [SEED] * len(group),
            "class": classes[q].tolist(),
        }
        yield from sample_rows(f"{DATASET}-{q}", task["prompt"], task["label"], "{}", columns)


def read_tasks(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]
