"""Client states of a DeepSpeed checkpoint: what the trainer adds, and the estimator state that it starts from."""

from __future__ import annotations

from typing import Any

from openrlhf_ebpo.estimator import stored
from openrlhf_ebpo.estimator.contract import Estimator

STATE_KEY = "ebpo_prior"  # in DeepSpeed's client_states
KL_COEFFICIENT = "ebpo_kl_coefficient"  # also there, with --algo.kl.target
# upstream's `fit` reads these of the client states
CLIENT_STATE = ("episode", "global_step", "total_consumed_prompts", "data_loader_state_dict")


def starting_state(states: dict, estimator: Estimator, ckpt_path: str) -> Any:
    """The estimator's state that training begins with, given the checkpoint's states.

    A checkpoint's own comes first, so that a command can be repeated to resume; then --algo.advantage.ebpo.init_prior;
    a run that starts at step 0 without either starts with the initial one.

    Raises:
        PriorMismatch: resuming without a stored state, or with one of another estimator.
    """
    config = estimator.config
    resumed = states.get("global_step", 0) > 0
    if resumed and STATE_KEY in states and not config.reset_prior:
        return stored.unpack(estimator, states[STATE_KEY], f"the checkpoint in {ckpt_path}")
    if config.init_prior:
        return stored.read(estimator, config.init_prior)
    if resumed and not config.reset_prior:
        raise stored.PriorMismatch(
            f"the checkpoint in {ckpt_path} was saved by another estimator: no prior in it. {stored.REMEDY}"
        )
    return estimator.initial()
