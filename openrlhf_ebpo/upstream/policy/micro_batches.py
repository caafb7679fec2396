"""Every micro-batch of an optimizer step counts, under dynamic batches and every ZeRO stage, and no other.

Under --train.dynamic_batch_enable the number of micro-batches changes from step to step, so OpenRLHF 0.11.2 tells
DeepSpeed of one for each optimizer step. DeepSpeed (0.19.6) then takes every backward pass for the last one: ZeRO 1 and
2 keep the gradient of the last micro-batch alone, without a word. Upstream does know which one is the last, so
DeepSpeed is told. A micro-batch, or a step, without a token to train on counts as 0, not as 0/0.
"""

from __future__ import annotations

import functools

import torch

NO_TOKENS = 1e-6  # token count of an empty batch: negligible, and a valid divisor


class AccumulatingPolicy:
    """Mixin over ActorPPOTrainer."""

    def training_step(self, experience, kl_ctl, step, loss_batch_info=None):
        set_accumulation_boundary(self, self.actor.model, step)
        return super().training_step(experience, kl_ctl, step, loss_batch_info)


class AccumulatingCritic:
    """Mixin over CriticPPOTrainer."""

    def training_step(self, experience, step, loss_batch_info=None):
        set_accumulation_boundary(self, self.critic, step)
        return super().training_step(experience, step, loss_batch_info)


def set_accumulation_boundary(trainer, engine, step: int) -> None:
    """Inform DeepSpeed's engine of the last micro-batch; it counts by itself if their number never changes."""
    if trainer.args.train.dynamic_batch_enable:
        engine.set_gradient_accumulation_boundary(bool(trainer.replay_buffer.dynamic_optimizer_step[step]))


class EmptyMicroBatches:
    """Mixin over ActorPPOTrainer: a micro-batch without a token to train on reports 0, not 0/0."""

    def training_step(self, experience, *args, **kwargs):
        result = super().training_step(experience, *args, **kwargs)
        if result["num_action_tokens"] == 0:
            result["num_action_tokens"] = NO_TOKENS
            for name, value in result["metrics"].items():
                if result["weights"][name] == "token":
                    result["metrics"][name] = torch.zeros_like(value)
        return result


def clamp_loss_normalisers(original):
    """Wraps upstream's two sources of loss normalisers: where all samples are excluded the loss is 0, not 0/0."""

    @functools.wraps(original)
    def normalisers(*args, **kwargs):
        info = original(*args, **kwargs)
        for name in ("batch_num_tokens", "global_batch_size"):
            info[name] = info[name].clamp(min=NO_TOKENS)
        return info

    return normalisers
