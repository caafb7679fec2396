"""Rollout batches for the estimators, and plain-Python statistics that share no code with them."""

import math

import numpy as np

from openrlhf_ebpo.estimator import registry
from openrlhf_ebpo.estimator.advantage import Estimate, estimate
from openrlhf_ebpo.estimator.config import EstimatorConfig
from openrlhf_ebpo.estimator.contract import Batch

CONFIG = EstimatorConfig(n_samples_per_prompt=4)


def run(name: str, batch: Batch, state=None, config: EstimatorConfig = CONFIG) -> Estimate:
    estimator = registry.build_offline(name, config)
    return estimate(estimator, batch, estimator.initial() if state is None else state)


def drawn(seed=0, groups=6, size=4, rate=0.4, ids=None) -> Batch:
    """Binary rewards, some responses not valid, the last group without any, lengths and weights of all sizes."""
    random = np.random.default_rng(seed)
    valid = random.random((groups, size)) < 0.85
    valid[0], valid[-1] = True, False
    return Batch.of(
        random.random((groups, size)) < rate,
        valid,
        ids or tuple(f"prompt {i}" for i in range(groups)),
        (None,) * groups,
        random.integers(1, 50, (groups, size)),
        random.random((groups, size)) * 10,
    )


def of_rewards(rows, ids=(), lengths=None) -> Batch:
    rewards = np.array(rows, float)
    return Batch.of(rewards, np.ones_like(rewards, bool), ids, (), lengths)


def groups_of(batch: Batch, values: np.ndarray) -> list[list[float]]:
    """The values of each group's valid responses."""
    return [
        [value for value, counts in zip(row, valid, strict=True) if counts]
        for row, valid in zip(values.tolist(), batch.valid.tolist(), strict=True)
    ]


def placed(batch: Batch, groups: list[list[float]]) -> np.ndarray:
    """Put together what `groups_of` took apart, 0 where not valid."""
    result = np.zeros(batch.valid.shape)
    result[batch.valid] = [value for group in groups for value in group]
    return result


def mean(values: list[float]) -> float:
    return math.fsum(values) / len(values)


def std(values: list[float]) -> float:
    """The sample one; 0 of a single value."""
    centre = mean(values)
    return math.sqrt(math.fsum((value - centre) ** 2 for value in values) / max(len(values) - 1, 1))


def standardised(groups: list[list[float]]) -> list[list[float]]:
    values = [value for group in groups for value in group]
    return [[(value - mean(values)) / (std(values) + 1e-6) for value in group] for group in groups]
