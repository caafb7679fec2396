"""A question for the code that a model card shows: one that the model was trained on, and answered."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from openrlhf_ebpo.run.rollout_columns import logged_steps

logger = logging.getLogger(__name__)

QUESTION = "{question}"
LONGEST = 300  # characters
MOST_ROWS = 4096
COLUMNS = ("group", "prompt", "reward")


class Example(NamedTuple):
    """passed: whether a response to the question was right when it was asked."""

    question: str
    passed: bool


def from_rollouts(run_dir: Path, step: int, template: str, chat: bool, pass_reward: float) -> Example | None:
    """The shortest question of the last rollouts up to `step`, of a group that passed if there is one; None where no
    rollouts are there, or the question cannot be told from what was written around it.

    Args:
        template: text with {question} in it, as the training prompts were made. chat: a chat template or a begin token came around it.
        pass_reward: what a right response gets.
    """
    path = max(((at, path) for at, path in logged_steps(run_dir).items() if at <= step), default=(0, None))[1]
    if path is None:
        return None
    try:
        best = _best_rewards(path)
    except (pa.ArrowException, OSError, ValueError, KeyError) as error:
        logger.warning("the card's example is not of the rollouts: %s cannot be read (%s)", path.name, error)
        return None
    found = [
        Example(question, reward >= pass_reward)
        for prompt, reward in best.values()
        if (question := question_in(prompt, template, chat)) and len(question) <= LONGEST
    ]
    return min(found, key=lambda each: (not each.passed, len(each.question), each.question), default=None)


def _best_rewards(path: Path) -> dict[int, tuple[str, float]]:
    """group -> its prompt and highest reward."""
    best: dict[int, tuple[str, float]] = {}
    for group, prompt, reward in _rows(path):
        known = best.get(group, (prompt, float("-inf")))
        best[group] = prompt, known[1] if reward is None else max(known[1], reward)
    return best


def _rows(path: Path) -> Iterator[tuple]:
    with pq.ParquetFile(path) as file:
        batch = next(file.iter_batches(MOST_ROWS, columns=list(COLUMNS)), None)
    rows = batch.to_pylist() if batch else []
    return ((int(row["group"]), str(row["prompt"]), row["reward"]) for row in rows)


def question_in(prompt: str, template: str, chat: bool) -> str | None:
    """What stands for {question} in a prompt as the model read it; None where that cannot be told."""
    before, _, after = template.partition(QUESTION)
    if chat and not (before.strip() and after.strip()):
        return None  # where the chat template ends is not known here
    start = prompt.find(before) + len(before) if before else 0
    end = prompt.rfind(after) if after else len(prompt)
    if (before and before not in prompt) or not 0 <= start < end:
        return None
    question = prompt[start:end].strip()
    return question if question and QUESTION not in question else None
