"""One rollout batch under an estimator, with what the run log and the metrics say about it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from openrlhf_ebpo.estimator.contract import Batch, Estimator, Step
from openrlhf_ebpo.estimator.shrinkage import DEGENERATE, group_mean

if TYPE_CHECKING:
    from openrlhf_ebpo.estimator.contract import PerGroup, PerResponse


RESERVED = ("step", "time")  # of each row of metrics.jsonl


class EstimatorError(RuntimeError):
    """An estimator broke its contract; the message names it."""


@dataclass(frozen=True)
class Estimate:
    """The advantages of one rollout batch of M groups of G responses. All arrays float64, `valid` bool.

    rewards, valid, advantages, grpo_advantages: (M, G); group_means, shrinkage: (M, 1); baselines: (M, 1) or (M, G);
    NaN where the estimator has none. An excluded sample is not valid and has advantage 0. `grpo_advantages` is what
    GRPO's group normalisation would have given, with 0 for constant groups. `state` is the estimator's after this
    batch.
    """

    rewards: PerResponse
    valid: PerResponse
    group_means: PerGroup
    shrinkage: PerGroup
    baselines: PerGroup | PerResponse
    advantages: PerResponse
    grpo_advantages: PerResponse
    state: Any = None
    metrics: dict[str, float] = field(default_factory=dict)


def estimate(estimator: Estimator, batch: Batch, state: Any) -> Estimate:
    """Compute one step of an estimator of this package.

    Raises:
        EstimatorError: the step breaks the contract.
    """
    given = batch.rewards.copy(), batch.valid.copy()
    step = estimator.step(batch, state)
    check_estimate(estimator, batch, step)
    if not all(map(np.array_equal, given, (batch.rewards, batch.valid))):
        raise EstimatorError(f"{_who(estimator)}: step() changed the batch that it was given; work on a copy")
    advantages = np.where(batch.valid, np.asarray(step.advantages, np.float64), 0.0)
    return with_statistics(batch, advantages, estimator.config.fail_reward, estimator.config.pass_reward, step)


def with_statistics(
    batch: Batch, advantages: PerResponse, fail: float, success: float, step: Step | None = None
) -> Estimate:
    """Add the groups' statistics, and what GRPO would have given, to advantages (M, G). Without a step (OpenRLHF's own
    estimators) there is neither baseline nor shrinkage."""
    means = group_mean(batch.rewards, batch.valid)
    grpo = grpo_advantages(batch.rewards, batch.valid, success - fail)
    unknown = np.full_like(means, np.nan)
    alive = batch.valid.any(-1)

    def fraction_all(value: float) -> float:
        """Compute the fraction of groups whose valid rewards all equal the value, to 1e-6 of the range."""
        everywhere = ((np.abs(batch.rewards - value) <= DEGENERATE * (success - fail)) | ~batch.valid).all(-1) & alive
        return float(everywhere.sum() / max(alive.sum(), 1))

    metrics = dict(step.metrics) if step else {}
    if step:
        rescued = (grpo == 0) & (advantages != 0) & batch.valid
        metrics["ebpo/rescued_fraction"] = float(rescued.sum() / batch.valid.sum())
    metrics |= {"ebpo/all_fail_fraction": fraction_all(fail), "ebpo/all_pass_fraction": fraction_all(success)}
    return Estimate(
        rewards=batch.rewards,
        valid=batch.valid,
        group_means=means,
        shrinkage=unknown if step is None or step.shrinkage is None else np.asarray(step.shrinkage, np.float64),
        baselines=np.asarray(step.baselines, np.float64) if step else unknown,
        advantages=advantages,
        grpo_advantages=grpo,
        state=step.state if step else None,
        metrics=metrics,
    )


def check_estimate(estimator: Estimator, batch: Batch, step: Step) -> None:
    """Check a step against the contract of estimators.

    Raises:
        EstimatorError: the result is not a Step; an array is not of floats, or has another shape; an advantage of a
            valid response that is not finite in float32, as which it is trained on; a metric that is not a number.
    """
    if not isinstance(step, Step):
        raise EstimatorError(f"{_who(estimator)}: step() gave {type(step).__name__}, it must give a Step")
    per_response, per_group = tuple(batch.rewards.shape), (len(batch.rewards), 1)
    for name, shapes in (
        ("advantages", [per_response]),
        ("baselines", [per_group, per_response]),
        *([("shrinkage", [per_group])] if step.shrinkage is not None else []),
    ):
        value = getattr(step, name)
        if not isinstance(value, np.ndarray) or value.dtype.kind != "f" or value.shape not in shapes:
            shape = f" of shape {tuple(value.shape)}, {value.dtype}" if hasattr(value, "shape") else ""
            raise EstimatorError(
                f"{_who(estimator)}: {name} is a {type(value).__name__}{shape}; expected a numpy array of floats of "
                f"shape {' or '.join(map(str, shapes))}"
            )
    with np.errstate(over="ignore"):
        broken = int((~np.isfinite(step.advantages.astype(np.float32)) & batch.valid).sum())
    if broken:
        raise EstimatorError(f"{_who(estimator)}: the advantages of {broken} valid responses are not finite")
    if not isinstance(step.metrics, dict):
        raise EstimatorError(f"{_who(estimator)}: metrics is a {type(step.metrics).__name__}, it must be a dictionary")
    for name, value in step.metrics.items():
        if not isinstance(name, str) or name in RESERVED or not isinstance(value, (int, float)):
            raise EstimatorError(
                f"{_who(estimator)}: the metric {name!r} is a {type(value).__name__}; names are strings other than "
                f"{' and '.join(RESERVED)}, and values Python's numbers (array.item())"
            )


def _who(estimator: Estimator) -> str:
    return f"--advantage_estimator {estimator.name}"


def grpo_advantages(rewards: PerResponse, valid: PerResponse, reward_range: float) -> PerResponse:
    """Compute GRPO's (r − μ) / (std + 1e-9) within each group, (M, G); 0 where all rewards of the group are equal to
    1e-6 of the range (rounding would otherwise blow up: eight times 0.3 can give ±0.9)."""
    centred = (rewards - group_mean(rewards, valid)) * valid
    freedom = np.maximum(valid.sum(-1, keepdims=True) - 1, 1)
    std = np.sqrt((centred**2).sum(-1, keepdims=True) / freedom)
    constant = np.abs(centred).max(-1, keepdims=True) <= DEGENERATE * reward_range
    return np.where(constant, 0.0, centred / (std + 1e-9))
