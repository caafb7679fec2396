"""The contract of an advantage estimator: rewards of a rollout batch in; baselines, advantages and the next state out.

M is the number of prompts (groups) in a rollout batch, G the number of responses per prompt. An estimator is pure: the
same batch and state give the same step, and neither is changed. Its state is saved with every checkpoint and restored.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from openrlhf_ebpo.estimator.config import EstimatorConfig

PerResponse: TypeAlias = np.ndarray  # (M, G), float64 unless another type is named
PerGroup: TypeAlias = np.ndarray  # (M, 1)


@dataclass(frozen=True)
class Batch:
    """One trained rollout batch. Rows are groups. Arrays are numpy's; torch.from_numpy makes a tensor of one.

    rewards: (M, G) float64, after length penalties and --reward.clip_range; 0 where not valid.
    valid: (M, G) bool, False where the reward failed or the response has no action tokens.
    prompt_ids: M strings, the same for the same prompt and label in every run.
    clusters: M strings, or None for a prompt without a cluster (--data.cluster_key).
    lengths: (M, G) float64, action tokens of each response.
    score_weights: (M, G) float64, Σ_t (1 − π_old(y_t))² over its action tokens: how far one update along its score
        moves the policy.
    """

    rewards: PerResponse
    valid: PerResponse
    prompt_ids: tuple[str, ...]
    clusters: tuple[str | None, ...]
    lengths: PerResponse
    give_score_weights: Callable[[], ArrayLike] = field(repr=False)

    @cached_property
    def score_weights(self) -> PerResponse:
        return _shaped(self.give_score_weights(), self.rewards.shape, "score_weights")

    @classmethod
    def of(
        cls,
        rewards: ArrayLike,
        valid: ArrayLike,
        prompt_ids=(),
        clusters=(),
        lengths: ArrayLike | None = None,
        score_weights: ArrayLike | Callable[[], ArrayLike] | None = None,
    ) -> Batch:
        """Make a batch from rewards (M, G), whose invalid entries may hold anything, and valid (M, G) bool; ones for
        what is not given. score_weights may be a function that gives them: it is called when they are first read.

        Raises:
            ValueError: the shapes differ, or nothing is valid.
        """
        rewards, valid = np.asarray(rewards, np.float64), np.array(valid, bool)
        if rewards.shape != valid.shape or rewards.ndim != 2:
            raise ValueError(f"rewards {rewards.shape} and valid {valid.shape} must both be (M, G)")
        if not valid.any():
            raise ValueError("no sample of this rollout batch is valid: nothing to estimate from")
        known = None if callable(score_weights) else _shaped(score_weights, rewards.shape, "score_weights")
        return cls(
            np.where(valid, rewards, 0.0),
            valid,
            tuple(prompt_ids),
            tuple(clusters),
            _shaped(lengths, rewards.shape, "lengths"),
            score_weights if known is None else lambda: known,
        )


def _shaped(values: ArrayLike | None, shape: tuple[int, ...], name: str) -> np.ndarray:
    values = np.ones(shape) if values is None else np.array(values, np.float64)
    if values.shape != shape:
        raise ValueError(f"{name} {values.shape} must be {shape}")
    return values


@dataclass(frozen=True)
class Step:
    """Baselines and advantages of a batch, as numpy arrays of floats.

    advantages: (M, G), one per response, as training uses them (before any KL penalty); what invalid responses get is
        ignored. baselines: (M, 1) or (M, G), what was taken from the rewards, for the run log.
    state: the state after this batch.
    shrinkage: (M, 1), weight of the prior in the baseline; None without a prior.
    metrics: numbers of this step for metrics.jsonl, by name (`my/name`).
    """

    baselines: PerGroup | PerResponse
    advantages: PerResponse
    state: Any
    shrinkage: PerGroup | None = None
    metrics: dict[str, float] = field(default_factory=dict)


class Estimator:
    """Base of all estimators computed here. A subclass has `step`, and `initial` if it keeps a state.

    A state is a dictionary of what JSON can hold; an estimator whose state is something else also has `save` and
    `restore`.

    Attributes:
        centred: the baseline is a mean of rewards, or the advantages are centred afterwards. Such an estimator pushes
            the failures of hard prompts down, which only on-policy samples bring back: with stale ones it collapses
            (docs/estimator.md), so training warns.

    Args:
        config: the settings, checked.
        name: what --advantage_estimator was given.

    Raises:
        ValueError: in a subclass, for settings that it cannot work with; the message names the flag.
    """

    centred: bool = True

    def __init__(self, config: EstimatorConfig, name: str = ""):
        self.config = config
        self.name = name or type(self).__name__.lower()

    def initial(self) -> Any:
        """Return the state before any batch."""
        return {}

    def step(self, batch: Batch, state: Any) -> Step:
        """Compute baselines and advantages of this batch, and the state after it."""
        raise NotImplementedError(f"{type(self).__name__} has no step(batch, state)")

    def save(self, state: Any) -> dict:
        """Return the state as a dictionary of what JSON can hold."""
        return state

    def restore(self, saved: dict) -> Any:
        """Return the state that `save` made `saved` of.

        Raises:
            KeyError, TypeError, ValueError: it is damaged.
        """
        expected = self.initial().keys()
        if saved.keys() != expected:
            raise ValueError(f"it has {sorted(saved)}, and {self.name} keeps {sorted(expected)}")
        return saved

    def identity(self) -> dict:
        """Return the settings that a stored state must agree with, as a dictionary of what JSON can hold."""
        depends_on = ("n_samples_per_prompt", "fail_reward", "pass_reward")
        return {"estimator": self.name, **{name: getattr(self.config, name) for name in depends_on}}
