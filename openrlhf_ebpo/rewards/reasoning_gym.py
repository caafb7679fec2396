"""reasoning-gym's own scorers as a reward: `--reward.remote_url reasoning_gym`; the label column holds entries (gym.py).

A response earns 1 where its task's scorer gives its answer (gym.answer_of) full marks, and 0 otherwise,
also where scoring takes too long (pool.py, which limits time and memory as for mathematics). Logged with the reward:
`reasoning_gym_score`, the scorer's own marks; `reasoning_gym_unmarked`, whether nothing marks an answer, so that all of
the response is taken for it; and `reasoning_gym_timeout`, whether scoring was cut off.
"""

from __future__ import annotations

import logging

import torch

from openrlhf_ebpo.rewards import gym
from openrlhf_ebpo.rewards.grading import GoldError
from openrlhf_ebpo.rewards.math import response_of
from openrlhf_ebpo.rewards.pool import Died, Pool, shared_pool

logger = logging.getLogger(__name__)
GRADER = gym.__name__
REMEDY = (
    "Leave rows with such prompts out, or write the prompts in characters that the tokenizer has "
    "(openrlhf-ebpo data gym --template); a tokenizer that changes all text, as to small letters, does not go with this reward"
)


def reward_func(queries, prompts, labels, **_kwargs):
    """Reward responses by OpenRLHF's interface: queries are prompt + response texts. Returns rewards (N,) of 0 and 1.

    Raises:
        RewardError: a prompt cannot be found in its query. GoldError: a label cannot be scored.
    """
    pool = shared_pool(GRADER)
    responses = [response_of(query, prompt, REMEDY) for query, prompt in zip(queries, prompts, strict=True)]
    marks = [marks_of(pool, label, response) for label, response in zip(labels, responses, strict=True)]
    scores = torch.tensor([0.0 if mark is None else mark for mark in marks])
    rewards = (scores >= 1.0).float()
    logs = {
        "reasoning_gym_score": scores,
        "reasoning_gym_unmarked": torch.tensor([float(gym.marked_answer(each) is None) for each in responses]),
        "reasoning_gym_timeout": torch.tensor([float(mark is None) for mark in marks]),
    }
    return {"rewards": rewards, "scores": rewards, "extra_logs": logs}


def marks_of(pool: Pool, label: str, response: str) -> float | None:
    """Return the scorer's marks; None if scoring ended its process.

    Raises:
        GoldError: the label cannot be scored. GraderError: the processes do not start.
    """
    answer = gym.answer_of(response)
    try:
        return pool.ask(label, answer)
    except Died as death:
        logger.warning("reasoning-gym's scorer ended in a %s, the answer counts as wrong: %.200r", death, answer)
        return None


def oracle_problem(pool: Pool, label: str, thorough: bool = True) -> str | None:
    """Return why an entry cannot be trained on: its scorer does not give its own right answer full marks, or gives them to a
    wrong one. None: it can.

    thorough: several wrong ones are tried, for which some scorers take a second.
    """
    try:
        kept = gym.decode(label)
        answer = gym.oracle(kept["entry"])
        if answer is None:
            return f"{kept['name']}: reasoning-gym gives no right answer, with which its scorer could be checked"
        marks = marks_of(pool, label, answer)
        if marks is None:
            return f"{kept['name']}: reasoning-gym's scorer takes too long for its own answer {answer!r:.100}"
        if marks < 1:
            return f"{kept['name']}: reasoning-gym's own answer {answer!r:.100} gets {marks:g}, not 1"
        for wrong in gym.wrong_answers(answer) if thorough else [gym.NONSENSE]:
            if (marks_of(pool, label, wrong) or 0) >= 1:
                accepted = f"reasoning-gym's scorer accepts any answer, such as {wrong!r}"
                return f"{kept['name']}: {accepted}, where {answer!r:.100} is right"
    except (gym.EntryError, GoldError) as error:
        return str(error)
    return None
