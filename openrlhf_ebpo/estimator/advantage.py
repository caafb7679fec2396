"""One rollout batch under an estimator, with what the run log and the metrics say about it; values spread over tokens."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from openrlhf_ebpo.estimator.contract import Batch, Estimator, Step
from openrlhf_ebpo.estimator.shrinkage import DEGENERATE, group_mean

if TYPE_CHECKING:
    from openrlhf_ebpo.estimator.shapes import ActionMask, PerGroup, PerResponse, PerToken, Values


RESERVED = ("step", "time")  # of each row of metrics.jsonl


class EstimatorError(RuntimeError):
    """An estimator broke its contract; the message names it."""


@dataclass(frozen=True)
class Estimate:
    """What one rollout batch of M groups of G responses got. All tensors float64.

    rewards, valid, advantages, grpo_advantages: (M, G); group_means, shrinkage: (M, 1); baselines: (M, 1) or (M, G);
    NaN where the estimator has none. `valid` holds 1 for samples that count and 0 for excluded ones, whose advantage
    is 0. `grpo_advantages` is what GRPO's group normalisation would have given, with 0 for constant groups.
    `state` is the estimator's after this batch.
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
    """One step of an estimator computed here.

    Raises:
        EstimatorError: what it gave is not what the contract says.
    """
    given = batch.rewards.clone(), batch.valid.clone()
    step = estimator.step(batch, state)
    check(estimator, batch, step)
    if not all(map(torch.equal, given, (batch.rewards, batch.valid))):
        raise EstimatorError(f"{_who(estimator)}: step() changed the batch that it was given; work on a copy")
    valid = batch.valid.bool()
    advantages = step.advantages.detach().double().masked_fill(~valid, 0.0)
    return observed(batch, advantages, estimator.config.fail_reward, estimator.config.pass_reward, step)


def observed(batch: Batch, advantages: PerResponse, fail: float, success: float, step: Step | None = None) -> Estimate:
    """These advantages (M, G) with the group's statistics, and what GRPO would have given. Without a step (OpenRLHF's own
    estimators) there is neither baseline nor shrinkage."""
    means = group_mean(batch.rewards, batch.valid)
    grpo = grpo_advantages(batch.rewards, batch.valid, success - fail)
    unknown = torch.full_like(means, torch.nan)
    metrics = dict(step.metrics) if step else {}
    if step:
        rescued = (grpo == 0) & (advantages != 0) & batch.valid.bool()
        metrics["ebpo/rescued_fraction"] = (rescued.sum() / batch.valid.sum()).item()
    return Estimate(
        rewards=batch.rewards,
        valid=batch.valid,
        group_means=means,
        shrinkage=unknown if step is None or step.shrinkage is None else step.shrinkage.double(),
        baselines=step.baselines.double() if step else unknown,
        advantages=advantages,
        grpo_advantages=grpo,
        state=step.state if step else None,
        metrics={**metrics, **group_outcomes(batch.rewards, batch.valid, fail, success)},
    )


