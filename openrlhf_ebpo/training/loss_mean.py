"""Weight of a token in the policy loss: the same for all tokens of the optimizer step, or of its micro-batch.

OpenRLHF 0.11.2 takes one mean over all response tokens of an optimizer step, over all ranks. verl, with which EBPO's authors
trained, takes the mean of each micro-batch and then the mean of these, so a token of short responses weighs more. With
dynamic batches, verl weighs a micro-batch by its share of the rank's responses.

The loss, the KL loss and the entropy bonus are all averaged so; a critic's loss is not.
"""

from __future__ import annotations

import argparse

import torch

from openrlhf_ebpo.training.policy_metrics import NO_TOKENS

STEP, MICRO_BATCH = "step", "micro_batch"


def add_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("loss mean", "For every estimator and policy loss (docs/train.md).")
    group.add_argument(
        "--actor.loss_mean",
        choices=(STEP, MICRO_BATCH),
        default=STEP,
        help="step: one mean over all response tokens of an optimizer step, as OpenRLHF does since 0.11. micro_batch: the "
        "mean of each micro-batch, then the mean of these, as verl does; the result then depends on "
        "--train.micro_batch_size. With --train.dynamic_batch_enable micro-batches are weighted by their number of responses. "
        "--actor.loss_agg_mode chooses tokens or responses inside either",
    )


def within_micro_batch(action_mask: torch.Tensor, share: float = 1.0) -> dict:
    """Return the divisor of upstream's `aggregate_loss`, such that the loss is this micro-batch's own mean.

    action_mask: (B, T). share: what the mean is multiplied by. Without a token the loss is 0, and still one of the means.
    """
    tokens = action_mask.reshape(len(action_mask), -1).float().sum(-1)
    return {
        "dp_size": 1,  # DeepSpeed takes the mean over the ranks
        "batch_num_tokens": tokens.sum().clamp(min=NO_TOKENS) / share,
        "global_batch_size": (tokens > 0).sum().clamp(min=NO_TOKENS) / share,
    }


class MicroBatchMeans:
    """Mixin over ActorPPOTrainer: trains with the mean that --actor.loss_mean asks for.

    DeepSpeed divides each micro-batch's loss by their number, which is the mean of means. Under dynamic batches it does not:
    there upstream knows each one's share of the rank's responses.
    """

    def training_step(self, experience, kl_ctl, step, loss_batch_info=None):
        if self.args.actor.loss_mean == MICRO_BATCH:
            dynamic = self.args.train.dynamic_batch_enable
            share = self.replay_buffer.dynamic_sample_loss_scale[step] if dynamic else 1.0
            loss_batch_info = within_micro_batch(experience.action_mask, share)
        return super().training_step(experience, kl_ctl, step, loss_batch_info)
