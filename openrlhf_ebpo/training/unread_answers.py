"""Warn of steps in which the reward reads no answer in many complete responses: their form is not what it looks for."""

from __future__ import annotations

from collections.abc import Sequence

from openrlhf_ebpo.command import one_line

METRIC = "rollout/no_answer"
LOGGED_AS = "no_answer"  # how a reward's own log of that ends: math_no_answer
TOO_MANY = 0.2  # of the complete responses
MAX_QUOTE_CHARS = 300


def unread(sample) -> bool | None:
    """Return True for a complete response in which its reward found no answer; None if it was cut, or the reward does
    not say.

    sample: upstream's Experience of one response.
    """
    logs = [value for name, value in sample.info.items() if name.endswith(LOGGED_AS)]
    return None if not logs or bool(sample.truncated.any()) else bool((logs[0] > 0).any())


def share(found: Sequence[bool | None]) -> dict[str, float]:
    """Return METRIC; nothing if no response says."""
    known = [each for each in found if each is not None]
    return {METRIC: sum(known) / len(known)} if known else {}


class Notices:
    """Says the first, second, fourth, eighth … of these steps."""

    def __init__(self):
        self.count = 0

    def is_due(self, metrics: dict[str, float]) -> bool:
        if metrics.get(METRIC, 0.0) <= TOO_MANY:
            return False
        self.count += 1
        return not self.count & (self.count - 1)

    def line(self, step: int, metrics: dict[str, float], response: str) -> str:
        """response: one of those without an answer, which is shown."""
        more = f" ({self.count} such steps so far)" if self.count > 1 else ""
        return (
            f"warning: step {step}: the reward reads no answer in {metrics[METRIC]:.0%} of the complete "
            f"responses{more}, such as "
            f"{one_line(response, MAX_QUOTE_CHARS)!r}. Ask in the prompt for the form that the reward reads "
            f"(docs/train.md)"
        )
