"""Report and count steps in which no response has an advantage."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from openrlhf_ebpo.command import one_line

if TYPE_CHECKING:
    from openrlhf_ebpo.estimator.advantage import Estimate

METRIC = "ebpo/zero_advantage"
SUMMARY = "steps had only zero advantages: all responses, or all of each group, earned the same (docs/errors.md)"
SHARES = {  # metric of the step -> of which responses it is the share
    "math_no_answer": "without an answer",
    "rollout/truncated_rate": "cut",
}
FEW_LEARNT_SHARE = 0.5  # of the steps: from here on a run has learnt from few
CAUSE_SHARE = 0.2  # share of the responses or groups, from which something counts as a cause
MAX_QUOTE_CHARS = 160
NO_ADVANTAGE = 1e-6  # what rounding leaves of none


def is_zero(result: Estimate) -> bool:
    """Return True if no valid response has an advantage. Where all earned the same, some give them one all the same:
    without normalisation, a history that expected more."""
    return bool(np.abs(result.advantages[result.valid]).max() < NO_ADVANTAGE)


def notice(step: int, result: Estimate, metrics: Mapping[str, float], passes: float) -> str:
    """Describe such a step; passes: a reward from here on is a success."""
    return f"step {step}: all advantages are zero, {reason(result, metrics, passes)}"


def reason(result: Estimate, metrics: Mapping[str, float], passes: float) -> str:
    """Describe the reason."""
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


def lasting_warning(rows: Iterable[Mapping], form: str, answer: str) -> str | None:
    """Warn of a run in most of whose steps no response had an advantage, with the two most likely causes; None for
    other runs.

    Args:
        rows: of metrics.jsonl, one a step. form: in which the model got its prompts. answer: a response of the last
            step, untrusted.
    """
    steps = [row for row in rows if METRIC in row]
    zero = [row for row in steps if row[METRIC]]
    if not zero or len(zero) < FEW_LEARNT_SHARE * len(steps):
        return None
    causes = "; ".join(f"({number}) {cause}" for number, cause in enumerate(likely_causes(zero, form, answer), 1))
    return f"{len(zero)} of {len(steps)} steps taught nothing: all advantages were zero. Most likely: {causes}"


def likely_causes(zero: Sequence[Mapping], form: str, answer: str) -> list[str]:
    """Return the two most likely causes, the likelier first. zero: metrics of the steps without an advantage."""

    def mean(name: str) -> float:
        found = [row[name] for row in zero if row.get(name) is not None]
        return float(np.mean(found)) if found else 0.0

    quoted = f"{one_line(answer, MAX_QUOTE_CHARS)!r}"
    fail, passes, cut = map(mean, ("ebpo/all_fail_fraction", "ebpo/all_pass_fraction", "rollout/truncated_rate"))
    unread = mean("rollout/no_answer")
    causes = [
        (
            fail,
            f"no response passes in {fail:.0%} of the groups: is this the template the model was trained with? {form}; "
            f"a response is {quoted}",
        ),
        (cut, f"{cut:.0%} of the responses are cut: raise --rollout.max_new_tokens, or ask for shorter ones"),
        (
            unread,
            f"the reward reads no answer in {unread:.0%} of the complete responses: ask in the prompt for the form "
            "that it reads (docs/train.md)",
        ),
        (passes, f"every response passes in {passes:.0%} of the groups: take harder prompts (data difficulty)"),
        (
            CAUSE_SHARE,
            "the responses of a prompt earn the same: give more of them (--rollout.n_samples_per_prompt), or other "
            "prompts (data difficulty)",
        ),
    ]
    ranked = sorted(causes, key=lambda cause: -cause[0])
    return [text for weight, text in ranked if weight >= CAUSE_SHARE][:2]
