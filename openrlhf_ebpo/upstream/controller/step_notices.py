"""Notices about steps that teach nothing: no response has an advantage, or the reward reads no answer in many complete
responses, as their form is not what it looks for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from openrlhf_ebpo.command import one_line
from openrlhf_ebpo.rewards.processes.reward_values import NO_ANSWER

if TYPE_CHECKING:
    from openrlhf_ebpo.estimator.advantage import Estimate

ZERO_ADVANTAGE = "ebpo/zero_advantage"
UNREAD = f"rollout/{NO_ANSWER}"
SUMMARY = "steps had only zero advantages: all responses, or all of each group, earned the same (docs/errors.md)"
SHARES = {  # metric of the step -> of which responses it is the share
    "math_no_answer": "without an answer",
    "rollout/truncated_rate": "cut",
}
FEW_LEARNT_SHARE = 0.5  # of the steps: from here on a run has learnt from few
CAUSE_SHARE = 0.2  # share of the responses or groups, from which something counts as a cause
UNREAD_LIMIT = 0.2  # of the complete responses
MAX_QUOTE_CHARS = 160
NO_ADVANTAGE = 1e-6  # what rounding leaves of none


class StepNotices:
    """Count the steps of each kind; the first, second, fourth, eighth … of a kind get a line: a run may have a thousand
    of them."""

    def __init__(self):
        self._steps = Counter()

    def print_if_due(self, kind: str, text: Callable[[], str]) -> None:
        """Count a step of this kind, and print its line if one is due; text: makes the line."""
        self._steps[kind] += 1
        count = self._steps[kind]
        if not count & (count - 1):
            print(text() + (f" ({count} such steps so far)" if count > 1 else ""), flush=True)


def is_unread(sample) -> bool | None:
    """Return True for a complete response in which its reward found no answer; None if it was cut, or the reward does
    not say.

    sample: upstream's Experience of one response.
    """
    logs = [value for name, value in sample.info.items() if name.endswith(NO_ANSWER)]
    return None if not logs or bool(sample.truncated.any()) else bool((logs[0] > 0).any())


def step_metrics(result: Estimate, unread: Sequence[bool | None]) -> dict[str, float]:
    """Return ZERO_ADVANTAGE, 1.0 if no valid response has an advantage, and the share UNREAD if a response says. Where
    all earned the same, some have an advantage all the same: without normalisation, a history that expected more.

    unread: what `is_unread` returned.
    """
    found = {ZERO_ADVANTAGE: float(np.abs(result.advantages[result.valid]).max() < NO_ADVANTAGE)}
    known = [each for each in unread if each is not None]
    return found | ({UNREAD: sum(known) / len(known)} if known else {})


def unread_warning(step: int, share: float, response: str) -> str:
    """Warn of a step with this share of unread answers; response: one of them, which is quoted."""
    return (
        f"warning: step {step}: the reward reads no answer in {share:.0%} of the complete responses, such as "
        f"{one_line(response, MAX_QUOTE_CHARS)!r}. Ask in the prompt for the form that the reward reads (docs/train.md)"
    )


def zero_notice(step: int, result: Estimate, metrics: Mapping[str, float], passes: float) -> str:
    """Describe a step without an advantage, and say why; passes: a reward from here on is a success."""
    rewards = result.rewards[result.valid]
    if np.ptp(rewards) > 0:
        reason = "in every group all responses earned the same"
    elif rewards[0] >= passes:
        reason = "every response passed"
    else:
        reason = "no response passed" + (f", each earned {rewards[0]:g}" if rewards[0] else "")
    shares = [f"{100 * metrics[name]:.0f} % {words}" for name, words in SHARES.items() if metrics.get(name)]
    return f"step {step}: all advantages are zero, {'; '.join([reason, *shares])}"


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
    steps = [row for row in rows if ZERO_ADVANTAGE in row]
    zero = [row for row in steps if row[ZERO_ADVANTAGE]]
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
    unread = mean(UNREAD)
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
