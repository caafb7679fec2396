"""Rewards of a rollout batch -> prior, baselines and normalised advantages, one value a response.

One step of arXiv 2602.05165, Algorithm 1: update the moments with this batch, then use them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from openrlhf_ebpo.estimator.config import EBPOConfig
from openrlhf_ebpo.estimator.prior import Prior
from openrlhf_ebpo.estimator.shrinkage import DEGENERATE, group_mean, shrinkage_weight, shrunk_baseline, standardise


@dataclass(frozen=True)
class Estimate:
    """What one rollout batch of M groups of G responses got. All tensors float64.

    rewards, valid, advantages, grpo_advantages: (M, G); group_means, shrinkage, baselines: (M, 1).
    `valid` holds 1 for samples that count and 0 for excluded ones, whose advantage is 0.
    `grpo_advantages` is what GRPO's group normalisation would have given, with 0 for constant groups.
    """

    rewards: torch.Tensor
    valid: torch.Tensor
    group_means: torch.Tensor
    shrinkage: torch.Tensor
    baselines: torch.Tensor
    advantages: torch.Tensor
    grpo_advantages: torch.Tensor
    prior: Prior

    def metrics(self, config: EBPOConfig) -> dict[str, float]:
        """The `ebpo/*` metrics of this batch; fractions of groups count groups with a valid sample."""
        responses = self.valid.sum()
        rescued = (self.grpo_advantages == 0) & (self.advantages != 0) & self.valid.bool()
        return {
            "ebpo/shrinkage": _mean_over_groups(self.shrinkage, self.valid),
            "ebpo/prior_mean": self.prior.mean,
            "ebpo/within_variance": self.prior.within_variance,
            "ebpo/between_variance": self.prior.between_variance,
            "ebpo/prior_count": self.prior.rewards.count,
            "ebpo/rescued_fraction": (rescued.sum() / responses).item(),
            **group_outcomes(self.rewards, self.valid, config.fail_reward, config.pass_reward),
        }


def estimate(rewards: torch.Tensor, valid: torch.Tensor, prior: Prior, config: EBPOConfig) -> Estimate:
    """One step of EBPO, preset `paper`.

    Args:
        rewards: (M, G) rewards after length penalties and clipping; entries that are not valid are ignored.
        valid: (M, G) bool, False for samples without a reward or without action tokens.
        prior: the prior before this batch.

    Raises:
        ValueError: no sample of the batch is valid.
    """
    if not valid.any():
        raise ValueError("no sample of this rollout batch is valid: nothing to estimate from")
    rewards = torch.where(valid, rewards.double(), 0.0)
    mask = valid.double()
    means = group_mean(rewards, mask)
    sizes = mask.sum(-1, keepdim=True)
    alive = sizes > 0

    prior = prior.update(rewards[valid].cpu().numpy(), means[alive].cpu().numpy())
    shrinkage = shrinkage_weight(prior.within_variance, prior.between_variance, sizes.clamp(min=1), config.reward_range)
    baselines = shrunk_baseline(means, prior.mean, shrinkage)
    advantages = standardise((rewards - baselines) * mask, mask, config.reward_range)
    present = rewards[valid]
    if present.amax() - present.amin() <= DEGENERATE * config.reward_range:
        # groups of unequal size have unequal S: standardising would blow their tiny differences up
        advantages = torch.zeros_like(advantages)
    return Estimate(
        rewards=rewards,
        valid=mask,
        group_means=means,
        shrinkage=shrinkage,
        baselines=baselines,
        advantages=advantages,
        grpo_advantages=grpo_advantages(rewards, mask, config.reward_range),
        prior=prior,
    )


def grpo_advantages(rewards: torch.Tensor, valid: torch.Tensor, reward_range: float) -> torch.Tensor:
    """GRPO's (r − μ) / (std + 1e-9) within each group, (M, G); 0 where all rewards of the group are equal to
    1e-6 of the range (rounding would otherwise blow up: eight times 0.3 can give ±0.9)."""
    centred = (rewards - group_mean(rewards, valid)) * valid
    sizes = valid.sum(-1, keepdim=True)
    std = ((centred**2).sum(-1, keepdim=True) / (sizes - 1).clamp(min=1)).sqrt()
    constant = centred.abs().amax(-1, keepdim=True) <= DEGENERATE * reward_range
    return torch.where(constant, 0.0, centred / (std + 1e-9))


def group_outcomes(
    rewards: torch.Tensor, valid: torch.Tensor, fail_reward: float, pass_reward: float
) -> dict[str, float]:
    """Fractions of groups whose valid rewards all equal the fail, or the pass, value (to 1e-6 of the range)."""
    tolerance = DEGENERATE * (pass_reward - fail_reward)
    ignored = valid == 0
    groups = (~ignored.all(-1)).sum().clamp(min=1)

    def fraction(value: float) -> float:
        everywhere = (((rewards - value).abs() <= tolerance) | ignored).all(-1) & ~ignored.all(-1)
        return (everywhere.sum() / groups).item()

    return {"ebpo/all_fail_fraction": fraction(fail_reward), "ebpo/all_pass_fraction": fraction(pass_reward)}


def _mean_over_groups(values: torch.Tensor, valid: torch.Tensor) -> float:
    alive = valid.sum(-1, keepdim=True) > 0
    return values[alive].mean().item()


def last_action(action_mask: torch.Tensor) -> torch.Tensor:
    """Index of the last action token of each response, (B, 1); the last position where there is none."""
    length = action_mask.size(1)
    numbers = torch.arange(1, length + 1, dtype=torch.int32, device=action_mask.device)
    return ((action_mask.int() * numbers).amax(1, keepdim=True).long() - 1) % length


def token_returns(
    values: torch.Tensor, action_mask: torch.Tensor, kl: torch.Tensor | None = None, kl_coef: float = 0.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Spread one value a response over its tokens, minus the KL still to come: upstream's undiscounted return.

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
