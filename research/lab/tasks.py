"""The quickstart's task family for policy.py: real words to spell backward, or to sort, letter by letter."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from lab.policy import END, FIRST_LETTER, PAD, Shape
from openrlhf_ebpo.quickstart import tasks

MAX_LETTERS = 6  # of a word
PROMPT = 8  # two positions more than needed: with the response's a multiple of 16 (Shape)
HELDOUT = 512
DRAWN = 12_000  # tasks to take distinct words from

MARK = "z"  # between a scratchpad and the answer, in the examples of a warm start
FILLERS = "abcdefghijklmnopqrstuvwxy"  # of a scratchpad, the first ones more often


@dataclass(frozen=True)
class Task:
    """Define what a response to a word has to say.

    Attributes:
        answer: the letters that decide: all of a response or, after a scratchpad, its last ones.
        response: positions, with the end token; a longer response is cut, and fails.
        scratchpad: the fewest and the most letters in front of MARK and the answer in the examples of a warm start.
            They mean nothing, and a response may hold any.
    """

    answer: Callable[[str], str]
    response: int = MAX_LETTERS + 2  # the end token, and room for one token too many
    scratchpad: tuple[int, int] | None = None

    def example(self, draw: random.Random, word: str) -> str:
        """Return a right response."""
        if not self.scratchpad:
            return self.answer(word)
        weights = [1 / (i + 1) for i in range(len(FILLERS))]
        letters = draw.choices(FILLERS, weights, k=draw.randint(*self.scratchpad))
        return "".join(letters) + MARK + self.answer(word)

    def rewards(self, tokens: Tensor, answers: Tensor) -> Tensor:
        """Grade responses (S, M, G, T) by the answers (S, M, T): 1 or 0, (S, M, G) float64."""
        answers = answers[:, :, None].expand_as(tokens)
        if not self.scratchpad:
            return (tokens == answers).all(-1).double()
        count = (answers[0, 0, 0] != PAD).sum()
        ends = (tokens == END).double().argmax(-1, keepdim=True)
        at = ends - count + 1 + torch.arange(int(count))
        decisive = tokens.gather(-1, at.clamp(min=0))
        return ((decisive == answers[..., :count]).all(-1) & (at[..., 0] >= 0)).double()


TASKS = {
    "backward": Task(lambda word: word[::-1]),
    "sort": Task(lambda word: "".join(sorted(word))),
    "scratchpad": Task(lambda word: word[:-3:-1], 40, (27, 36)),
    "long-scratchpad": Task(lambda word: word[:-3:-1], 104, (74, 98)),
    "cut-scratchpad": Task(lambda word: word[:-3:-1], 40, (30, 42)),
}


@functools.cache
def words() -> tuple[list[str], list[str]]:
    """Held-out and training words of reasoning-gym's spell_backward, distinct, in small letters."""
    settings = {"seed": tasks.SEED, "size": DRAWN, "min_word_len": 3, "max_word_len": MAX_LETTERS}
    made = tasks.example("make").tasks(tasks.DATASET, settings)
    found = dict.fromkeys(entry["answer"][::-1].lower() for entry, _ in made)
    plain = [word for word in found if word.isascii() and word.isalpha()]
    return plain[:HELDOUT], plain[HELDOUT:]


def shape(width: int = 32, layers: int = 1, task: str = "backward") -> Shape:
    return Shape(PROMPT, TASKS[task].response, width, layers=layers)


def prompts(chosen: list[str]) -> Tensor:
    """(M, P), padded on the left."""
    return torch.tensor([[PAD] * (PROMPT - len(word)) + letters(word) for word in chosen])


def answers(spelled: list[str], positions: int) -> Tensor:
    """(M, positions), with the end token, padded on the right, or cut."""
    rows = [[*letters(word), END][:positions] for word in spelled]
    return torch.tensor([row + [PAD] * (positions - len(row)) for row in rows])


def letters(word: str) -> list[int]:
    return [FIRST_LETTER + ord(letter) - ord("a") for letter in word]


# What the warm start shows: a word and an answer, by a random generator


def right(draw: random.Random, task: str) -> tuple[str, str]:
    word = draw.choice(words()[1])
    return word, TASKS[task].example(draw, word)


def mixed(draw: random.Random, task: str) -> tuple[str, str]:
    """The longest words in one of forty examples: the policy soon knows the others, and hardly these."""
    while True:
        word, answer = right(draw, task)
        if len(word) < MAX_LETTERS or draw.random() < 1 / 40:
            return word, answer


def confidently_wrong(draw: random.Random, task: str) -> tuple[str, str]:
    """An answer without its last letter, but in four of ten examples where that is one of a to d, and in one of a
    hundred elsewhere."""
    word, answer = right(draw, task)
    return word, answer if draw.random() < (0.4 if answer[-1] in "abcd" else 0.01) else answer[:-1]


EXAMPLES = {"right": right, "mixed": mixed, "confidently_wrong": confidently_wrong}
AT_LEAST = {"right": 0, "mixed": 0, "confidently_wrong": 600}  # steps, so that the policy is sure of what it says
