"""Reward verifiable mathematics: `--reward.remote_url math`, the label column holds the gold answer.

A response earns 1 where its last `\\boxed{...}` or, without one, its last "Answer:" (extraction.py) equals the gold
answer (grading.py), and 0 otherwise, also where the answer takes too long to grade. Logged with the reward:
`math_no_answer` (no answer, or markup alone) and `math_timeout` (grading was cut off: time, memory, a crash).
A gold answer that cannot be read is a mistake in the data: the reward fails, and the sample is excluded
(upstream/rollout/guarded_rewards.py).

The settings, OPENRLHF_EBPO_MATH_WORKERS, _SECONDS and _MEMORY_MB, are described in pool.py.

A reward function sees prompt and response as one text, so the prompt's end has to be found in it.
"""

from __future__ import annotations

import unicodedata

from openrlhf_ebpo.rewards.math.extraction import SPECIAL, opened_thoughts
from openrlhf_ebpo.rewards.math.golds import gold_text
from openrlhf_ebpo.rewards.processes.pool import shared_pool
from openrlhf_ebpo.rewards.processes.reward_values import NO_ANSWER, RewardError
from openrlhf_ebpo.rewards.special_tokens import without_end

REMEDY = (
    "Use prompts in characters that the tokenizer has, or an agent (--train.agent_func_path), which has the "
    "response's tokens"
)
OVERLAP = 40  # characters of a prompt, cut off at its front, that must be there to know it again


def reward_func(queries, prompts, labels, **_kwargs):
    """Reward responses by OpenRLHF's interface: queries are prompt + response texts. Returns rewards (N,) of 0 and 1.

    Raises:
        RewardError: a prompt cannot be found in its query. GoldError: a label cannot be read.
    """
    import torch  # a reward that only takes `response_of` does without

    verdicts = [
        shared_pool().grade(gold_text(label), response_of(query, prompt), bool(opened_thoughts(prompt)))
        for query, prompt, label in zip(queries, prompts, labels, strict=True)
    ]
    rewards = torch.tensor([float(verdict.correct) for verdict in verdicts])
    logs = {f"math_{NO_ANSWER}": (NO_ANSWER,), "math_timeout": ("timeout", "crash")}
    return {
        "rewards": rewards,
        "scores": rewards,
        "extra_logs": {
            name: torch.tensor([float(verdict.outcome in outcomes) for verdict in verdicts])
            for name, outcomes in logs.items()
        },
    }


def response_of(query: str, prompt: str) -> str:
    """Return the text after the prompt in a decoded sequence, without the special tokens at its end. The prompt's own
    "Answer:" and \\boxed must not be taken for the response's, so the prompt is never guessed: it is
    found as it is, but for a beginning-of-text token, for spaces and Unicode forms that a tokenizer changes, or without
    its beginning, which upstream cuts off if a prompt is too long.

    Raises:
        RewardError: it is not found in any of these ways.
    """
    start = query.find(prompt)
    if start >= 0 and is_blank(query[:start]):
        return without_end(query[start + len(prompt) :])
    query = unicodedata.normalize("NFC", query)
    places = [i for i, character in enumerate(query) if not character.isspace()]
    end = _end_of_prompt("".join(query[i] for i in places), "".join(unicodedata.normalize("NFC", prompt).split()))
    if end is None:
        raise RewardError(
            "the prompt is not found in the decoded sequence: this tokenizer does not give it back as it was. "
            f"{REMEDY}. Prompt: {prompt[:200]!r}; sequence: {query[:200]!r}"
        )
    return without_end(query[places[end - 1] + 1 :])


def is_blank(text: str) -> bool:
    """Return True if there is nothing but special tokens."""
    return not SPECIAL.sub("", text).strip()


def _end_of_prompt(query: str, prompt: str) -> int | None:
    """Find where the prompt, or as much of its end as there is, ends in the query; both without white space."""
    start = query.find(prompt) if prompt else -1
    if start >= 0 and is_blank(query[:start]):
        return start + len(prompt)
    cut = prompt.find(query[:OVERLAP], 1)
    while 0 <= cut <= len(prompt) - OVERLAP:
        if query.startswith(prompt[cut:]):
            return len(prompt) - cut
        cut = prompt.find(query[:OVERLAP], cut + 1)
    return None
