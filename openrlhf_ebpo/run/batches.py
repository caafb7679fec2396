"""BatchSettings: how many responses a step has, how many of them are trained on, and how old they may be."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class BatchSettings:
    """prompts, group: of a rollout batch. batch: responses of an optimizer step. generated: prompts that are
    generated at a time, 0 for those of a batch. queue: rollout batches that async training keeps ahead, 0 without it.
    ranks: of the actor, which train on different responses."""

    prompts: int
    group: int
    batch: int
    micro: int = 1
    epochs: int = 1
    dynamic: bool = False
    generated: int = 0
    queue: int = 0
    partial_rollouts: bool = False
    ranks: int = 1

    @classmethod
    def from_args(cls, args) -> BatchSettings:
        """From upstream's nested arguments, before or after its validation."""
        rollout, train = args.rollout, args.train
        return cls(
            prompts=rollout.batch_size,
            group=rollout.n_samples_per_prompt,
            batch=train.batch_size,
            micro=train.micro_batch_size,
            epochs=train.max_epochs,
            dynamic=train.dynamic_batch_enable,
            generated=rollout.vllm_generate_batch_size or 0,
            queue=train.async_queue_size if train.async_enable else 0,
            partial_rollouts=train.partial_rollout_enable,
            ranks=data_parallel_ranks(args),
        )

    @property
    def responses(self) -> int:
        return self.prompts * self.group

    @property
    def age(self) -> int:
        """Return the largest number of steps between the weights of a rollout and those that train on it."""
        return self.queue + max(-(-self.generated // self.prompts) - 1, 0)

    def trainable(self, responses: int) -> int:
        """Count the responses of a batch that fill complete groups and complete optimizer steps.

        Without them, several ranks get unequal numbers of responses and wait for each other forever, fewer responses
        than ranks are an error, and --train.dynamic_batch_enable drops the rest after the estimator has seen it. A
        single rank without it carries the rest into the next step; that is left to upstream.
        """
        if self.ranks <= 1 and not self.dynamic:
            return responses
        return responses - responses % math.lcm(self.batch, self.group)

    def steps_a_pass(self, prompts: int) -> int:
        """Count the steps of a pass over so many prompts. Its last batch may not be full; one that fills no optimizer
        step is generated and left out, and does not count."""
        full, rest = divmod(prompts, self.prompts)
        return full + (self.trainable(rest * self.group) > 0)

    def notices(self) -> list[str]:
        """Compare the rollout batch with the optimizer steps that it fills; upstream does not."""
        if self.responses % self.batch == 0:
            return []
        found = (
            f"warning: --train.batch_size {self.batch} does not divide the {self.responses} responses of a rollout "
            f"batch (--rollout.batch_size {self.prompts} times {self.group})"
        )
        if untrained := self.responses - self.trainable(self.responses):
            return [f"{found}: {untrained} of them are left out of every step"]
        return [f"{found}: OpenRLHF mixes what is left into the next step"]


def data_parallel_ranks(args) -> int:
    """Count the ranks of the actor that train on different responses. args: upstream's, nested."""
    gpus = args.actor.num_nodes * args.actor.num_gpus_per_node
    return gpus // (args.ds.ring_attn_size * args.ds.tensor_parallel_size)
