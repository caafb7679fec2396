"""The quickstart's task family for policy.py: real words to spell backward, or to sort, letter by letter."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable

import torch
from torch import Tensor

from lab.policy import END, FIRST_LETTER, PAD, Shape
from openrlhf_ebpo.quickstart import tasks
from openrlhf_ebpo.rewards import gym

MAX_LETTERS = 6  # of a word
PROMPT = 8  # two positions more than needed: with the response's 16 (Shape)
RESPONSE = MAX_LETTERS + 2  # its end token, and room for one token too many
HELDOUT = 512
DRAWN = 12_000  # tasks to take distinct words from

backward: Callable[[str], str] = lambda word: word[::-1]  # noqa: E731
ANSWERS: dict[str, Callable[[str], str]] = {"backward": backward, "sort": lambda word: "".join(sorted(word))}


@functools.cache
def words() -> tuple[list[str], list[str]]:
    """Held-out and training words of reasoning-gym's spell_backward, distinct, in small letters."""
    settings = {"seed": tasks.SEED, "size": DRAWN, "min_word_len": 3, "max_word_len": MAX_LETTERS}
    dataset = gym.create(tasks.DATASET, settings)
    found = dict.fromkeys(dataset[i]["answer"][::-1].lower() for i in range(DRAWN))
    plain = [word for word in found if word.isascii() and word.isalpha()]
    return plain[:HELDOUT], plain[HELDOUT:]


def shape(width: int = 32, layers: int = 1) -> Shape:
    return Shape(PROMPT, RESPONSE, width, layers=layers)


def prompts(chosen: list[str]) -> Tensor:
    """(M, P), padded on the left."""
    return torch.tensor([[PAD] * (PROMPT - len(word)) + letters(word) for word in chosen])


def answers(spelled: list[str]) -> Tensor:
    """(M, T), with the end token, padded on the right."""
    rows = [[*letters(word), END] for word in spelled]
    return torch.tensor([row + [PAD] * (RESPONSE - len(row)) for row in rows])


def letters(word: str) -> list[int]:
    return [FIRST_LETTER + ord(letter) - ord("a") for letter in word]


# What the warm start shows: a word and an answer, by a random generator


def right(draw: random.Random, task: str) -> tuple[str, str]:
    word = draw.choice(words()[1])
    return word, ANSWERS[task](word)


def mixed(draw: random.Random, task: str) -> tuple[str, str]:
    """The longest words in one of forty examples: the policy soon knows the others, and hardly these."""
    while True:
        word, answer = right(draw, task)
        if len(word) < MAX_LETTERS or draw.random() < 1 / 40:
            return word, answer


def confidently_wrong(draw: random.Random, task: str) -> tuple[str, str]:
    """An answer without its last letter, but in four of ten examples where that is one of a to d, and in one of a hundred
    elsewhere."""
    word, answer = right(draw, task)
    return word, answer if draw.random() < (0.4 if answer[-1] in "abcd" else 0.01) else answer[:-1]


EXAMPLES = {"right": right, "mixed": mixed, "confidently_wrong": confidently_wrong}
AT_LEAST = {"right": 0, "mixed": 0, "confidently_wrong": 600}  # steps, so that the policy is sure of what it says
