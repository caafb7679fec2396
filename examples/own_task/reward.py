"""The reward of docs/own_task.md: 1 if the last number of the response is the answer, else 0."""

import re


def reward_func(queries, prompts, labels, **kwargs):
    rewards = []
    for query, prompt, label in zip(queries, prompts, labels, strict=True):
        numbers = re.findall(r"-?\d+", query[len(prompt) :].replace(",", ""))
        rewards.append(float(numbers[-1:] == [label]))
    return {"rewards": rewards, "scores": rewards}
