"""A reward function that logs a metric of its own: how much of a response is not repetition.

    openrlhf-ebpo train ... --reward.remote_url examples/metric/reward.py --logger.metrics examples/metric/metrics.json

OpenRLHF calls `reward_func` with one response at a time. Every number in `extra_logs` is a metric under the name that it
has there: metrics.jsonl, wandb and TensorBoard get its mean over the step's responses. metrics.json says what it is, for
the Space and the cards; without it the name alone is shown.
"""

import torch


def reward_func(queries, prompts, labels, **kwargs):
    response = queries[0][len(prompts[0]) :]
    reward = torch.tensor([float(response.strip().startswith(labels[0].strip()))])
    return {"rewards": reward, "scores": reward, "extra_logs": {"own/distinct_characters": distinct(response)}}


def distinct(text: str) -> float:
    """Different characters among all of them: 1 where none comes twice, towards 0 in "aaaa…"."""
    return len(set(text)) / len(text) if text else 1.0