def check(estimator: Estimator, batch: Batch, step: Step) -> None:
    """Whether the estimator kept its contract.

    Raises:
        EstimatorError: it gave no Step; something that is no tensor of floats, or of another shape; an advantage of a valid
            response that is not finite in float32, as which it is trained on; a metric that is no number.
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
        if not isinstance(value, torch.Tensor) or not value.is_floating_point() or tuple(value.shape) not in shapes:
            shape = f" of shape {tuple(value.shape)}, {value.dtype}" if hasattr(value, "shape") else ""
            raise EstimatorError(
                f"{_who(estimator)}: {name} is a {type(value).__name__}{shape}; wanted is a torch tensor of floats of shape "
                f"{' or '.join(map(str, shapes))}"
            )
    broken = int((~step.advantages.float().isfinite() & batch.valid.bool()).sum())
    if broken:
        raise EstimatorError(f"{_who(estimator)}: the advantages of {broken} valid responses are not finite")
    check_metrics(estimator, step.metrics)


def check_metrics(estimator: Estimator, metrics: dict[str, float]) -> None:
    """Whether these can be logged.

    Raises:
        EstimatorError: no dictionary from names to numbers; the message names the metric.
    """
    if not isinstance(metrics, dict):
        raise EstimatorError(f"{_who(estimator)}: metrics is a {type(metrics).__name__}, it must be a dictionary")
    for name, value in metrics.items():
        if not isinstance(name, str) or name in RESERVED or not isinstance(value, (int, float)):
            raise EstimatorError(
                f"{_who(estimator)}: the metric {name!r} is a {type(value).__name__}; names are strings other than "
                f"{' and '.join(RESERVED)}, and values Python's numbers (tensor.item())"
            )


def _who(estimator: Estimator) -> str:
    return f"--advantage_estimator {estimator.name}"


def grpo_advantages(rewards: PerResponse, valid: PerResponse, reward_range: float) -> PerResponse:
    """GRPO's (r − μ) / (std + 1e-9) within each group, (M, G); 0 where all rewards of the group are equal to
    1e-6 of the range (rounding would otherwise blow up: eight times 0.3 can give ±0.9)."""
    centred = (rewards - group_mean(rewards, valid)) * valid
    sizes = valid.sum(-1, keepdim=True)
    std = ((centred**2).sum(-1, keepdim=True) / (sizes - 1).clamp(min=1)).sqrt()
    constant = centred.abs().amax(-1, keepdim=True) <= DEGENERATE * reward_range
    return torch.where(constant, 0.0, centred / (std + 1e-9))


def group_outcomes(
    rewards: PerResponse, valid: PerResponse, fail_reward: float, pass_reward: float
) -> dict[str, float]:
    """Fractions of groups whose valid rewards all equal the fail, or the pass, value (to 1e-6 of the range)."""
    tolerance = DEGENERATE * (pass_reward - fail_reward)
    ignored = valid == 0
    groups = (~ignored.all(-1)).sum().clamp(min=1)

    def fraction(value: float) -> float:
        everywhere = (((rewards - value).abs() <= tolerance) | ignored).all(-1) & ~ignored.all(-1)
        return (everywhere.sum() / groups).item()

    return {"ebpo/all_fail_fraction": fraction(fail_reward), "ebpo/all_pass_fraction": fraction(pass_reward)}


def last_action(action_mask: ActionMask) -> torch.Tensor:
    """Index of the last action token of each response, (B, 1); the last position where there is none."""
    length = action_mask.size(1)
    numbers = torch.arange(1, length + 1, dtype=torch.int32, device=action_mask.device)
    return ((action_mask.int() * numbers).amax(1, keepdim=True).long() - 1) % length


def token_returns(
    values: Values, action_mask: ActionMask, kl: PerToken | None = None, kl_coef: float = 0.0
) -> tuple[PerToken, Values]:
    """Spread one value per response over its tokens, minus the KL still to come: upstream's undiscounted return.

    Args:
        values: (B,) finite advantages. action_mask: (B, A). kl: (B, A) per-token KL, or None where it is not in the
            reward.

    Returns:
        returns (B, A) float32: the value at every position up to the last action token and 0 after it; with KL, the
        reversed cumulative sum of value-at-the-end − kl_coef · kl over action tokens. And the sum of each response's
        per-token rewards, (B,).
    """
    values = values.to(torch.float32)
    if kl is None:
        # Floats (exact up to 2^24 tokens) that turn in place into 1 up to the last action and 0 after it, then into
        # the result: half the time of torch.where. + 0.0 makes 0 of the -0.0 of negative values.
        numbers = torch.arange(1, action_mask.size(1) + 1, dtype=torch.float32, device=action_mask.device)
        last = (action_mask * numbers).amax(1, keepdim=True)
        return numbers.repeat(len(values), 1).le_(last).mul_(values[:, None]).add_(0.0), values
    rewards = (-kl_coef * kl).scatter_add_(1, last_action(action_mask), values[:, None].to(kl.dtype))
    totals = rewards.sum(-1)
    returns = rewards.mul_(action_mask).flip(1).cumsum_(1).flip(1)
    return returns, totals
