"""EBPOExperienceMaker: the one override of upstream's advantage stage.

An estimator of the registry that has code here (`ebpo`, a user's own) is computed here, vectorised; OpenRLHF's own go
through its own method, whose result is only read, for the run log. Either way `metrics` and `rollouts` describe the
last batch.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
from typing import TypeAlias

import numpy as np
import torch

from openrlhf_ebpo.estimator import registry
from openrlhf_ebpo.estimator.advantage import Estimate, estimate, with_statistics
from openrlhf_ebpo.estimator.config import EstimatorConfig
from openrlhf_ebpo.estimator.contract import Batch
from openrlhf_ebpo.rewards.processes.reward_values import RewardError
from openrlhf_ebpo.run.batches import data_parallel_ranks
from openrlhf_ebpo.upstream.controller import mismatch, step_notices
from openrlhf_ebpo.upstream.controller.guarded_samples import INFO_KEY as ERROR_KEY
from openrlhf_ebpo.upstream.controller.prompts import INFO_KEY as CLUSTER_KEY
from openrlhf_ebpo.upstream.controller.rollouts import Rollouts
from openrlhf_ebpo.upstream.phases import ADVANTAGES, CHECKING_SAMPLES, LOG_PROBS

logger = logging.getLogger(__name__)

Values: TypeAlias = torch.Tensor  # (B,) float32, one per response of a micro-batch
PerToken: TypeAlias = torch.Tensor  # (B, A) float32, A positions of the action mask
ActionMask: TypeAlias = torch.Tensor  # (B, A) bool or integer, 1 for action tokens


class EBPOExperienceMaker:
    """Mixin over RemoteExperienceMaker.

    Attributes:
        estimator: the one computed here, None for OpenRLHF's own.
        state: the estimator's state after the last batch.
        metrics: `ebpo/*`, `mismatch/*` and the estimator's own metrics of the last batch.
        rollouts: the last batch, one row per response, for the run log.
        unread: of these responses, as step_notices.is_unread says.
        in_phase: of the trainer that says what it does (phases.py).
    """

    in_phase = staticmethod(contextlib.nullcontext)

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.config = EstimatorConfig.from_args(self.args)
        self.estimator = registry.build(self.advantage_estimator, self.config)
        self.state = self.estimator.initial() if self.estimator else None
        self.metrics: dict[str, float] = {}
        self.rollouts: Rollouts | None = None

    @torch.no_grad()
    def make_experience_batch(self, rollout_samples):
        self.rollouts = None  # frees the tensors that it keeps of the batch before
        with self.in_phase(CHECKING_SAMPLES):
            # upstream's batching takes tensors only, so what is none is taken out of the samples here
            self._errors = [sample.info.pop(ERROR_KEY, [""])[0] for sample in rollout_samples]
            self._clusters = [sample.info.pop(CLUSTER_KEY, [None])[0] for sample in rollout_samples]
            self.unread = list(map(step_notices.is_unread, rollout_samples))
            trained = self.args.algo.advantage.is_correction_level != "off"
            self._rollout_log_probs = mismatch.rollout_log_probs(rollout_samples, keep=trained)
            if self.estimator:
                _raise_if_all_failed(self._errors)
            complete_samples(rollout_samples)
        return super().make_experience_batch(rollout_samples)

    def split_rollout_samples(self, rollout_samples):
        """Cut a batch into micro-batches of one size, as many for every rank: upstream's own cut gives ranks unequal
        numbers of responses, and they wait for each other forever."""
        from openrlhf.trainer.ray.launcher import RayActorGroup

        models = (self.critic_model_group, self.reward_model_group, self.initial_model_group)
        groups = [model for model in models if isinstance(model, RayActorGroup)]
        sizes = [len(group._actor_handlers) // group.duplicate_actors for group in groups]
        # parts of a batch: the least number that the data-parallel ranks of every model divide
        rollout, ranks = self.args.rollout, math.lcm(data_parallel_ranks(self.args), *sizes)
        size = micro_batch_size(len(rollout_samples), ranks, rollout.micro_batch_size)
        if ranks == 1 or self.args.train.dynamic_batch_enable or size is None:
            return super().split_rollout_samples(rollout_samples)
        requested, rollout.micro_batch_size = rollout.micro_batch_size, size
        try:
            return super().split_rollout_samples(rollout_samples)
        finally:
            rollout.micro_batch_size = requested

    def make_experience(self, samples_list):
        with self.in_phase(LOG_PROBS):
            return super().make_experience(samples_list)

    @torch.no_grad()
    def compute_advantages_and_returns(self, experiences):
        with self.in_phase(ADVANTAGES):
            rollouts = Rollouts.before_shaping(experiences, self._errors, self._clusters)
            if self.estimator:
                result = self._estimate(experiences, rollouts)
            else:
                experiences = super().compute_advantages_and_returns(experiences)
                result = self._observe(experiences, rollouts)
            self.rollouts = rollouts.with_result(result)
            failed = sum(map(bool, self._errors)) / len(self._errors)
            self.metrics = {**result.metrics, "ebpo/reward_error_fraction": failed}
            self.metrics |= step_notices.step_metrics(result, self.unread)
            self.metrics |= mismatch.metrics(mismatch.differences(experiences, self._rollout_log_probs))
            return experiences

    def _estimate(self, experiences, rollouts: Rollouts) -> Estimate:
        rewards, valid = self._rewards(experiences, rollouts)
        result = estimate(self.estimator, self._batch(rewards, valid, rollouts), self.state)
        self.state = result.state

        # an excluded sample is logged with the mean of the others, which leaves the logged mean as it is
        logged = np.where(result.valid, result.rewards, result.rewards[result.valid].mean())
        deviations = (result.rewards - result.group_means) * result.valid
        freedom = np.maximum(result.valid.sum(-1, keepdims=True) - 1, 1)
        stds = np.broadcast_to(np.sqrt((deviations**2).sum(-1, keepdims=True) / freedom), logged.shape)  # unbiased
        advantages, logged, stds = (torch.tensor(c) for c in (result.advantages, logged, stds))
        columns = (advantages, valid, logged.float(), stds.float())
        sizes = [len(experience.rewards) for experience in experiences]
        back = rollouts.order.argsort()
        pieces = (column.reshape(-1)[back].split(sizes) for column in columns)
        for experience, advantage, ok, reward, std in zip(experiences, *pieces, strict=True):
            self._fill(experience, advantage, ok)
            experience.info["reward"] = reward
            experience.info["group_reward_std"] = std
        return result

    def _batch(self, rewards: torch.Tensor, valid: torch.Tensor, rollouts: Rollouts) -> Batch:
        size = self.config.n_samples_per_prompt
        return Batch.of(
            rewards.double().numpy(),
            valid.numpy(),
            rollouts.prompt_ids(every=size),
            rollouts.clusters[::size],
            rollouts.action_counts.reshape(-1, size).numpy(),
            lambda: rollouts.score_weights().reshape(-1, size).numpy(),
        )

    def _rewards(self, experiences, rollouts: Rollouts) -> tuple[torch.Tensor, torch.Tensor]:
        """Rewards after length penalties and explicit clipping, and which of them count; both (M, G)."""
        from openrlhf.trainer.ppo_utils.length_penalty import apply_length_penalties

        for experience in experiences:
            # a copy: penalties are added in place, and what Ray delivers may be shared memory
            experience.rewards = experience.rewards.reshape(-1).to(torch.float32, copy=True)
        apply_length_penalties(experiences, self.args)
        rewards = torch.cat([experience.rewards for experience in experiences])[rollouts.order]
        if self.config.reward_clip_range:
            rewards = rewards.clamp(*self.config.reward_clip_range)
        # by the raw reward too: a length penalty can put a number where a reward failed
        valid = rollouts.raw_rewards.isfinite() & rewards.isfinite() & (rollouts.action_counts > 0)
        if not valid.any():
            raise RuntimeError("no response of this step has both a finite reward and action tokens")
        shape = (-1, self.args.rollout.n_samples_per_prompt)
        return rewards.reshape(shape), valid.reshape(shape)

    def _fill(self, experience, advantages: torch.Tensor, valid: torch.Tensor) -> None:
        """Advantages and returns (separate tensors) of one micro-batch; an excluded sample trains no token."""
        if not valid.all():
            experience.action_mask = experience.action_mask * valid[:, None].to(experience.action_mask.dtype)
            for key in ("kl", "logprobs_diff"):  # upstream's mean over no token is NaN
                experience.info[key] = torch.where(valid, experience.info[key], 0.0)
        kl_in_reward = self.initial_model_group is not None and not self.args.algo.kl.use_loss and self.kl_ctl.value > 0
        if not kl_in_reward:
            experience.kl = None
        experience.returns, experience.info["return"] = token_returns(
            advantages, experience.action_mask, experience.kl, self.kl_ctl.value
        )
        experience.kl = None  # before the copy, which can reuse its memory
        experience.advantages = experience.returns.clone()

    def _observe(self, experiences, rollouts: Rollouts) -> Estimate:
        """Return the result of OpenRLHF's estimator in the same form: a response's advantage is the mean over its
        tokens."""

        def in_order(values):
            values = torch.cat([v.reshape(-1).double() for v in values])[rollouts.order]
            return values.reshape(-1, self.config.n_samples_per_prompt)

        rewards = in_order(e.rewards for e in experiences)
        advantages = in_order(
            (e.advantages * e.action_mask).sum(-1) / e.action_mask.sum(-1).clamp(min=1) for e in experiences
        )
        batch = self._batch(rewards, torch.ones_like(rewards, dtype=torch.bool), rollouts)
        return with_statistics(batch, advantages.numpy(), self.config.fail_reward, self.config.pass_reward)


def micro_batch_size(responses: int, ranks: int, limit: int) -> int | None:
    """Return the largest size up to `limit` that divides the responses of a rank; None if they do not divide among
    ranks."""
    share, rest = divmod(responses, ranks)
    if rest or not share:
        return None
    return max(size for size in range(1, min(limit, share) + 1) if share % size == 0)


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
        numbers = torch.arange(1, action_mask.size(1) + 1, dtype=torch.float32, device=action_mask.device)
        last = (action_mask * numbers).amax(1, keepdim=True)
        # In place, this takes half the time of torch.where. Numbers are exact up to 2^24 tokens.
        returns = numbers.repeat(len(values), 1)
        returns.le_(last)  # 1 up to the last action, 0 after it
        returns.mul_(values[:, None])
        returns.add_(0.0)  # turns the -0.0 of negative values into 0
        return returns, values
    numbers = torch.arange(1, action_mask.size(1) + 1, dtype=torch.int32, device=action_mask.device)
    last = ((action_mask.int() * numbers).amax(1, keepdim=True).long() - 1) % len(numbers)  # without an action: the end
    rewards = torch.scatter_add(-kl_coef * kl, 1, last, values[:, None].to(kl.dtype))
    from_the_end = (rewards * action_mask).flip(1)
    return torch.cumsum(from_the_end, 1).flip(1), rewards.sum(-1)


def complete_samples(samples) -> None:
    """Give every sample the same info keys, and a score if one has it, as upstream's batching needs. A failed sample
    lacks what its reward function would have logged, and a log without a number is left out: it gets the mean of the
    others, which leaves the logged means as they were. Nothing reads scores from here on."""
    if any(sample.scores is not None for sample in samples):
        for sample in samples:
            if sample.scores is None:
                sample.scores = torch.full_like(sample.rewards, torch.nan, dtype=torch.float32)
    keys = dict.fromkeys(itertools.chain.from_iterable(sample.info for sample in samples))
    for key in keys:
        there = [sample.info[key].reshape(-1) for sample in samples if key in sample.info]
        if len(there) == len(samples) and bool(torch.cat(there).isfinite().all()):
            continue  # one vectorised check: sample by sample it takes seconds for 16,000 of them
        known = [s.info[key].float() for s in samples if key in s.info and bool(s.info[key].float().isfinite().all())]
        mean = torch.stack(known).mean(0) if known else torch.zeros(1)
        for sample in samples:
            if key not in sample.info or not bool(sample.info[key].float().isfinite().all()):
                sample.info[key] = mean.clone()
    for sample in samples:  # in one order: upstream adds up the ranks' metrics by their places
        sample.info = {key: sample.info[key] for key in keys}


def _raise_if_all_failed(errors: list[str]) -> None:
    failed = [error for error in errors if error]
    if len(failed) == len(errors):
        counts = {error: failed.count(error) for error in dict.fromkeys(failed)}
        lines = "\n".join(f"  {count} x {error}" for error, count in list(counts.items())[:5])
        raise RewardError(f"the reward of every response of this step failed ({len(errors)} responses):\n{lines}")
    if failed:
        logger.warning("%d of %d rewards failed and are left out; first: %s", len(failed), len(errors), failed[0])
