"""Meanings of the columns of a published run, for its data card. The tests hold these names against the writers."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from openrlhf_ebpo.hub.markdown import Markdown, meanings, sanitize
from openrlhf_ebpo.run.catalogue import Metric, find

ROLLOUTS = meanings(
    {
        "step": "training step",
        "prompt_id": "hash of prompt and label; the same in every run",
        "group": "number of the group (all responses to one prompt) in the batch, from 0",
        "sample": "number of the response in its group, from 0",
        "cluster": "topic of the prompt, where the training data has one",
        "prompt": "prompt as the model read it",
        "response": "response from its first token to the end, special tokens shown",
        "label": "what the reward function compared the response with",
        "raw_reward": "reward as the reward function gave it; null where it failed",
        "reward": "reward after length penalties and clipping; null for a response that was left out",
        "valid": "false for a response that was left out of training",
        "error": "why the reward failed; null otherwise",
        "group_mean": "mean reward of the group's valid responses",
        "baseline": "what was taken from the reward: EBPO's baseline of the group; null under estimators of OpenRLHF",
        "shrinkage": "weight of the prior in that baseline; null under estimators without one",
        "advantage": "advantage that was trained on (under EBPO: normalised, before any KL penalty)",
        "grpo_advantage": "what GRPO would have given for these rewards; 0 in a group of equal rewards",
        "response_length": "tokens of the response",
        "truncated": "whether the response reached the token limit",
        "action_tokens": "tokens of the response that are trained on",
        "score_weight": "sum of (1 - probability)² over them, what score-weighted baselines weigh the response with",
    }
)
SAMPLES = meanings(
    {
        "question_id": "id of the question",
        "question": "the question, without any instruction",
        "gold": "the right answer",
        "response": "the model's response, special tokens left out",
        "extracted": "the answer found in it; null: none",
        "correct": "whether that answer is right",
        "error": "why grading failed; null otherwise",
        "length": "tokens of the response",
        "finish_reason": "`length`: the response was cut at the token limit",
        "seed": "of the engine that generated it",
        "sample": "number of the response to its question, from 0",
        "class": "responses to one question with the same number gave equivalent answers; -1: no answer",
        "rules": "how the question is scored (unit, tolerance, several answers), as JSON",
    }
)
METRICS = meanings({"step": "training step", "time": "seconds since 1970, UTC"})  # the others are in the catalogue
OTHER = Markdown("logged by the reward function, or by OpenRLHF")


def metric_meaning(name: str, own: Mapping[str, Metric] = MappingProxyType({})) -> Markdown:
    """own: what the run says about metrics of its own code; not our words."""
    if name in METRICS:
        return METRICS[name]
    if metric := find(name):
        return Markdown(_describe(metric))
    return sanitize(_describe(own[name])) if name in own else OTHER


def _describe(metric: Metric) -> str:
    return metric.with_unit(": ".join(filter(None, (metric.title, metric.tells))))
