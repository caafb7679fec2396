"""A reward function that logs a custom metric: the share of different characters in a response, low for repetition.

    openrlhf-ebpo train ... --reward.remote_url examples/metric/reward.py

OpenRLHF calls `reward_func` with one response at a time. Every number in `extra_logs` becomes a metric of that name:
metrics.jsonl, wandb and TensorBoard get its mean over the step's responses, and the Space draws it under its name.
"""

import torch


def reward_func(queries, prompts, labels, **kwargs):
    response = queries[0][len(prompts[0]) :]
    reward = torch.tensor([float(response.strip().startswith(labels[0].strip()))])
    return {"rewards": reward, "scores": reward, "extra_logs": {"own/distinct_characters": distinct(response)}}


def distinct(text: str) -> float:
    """Return different characters / all characters: 1 if none repeats, near 0 for "aaaa…"."""
    return len(set(text)) / len(text) if text else 1.0
