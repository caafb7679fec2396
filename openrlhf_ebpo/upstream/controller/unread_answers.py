"""Warn of steps in which the reward reads no answer in many complete responses: their form is not what it looks for."""

from __future__ import annotations

from collections.abc import Sequence

from openrlhf_ebpo.command import one_line
from openrlhf_ebpo.rewards.processes.reward_values import NO_ANSWER

METRIC = f"rollout/{NO_ANSWER}"
UNREAD_LIMIT = 0.2  # of the complete responses
MAX_QUOTE_CHARS = 300


def is_unread(sample) -> bool | None:
    """Return True for a complete response in which its reward found no answer; None if it was cut, or the reward does
    not say.

    sample: upstream's Experience of one response.
    """
    logs = [value for name, value in sample.info.items() if name.endswith(NO_ANSWER)]
    return None if not logs or bool(sample.truncated.any()) else bool((logs[0] > 0).any())


def unread_share(found: Sequence[bool | None]) -> dict[str, float]:
    """Return METRIC; nothing if no response says."""
    known = [each for each in found if each is not None]
    return {METRIC: sum(known) / len(known)} if known else {}


def warning(step: int, share: float, response: str) -> str:
    """Warn of a step with this share of unread answers; response: one of them, which is quoted."""
    return (
        f"warning: step {step}: the reward reads no answer in {share:.0%} of the complete responses, such as "
        f"{one_line(response, MAX_QUOTE_CHARS)!r}. Ask in the prompt for the form that the reward reads (docs/train.md)"
    )
