"""reasoning-gym's scorers for the processes of rewards/pool.py; a question's gold is its Rules.entry."""

from __future__ import annotations

import json

from .tasks import gym


def warm_up() -> None:
    import reasoning_gym  # noqa: F401


def parse_gold(entry: str) -> None:
    json.loads(entry)


def grade(entry: str, answer: str) -> bool:
    """Whether the scorer gives full marks."""
    return gym.score(entry, answer) >= 1
