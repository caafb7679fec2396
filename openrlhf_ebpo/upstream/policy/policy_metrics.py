"""Metrics of the policy actors: entropy, and how far one step moves the policy.

Entropy is computed without gradient, a few rows of logits at a time, from the training forward pass's own
logits: nothing the size of the logit tensor is allocated a second time.
"""

from __future__ import annotations

import torch

from openrlhf_ebpo.run.catalogue import KL_PER_STEP

ENTROPY_ROWS = 256  # rows of logits per chunk: 256 x 152,000 in float32 is 156 MB
# KL_PER_STEP is estimated on this share of a rank's responses, a forward pass each: 1 to 2 % of ppo_train's
# time, but on 8 responses at least and on no more than 4 micro-batches
KL_SHARE, KL_RESPONSES, KL_MICRO_BATCHES = 1 / 16, 8, 4


@torch.no_grad()
def entropy_sum(logits: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Sum over tokens of −Σ p log p, in nats. logits: (..., V) float32, mask: (...)."""
    rows = logits.reshape(-1, logits.shape[-1])
    chosen = mask.reshape(-1).nonzero().flatten()
    total = logits.new_zeros((), dtype=torch.float64)
    for chunk in chosen.split(ENTROPY_ROWS):
        total += torch.special.entr(rows[chunk].softmax(-1)).sum(dtype=torch.float64)
    return total


def k3(log_p_before: torch.Tensor, log_p_after: torch.Tensor) -> torch.Tensor:
    """Schulman's estimate of KL(before ‖ after) on tokens sampled before: r − 1 − log r, r = after / before."""
    log_ratio = log_p_after.double() - log_p_before.double()
    return log_ratio.expm1() - log_ratio


class PolicyMetrics:
    """Mixin over ActorPPOTrainer: `policy/entropy` and KL_PER_STEP."""

    def __init__(self, strategy, actor, *args, **kwargs):
        super().__init__(strategy, actor, *args, **kwargs)
        self._entropy = None
        self._measures = not self.args.logger.no_policy_metrics
        if self._measures:
            actor.register_forward_hook(self._add_entropy, with_kwargs=True)

    def ppo_train(self, kl_ctl: float):
        if not self._measures or self.strategy.ring_attn_group is not None:  # there a rank sees parts of sequences
            return super().ppo_train(kl_ctl)
        self._entropy = torch.zeros(2, dtype=torch.float64)
        status = super().ppo_train(kl_ctl)
        entropy, self._entropy = self._entropy, None
        measured = {"policy/entropy": self._mean_over_ranks(entropy)}
        if not getattr(self.actor, "is_vlm", False):  # its images are not kept for a further forward pass
            measured[KL_PER_STEP] = self._mean_over_ranks(self._step_kl())
        return {**status, **{name: value for name, value in measured.items() if value is not None}}

    def _add_entropy(self, actor, args, kwargs, output):
        """Forward hook: only the training forward passes ask for `return_output` and have gradients."""
        if self._entropy is None or not kwargs.get("return_output") or not torch.is_grad_enabled():
            return
        logits = output[1]["logits"].detach()
        sequences, action_mask = args[0], args[1]
        mask = torch.zeros_like(sequences)
        mask[:, -action_mask.shape[1] - 1 : -1] = action_mask
        if actor.packing_samples:
            mask = mask[kwargs["attention_mask"].bool()][None]
        self._entropy += torch.stack([entropy_sum(logits, mask).cpu(), mask.sum().double().cpu()])

    @torch.no_grad()
    def _step_kl(self) -> torch.Tensor:
        """Sum of k3 and number of tokens, on a few evenly spaced ones of the step's own responses."""
        from openrlhf.trainer.ppo_utils.experience import make_experience_batch

        total = torch.zeros(2, dtype=torch.float64)
        items = self.replay_buffer.items
        # the micro-batch size of training; --train.dynamic_batch_enable sets it to 1, as one response always
        # fits, and ignores --train.micro_batch_size
        size = self.replay_buffer.sample_batch_size
        device = torch.cuda.current_device()
        # under ZeRO-3 every rank must run the same number of forward passes
        count = -int(self.strategy.all_reduce(-kl_responses(len(items), size), op="max"))
        self.actor.eval()
        for batch in torch.linspace(0, len(items) - 1, count).long().split(size) if count else ():
            chosen = [items[place] for place in batch.tolist()]
            experience = make_experience_batch(chosen, self.args.ds.packing_samples).to_device(device)
            after = self.actor(experience.sequences, experience.action_mask, experience.attention_mask)
            mask = experience.action_mask
            kl = (k3(experience.action_log_probs, after) * mask).sum()
            total += torch.stack([kl.cpu(), mask.sum().double().cpu()])
        self.actor.train()
        return total

    def _mean_over_ranks(self, sum_and_count: torch.Tensor) -> float | None:
        """None if nothing was measured."""
        total, count = self.strategy.all_reduce(sum_and_count, op="sum").tolist()
        return total / count if count else None


def kl_responses(responses: int, micro_batch_size: int) -> int:
    """Return the number of a rank's responses on which KL_PER_STEP is estimated."""
    wanted = max(int(responses * KL_SHARE), KL_RESPONSES)
    return min(wanted, KL_MICRO_BATCHES * micro_batch_size, responses)
