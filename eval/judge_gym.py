"""reasoning-gym's scorers for the processes of rewards/pool.py; a question's gold is its Rules.entry."""

from __future__ import annotations

import json

from openrlhf_ebpo.rewards.grading import GoldError

from .tasks import gym


def warm_up() -> None:
    import reasoning_gym  # noqa: F401


def parse_gold(entry: str) -> None:
    """Raises GoldError where there is nothing that a scorer could be made of."""
    try:
        kept = json.loads(entry)
        kept["name"], kept["settings"], kept["entry"]
    except (ValueError, KeyError, TypeError) as error:
        raise GoldError(f"the rules have no entry of reasoning-gym's: {entry[:60]!r}") from error


def grade(entry: str, answer: str) -> bool:
    """Whether the scorer gives full marks."""
    return gym.score(entry, answer) >= 1
