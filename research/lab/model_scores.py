"""The squared norms of a language model's scores, ‖∇ log π(y)‖² over all weights, one response at a time; and their
κ."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np

from lab.jobs import rounded
from lab.measured import Job, Record

BOOTSTRAPS = 2000


@dataclass(frozen=True)
class ModelScores(Job):
    """The responses to one task, whose number is the seed: did they pass, ‖s‖², Σ (1 − π)² over tokens, and their
    tokens.

    model: a folder. task: of learning_smollm2.py's TASKS.
    """

    at_once: ClassVar[int] = 1
    model: str
    task: str
    group: int = 8

    @property
    def title(self) -> str:
        return f"{self.task}, {self.group} responses"

    def one(self, seed: int, work: Path) -> Record:
        import torch

        from learning_smollm2 import TASKS
        from openrlhf_ebpo.quickstart.tasks import example

        task = TASKS[self.task]
        policy, tokenizer = load(self.model)
        entry, label = next(example("make").tasks(task.kind, {"size": 1, "seed": seed, **task.settings}))
        asked = task.template.format(question=entry["question"])
        prompt = tokenizer(asked, return_tensors="pt")["input_ids"]
        torch.manual_seed(seed)
        limits = {"max_new_tokens": task.tokens, "num_return_sequences": self.group}
        sampled = policy.generate(prompt, do_sample=True, temperature=1.0, top_p=1.0, top_k=0, **limits)
        found = []
        for tokens in sampled[:, prompt.shape[1] :]:
            response = tokens[: ended(tokens.tolist(), tokenizer.eos_token_id)]
            text = tokenizer.decode(response, skip_special_tokens=True)
            passed = example("reward").reward_func([asked + text], [asked], [label])["rewards"]
            found.append((passed, *score(policy, prompt[0], response), len(response)))
        names = ("passed", "norms", "proxy", "tokens")
        return {
            name: [rounded(value) for value in values]
            for name, values in zip(names, zip(*found, strict=True), strict=True)
        }


@functools.cache
def load(model: str):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, logging

    logging.disable_progress_bar()
    return AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32), AutoTokenizer.from_pretrained(model)


def ended(tokens: list[int], end: int) -> int:
    """Count the tokens of the response, its end among them."""
    return tokens.index(end) + 1 if end in tokens else len(tokens)


def score(policy, prompt, response) -> tuple[float, float]:
    """‖s‖² and Σ (1 − π)² of a response."""
    import torch

    policy.zero_grad()
    logits = policy(torch.cat([prompt, response])[None]).logits[0, len(prompt) - 1 : -1]
    log_probs = logits.log_softmax(-1).gather(-1, response[:, None])[:, 0]
    log_probs.sum().backward()
    norm = sum(float(weight.grad.double().square().sum()) for weight in policy.parameters() if weight.grad is not None)
    return norm, float((1 - log_probs.detach().double().exp()).square().sum())


class Kappa(NamedTuple):
    """The ratio, and the ends of its 95 % interval: bootstrap over tasks."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.2f} ({self.low:.2f} to {self.high:.2f})"


def pooled(passed: np.ndarray, sizes: np.ndarray) -> float:
    """Of (tasks, G) responses: mean size of those that fail over that of those that pass."""
    return float(sizes[passed == 0].mean() / sizes[passed == 1].mean())


def within(passed: np.ndarray, sizes: np.ndarray) -> float:
    """The same among responses to the same tasks, those that have both; each task counts once."""
    passed = passed.astype(bool)
    both = passed.any(1) & ~passed.all(1)
    pairs = [(row[~right].mean(), row[right].mean()) for row, right in zip(sizes[both], passed[both], strict=True)]
    return float(np.divide(*np.sum(pairs, 0))) if pairs else float("nan")


def with_interval(ratio: Callable, passed: np.ndarray, sizes: np.ndarray) -> Kappa:
    """`ratio` of all tasks, and of tasks drawn again and again; NaN without both passes and failures."""
    rng, count, drawn = np.random.default_rng(0), len(passed), []
    for _ in range(BOOTSTRAPS):
        chosen = rng.integers(count, size=count)
        if 0 < passed[chosen].mean() < 1:
            drawn.append(ratio(passed[chosen], sizes[chosen]))
    value = ratio(passed, sizes) if 0 < passed.mean() < 1 else float("nan")
    return Kappa(value, *map(float, np.nanpercentile(drawn, [2.5, 97.5]) if drawn else (np.nan, np.nan)))


def rows(records: Sequence[Record]) -> list[list[str]]:
    """κ of the true scores and of the proxy, pooled and within tasks."""
    passed, norms, proxy = (np.array([record[name] for record in records]) for name in ("passed", "norms", "proxy"))
    return [
        [name, str(with_interval(pooled, passed, sizes)), str(with_interval(within, passed, sizes))]
        for name, sizes in (("‖s‖²", norms), ("Σ(1−π)²", proxy))
    ]
