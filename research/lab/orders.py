"""The prompts of a training in an order: shuffled, topic after topic, easy to hard. Every seed has its own words.

A topic is what words have in common: their length, and the half of the alphabet that they begin with. So there are
eight; they differ in content and in how hard they are. Topics follow each other by chance, as the numbers of clusters
do.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import torch

from lab import learner, policy, tasks
from lab.cells import Cell

BATCHES = 18  # of a pass, if there are several


def batches(
    name: str, cell: Cell, seeds: list[int], weights: torch.Tensor, shape: policy.Shape, replicate: int = 0
) -> learner.Batches:
    """Each step's words of each seed, and the random numbers that responses are drawn with: these are the same in every
    order.

    Args:
        name: of ORDERS, or "drawn": new words at every step.
        weights: (S, weights), the policies at the start, which define what is easy.
    """
    if name == "drawn":
        yield from learner.draws(cell, seeds, replicate)
        return
    streams = [ORDERS[name](cell, seed, weights[row : row + 1], shape) for row, seed in enumerate(seeds)]
    uniforms = learner.random_numbers(cell, seeds, replicate)
    for _ in range(cell.steps):
        yield [[next(stream) for _ in range(cell.prompts)] for stream in streams], next(uniforms)


def shuffled_passes(cell: Cell, seed: int, weights: torch.Tensor, shape: policy.Shape) -> Iterator[str]:
    words, draw = pool(seed, BATCHES * cell.prompts), random.Random(f"passes {seed}")
    while True:
        yield from draw.sample(words, len(words))


def by_topic(cell: Cell, seed: int, weights: torch.Tensor, shape: policy.Shape) -> Iterator[str]:
    """The same order in every pass."""
    words = pool(seed, BATCHES * cell.prompts)
    topics = sorted({*map(topic, words)})
    random.Random(f"topics {seed}").shuffle(topics)
    while True:
        yield from sorted(words, key=lambda word: topics.index(topic(word)))


def shuffled_once(cell: Cell, seed: int, weights: torch.Tensor, shape: policy.Shape) -> Iterator[str]:
    yield from pool(seed, cell.steps * cell.prompts)


def easy_to_hard(cell: Cell, seed: int, weights: torch.Tensor, shape: policy.Shape) -> Iterator[str]:
    """One pass, in the order of the policy's own success at the start."""
    words = pool(seed, cell.steps * cell.prompts)
    rates = policy.success(shape, weights, *learner.examples(cell.task, [words]))[0].tolist()
    yield from (word for _, word in sorted(zip(rates, words, strict=True), key=lambda pair: -pair[0]))


def pool(seed: int, size: int) -> list[str]:
    return random.Random(f"pool {seed}").sample(tasks.words()[1], size)


def topic(word: str) -> tuple[int, bool]:
    return len(word), word[0] < "m"


ORDERS = {
    "shuffled passes": shuffled_passes,
    "by topic": by_topic,
    "shuffled once": shuffled_once,
    "easy to hard": easy_to_hard,
}
