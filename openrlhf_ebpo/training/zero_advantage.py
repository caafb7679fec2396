"""Report and count steps in which no response has an advantage."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from openrlhf_ebpo.estimator.advantage import Estimate

METRIC = "ebpo/zero_advantage"
SUMMARY = "steps had only zero advantages: all responses, or all of each group, earned the same (docs/errors.md)"
SHARES = {  # metric of the step -> of which responses it is the share
    "math_no_answer": "without an answer",
    "rollout/truncated_rate": "cut",
}
NO_ADVANTAGE = 1e-6  # what rounding leaves of none


def is_zero(result: Estimate) -> bool:
    """Return True if no valid response has an advantage. Where all earned the same, some give them one all the same:
    without normalisation, a history that expected more."""
    return bool(np.abs(result.advantages[result.valid]).max() < NO_ADVANTAGE)


def notice(step: int, result: Estimate, metrics: Mapping[str, float], passes: float) -> str:
    """Describe such a step; passes: a reward from here on is a success."""
    return f"step {step}: all advantages are zero, {reason(result, metrics, passes)}"


def reason(result: Estimate, metrics: Mapping[str, float], passes: float) -> str:
    """Return the reason, in words."""
    shares = [f"{100 * metrics[name]:.0f} % {words}" for name, words in SHARES.items() if metrics.get(name)]
    return "; ".join([_rewards(result.rewards[result.valid], passes), *shares])


def _rewards(rewards: np.ndarray, passes: float) -> str:
    if np.ptp(rewards) > 0:
        return "in every group all responses earned the same"
    if rewards[0] >= passes:
        return "every response passed"
    return "no response passed" + (f", each earned {rewards[0]:g}" if rewards[0] else "")


def count_steps(rows: Iterable[Mapping], metric: str, what: str) -> str | None:
    """A line for the end of a run: in how many steps `metric` was set; None if in none. rows: of metrics.jsonl, one a
    step."""
    steps = [row[metric] for row in rows if metric in row]
    return f"{sum(map(bool, steps))} of {len(steps)} {what}" if any(steps) else None
