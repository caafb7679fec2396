"""The estimator's state as it is stored: in a checkpoint's client_states, and as prior.json; and a rehearsal of
both."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from openrlhf_ebpo.errors import ReportedError, UsageError
from openrlhf_ebpo.estimator.advantage import EstimatorError, estimate
from openrlhf_ebpo.estimator.config import EstimatorConfig
from openrlhf_ebpo.estimator.contract import Batch, Estimator
from openrlhf_ebpo.estimator.registry import ESTIMATOR_FLAG

SCHEMA = 1
REMEDY = (
    "Run with the old settings, or leave the stored prior out with --algo.advantage.ebpo.reset_prior "
    "(alone: start afresh; with --algo.advantage.ebpo.init_prior PATH: start from that prior.json)."
)


FORM = (
    "It must be a dictionary of numbers, strings, lists (no tuples) and dictionaries, whose keys are strings, with "
    "the keys of `initial()`; or write `save` and `restore` (openrlhf_ebpo/estimator/contract.py)."
)


class PriorMismatch(ReportedError, ValueError):
    """A stored prior that cannot serve this run; the message names the difference and the way out."""


def pack(estimator: Estimator, state: Any) -> dict:
    """Return the state as plain, versioned JSON values that `unpack` takes.

    Raises:
        EstimatorError: JSON would not give it back as it is, or the estimator itself would not restore it.
    """
    saved = estimator.save(state)
    if not isinstance(saved, dict) or saved.keys() & {"schema", "identity"}:
        raise EstimatorError(f"the state of {estimator.name} must be a dictionary without the keys schema and identity")
    stored = {"schema": SCHEMA, "identity": estimator.identity(), **saved}
    try:
        plain = json.loads(json.dumps(stored, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise EstimatorError(f"the state of {estimator.name} cannot be saved: {error}. {FORM}") from error
    if plain != stored:
        raise EstimatorError(f"the state of {estimator.name} comes back from JSON as something else. {FORM}")
    try:
        estimator.restore({key: plain[key] for key in saved})
    except (KeyError, TypeError, ValueError) as error:
        raise EstimatorError(f"{estimator.name} would not take its own state back: {error}. {FORM}") from error
    return plain


def unpack(estimator: Estimator, stored: Any, source: str = "the stored prior") -> Any:
    """Return the state that `pack` stored.

    Raises:
        PriorMismatch: another schema; an identity (estimator, variant, G, fail and pass reward) that differs from this
            run's; or damage.
    """
    if not isinstance(stored, dict) or stored.get("schema") != SCHEMA:
        found = stored.get("schema") if isinstance(stored, dict) else type(stored).__name__
        raise PriorMismatch(f"{source}: prior schema {found!r}, this version reads {SCHEMA}. {REMEDY}")
    was, now = stored.get("identity"), estimator.identity()
    if not isinstance(was, dict):
        raise PriorMismatch(f"{source} is damaged: it does not say which estimator it belongs to. {REMEDY}")
    if different := [key for key in sorted({*was, *now}) if was.get(key) != now.get(key)]:
        detail = "; ".join(f"{key} was {was.get(key)!r} and is now {now.get(key)!r}" for key in different)
        raise PriorMismatch(f"{source} belongs to another estimator: {detail}. {REMEDY}")
    try:
        return estimator.restore({key: value for key, value in stored.items() if key not in ("schema", "identity")})
    except (KeyError, TypeError, ValueError, ArithmeticError) as error:
        what = error if type(error) is ValueError else repr(error)
        raise PriorMismatch(f"{source} is damaged ({what}). {REMEDY}") from error


def read(estimator: Estimator, path: str | Path) -> Any:
    """Return the state in a prior.json.

    Raises:
        PriorMismatch: the file is missing, is not JSON, or does not fit the estimator.
    """
    try:
        stored = json.loads(Path(path).read_text())
    except FileNotFoundError as error:
        raise PriorMismatch(f"{path}: no such prior file. {REMEDY}") from error
    except (OSError, ValueError, RecursionError) as error:
        raise PriorMismatch(f"{path} cannot be read as a prior ({error}). {REMEDY}") from error
    return unpack(estimator, stored, source=str(path))


def rehearse(estimator: Estimator) -> None:
    """Try two steps, each with its state stored and restored. Steps are pure, so nothing is left of it.

    Raises:
        UsageError: its code raised an exception, or broke the contract.
    """
    batch = example_batch(estimator.config)
    try:
        state = estimator.initial()
        for _ in range(2):
            state = unpack(estimator, pack(estimator, estimate(estimator, batch, state).state))
    except Exception as error:  # a user's code
        raise UsageError(
            f"{ESTIMATOR_FLAG} {estimator.name} fails on made-up rewards: {type(error).__name__}: {error}"
        ) from error


def example_batch(config: EstimatorConfig) -> Batch:
    """Make a batch of four groups: all pass, one passes, all fail with a response left out, no response is valid."""
    rewards = np.full((4, config.n_samples_per_prompt), config.fail_reward)
    rewards[0], rewards[1, 0] = config.pass_reward, config.pass_reward
    valid = np.ones_like(rewards, dtype=bool)
    valid[2, 0], valid[3] = False, False
    return Batch.of(rewards, valid, ("a", "b", "c", "d"), ("topic", "topic", None, None))
