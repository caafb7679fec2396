"""Every micro-batch of an optimizer step counts, under dynamic batches and every ZeRO stage, and no other.

Under --train.dynamic_batch_enable the number of micro-batches changes from step to step, so OpenRLHF 0.11.2 tells
DeepSpeed of one for each optimizer step. DeepSpeed (0.19.6) then takes every backward pass for the last one: ZeRO 1 and
2 keep the gradient of the last micro-batch alone, without a word. Upstream does know which one is the last, so
DeepSpeed is told.
"""

from __future__ import annotations


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
