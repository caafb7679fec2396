"""A user's own estimator is tried on made-up rewards before a run: what breaks in its code breaks at once."""

from __future__ import annotations

import numpy as np

from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.estimator import stored
from openrlhf_ebpo.estimator.advantage import estimate
from openrlhf_ebpo.estimator.config import EstimatorConfig
from openrlhf_ebpo.estimator.contract import Batch, Estimator
from openrlhf_ebpo.estimator.registry import FLAG


def rehearse(estimator: Estimator) -> None:
    """Two steps, each with its state stored and restored. Steps are pure, so nothing is left of it.

    Raises:
        UsageError: its code raised an exception, or broke the contract.
    """
    batch = made_up(estimator.config)
    try:
        state = estimator.initial()
        for _ in range(2):
            state = stored.unpack(estimator, stored.pack(estimator, estimate(estimator, batch, state).state))
    except Exception as error:  # somebody's code
        raise UsageError(
            f"{FLAG} {estimator.name} fails on made-up rewards: {type(error).__name__}: {error}"
        ) from error


def made_up(config: EstimatorConfig) -> Batch:
    """Four groups: all pass, one passes, all fail with a response left out, no response is valid."""
    rewards = np.full((4, config.n_samples_per_prompt), config.fail_reward)
    rewards[0], rewards[1, 0] = config.pass_reward, config.pass_reward
    valid = np.ones_like(rewards, dtype=bool)
    valid[2, 0], valid[3] = False, False
    return Batch.of(rewards, valid, ("a", "b", "c", "d"), ("topic", "topic", None, None))
