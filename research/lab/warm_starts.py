"""Policies that already solve a chosen share of the tasks: supervised training on examples, one policy a seed,
cached."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from lab import policy, tasks
from openrlhf_ebpo.files import replace_file

STARTS = (0.01, 0.05, 0.1, 0.3, 0.6)
BATCH, LR, WARMUP, MAX_STEPS = 32, 2e-3, 20, 4000
CHECKED_EVERY = 2
VALIDATION = 256  # training words: held-out words choose nothing


def warm_start(
    directory: Path, shape: policy.Shape, task: str, examples: str, start: float, seeds: list[int]
) -> Tensor:
    """Weights (S, weights), from the cache where they are there.

    Raises:
        RuntimeError: the examples never teach so much.
    """
    several = examples == "right" and not tasks.TASKS[task].scratchpad  # cells of these tasks begin at several starts
    wanted = sorted({*STARTS, start}) if several else [start]
    found = [directory / f"{task}-{examples}-{shape.width}x{shape.layers}-seed{seed}.pt" for seed in seeds]
    missing = [s for s, file in zip(seeds, found, strict=True) if not file.exists() or start not in torch.load(file)]
    if missing:
        for seed, crossings in zip(missing, supervised(shape, task, examples, wanted, missing), strict=True):
            with replace_file(found[seeds.index(seed)]) as temporary:
                torch.save(crossings, temporary)
    return torch.stack([torch.load(file)[start] for file in found])


def supervised(shape, task: str, examples: str, starts: list[float], seeds: list[int]) -> list[dict[float, Tensor]]:
    """The weights of each seed when its success first reached each of `starts`."""
    draws = [random.Random(f"warm start {seed}") for seed in seeds]
    weights = policy.initial(shape, seeds).requires_grad_()
    adam = torch.optim.AdamW([weights], lr=LR, betas=(0.9, 0.95), weight_decay=0.0)
    validation = [tensor.expand(len(seeds), *tensor.shape) for tensor in validation_set(task)]
    reached: list[dict[float, Tensor]] = [{} for _ in seeds]
    for step in range(MAX_STEPS):
        adam.param_groups[0]["lr"] = LR * min(1.0, (step + 1) / WARMUP)
        shown = [[tasks.EXAMPLES[examples](draw, task) for _ in range(BATCH)] for draw in draws]
        prompts = torch.stack([tasks.prompts([word for word, _ in rows]) for rows in shown])
        answers = torch.stack([tasks.answers([answer for _, answer in rows], shape.response) for rows in shown])
        log_probs, _ = policy.log_probs(shape, weights, prompts, answers[:, :, None])
        mask = (answers != tasks.PAD)[:, :, None]
        adam.zero_grad()
        (-(log_probs * mask).sum((1, 2, 3)) / mask.sum((1, 2, 3))).sum().backward()
        adam.step()
        if step % CHECKED_EVERY or step < tasks.AT_LEAST[examples]:
            continue
        for row, success in enumerate(policy.graded(shape, weights, *validation)[0].mean(-1).tolist()):
            for start in starts:
                if success >= start and start not in reached[row]:
                    reached[row][start] = weights[row].detach().clone()
        if all(len(each) == len(starts) for each in reached):
            return reached
    raise RuntimeError(
        f"{MAX_STEPS} steps on {examples} examples of {task!r} never taught {max(starts):.0%} to every seed"
    )


def validation_set(task: str) -> tuple[Tensor, Tensor, Tensor]:
    """Prompts (M, P) and right responses (M, T) of training words, and which positions (M, T) of these decide: after a
    scratchpad, the answer. A right response that is longer than T is drawn again."""
    words, kind, draw = tasks.words()[1][:VALIDATION], tasks.TASKS[task], random.Random("validation")
    shown = [next(fitting(kind, draw, word)) for word in words]
    answers = tasks.answers(shown, kind.response)
    ends = torch.tensor([[len(text)] for text in shown])
    decide = torch.tensor([[len(kind.answer(word))] for word in words])
    positions = torch.arange(kind.response)
    return tasks.prompts(words), answers, (positions <= ends) & (positions >= ends - decide)


def fitting(kind: tasks.Task, draw: random.Random, word: str) -> Iterator[str]:
    while True:
        if len(text := kind.example(draw, word)) < kind.response:
            yield text
