"""One of two ranks that take an optimizer step of two micro-batches with responses of unequal lengths.

Called by health_ranks.py: upstream's trainer and DeepSpeed. `outcomes_of_means` finds, for each case, how far
the step's gradient lies from the one that plain autograd gives for the mean over all tokens, one response at a time.
"""

import copy
import os
from pathlib import Path

from health_ranks import ACTIONS, arguments, experience, trainer_of

LENGTHS = ((6, 1, 1, 2), (1, 5, 1, 1))  # tokens of each rank's responses
CASES = ("fixed", "dynamic, ZeRO 1", "dynamic, ZeRO 2", "dynamic, ZeRO 3")


def settings(model: Path, name: str):
    args = arguments(model, stage=int(name[-1]) if "dynamic" in name else 2)
    args.train.dynamic_batch_enable = "dynamic" in name
    args.train.max_tokens_per_gpu = 12
    args.rollout.batch_size = args.train.batch_size // args.rollout.n_samples_per_prompt
    return args


def unequal(rank: int):
    import torch

    found = experience(None)
    found.action_mask = (torch.arange(ACTIONS) < torch.tensor(LENGTHS[rank])[:, None]).long()
    found.total_length = torch.tensor([12.0, 4.0, 4.0, 4.0])  # dynamic batches: one response, and three
    return found


def summed_loss(model, row):
    """PPO's loss of one response, summed over its tokens."""
    log_probs = model(row.sequences, row.action_mask, attention_mask=row.attention_mask)
    ratio = (log_probs - row.action_log_probs).exp()
    clipped = ratio.clamp(0.8, 1.2) * row.advantages
    return -((ratio * row.advantages).minimum(clipped) * row.action_mask).sum()


def expected(model, micro_batches: list):
    """The gradient of the mean of both ranks' losses, flat."""
    import torch

    of_the_step = sum(map(sum, LENGTHS))
    model.zero_grad()
    for batch in micro_batches:
        for row in range(len(batch.sequences)):
            (summed_loss(model, one(batch, row)) * 2 / of_the_step).backward()  # 2: the ranks' mean follows
    gradient = torch.cat([parameter.grad.float().flatten() for parameter in model.parameters()])
    torch.distributed.all_reduce(gradient)
    return gradient / 2


def one(batch, row: int):
    found = copy.copy(batch)
    for name in ("sequences", "attention_mask", "action_mask", "action_log_probs", "advantages"):
        setattr(found, name, getattr(batch, name)[row : row + 1])
    return found


def outcome(model: Path, name: str) -> dict:
    import torch
    from deepspeed.utils import safe_get_full_grad
    from openrlhf.models import Actor

    args, rank = settings(model, name), int(os.environ["RANK"])
    trainer = trainer_of(args, critic=False)
    trainer.dataloader_pin_memory = False
    trainer.replay_buffer.append(unequal(rank))
    micro_batches, gradients = [], []
    trained, stepped = trainer.training_step, trainer.strategy.optimizer_step

    def training_step(batch, *rest):
        micro_batches.append(copy.copy(batch))
        return trained(batch, *rest)

    def optimizer_step(*rest, **named):
        if len(micro_batches) == 2:
            found = [safe_get_full_grad(parameter) for parameter in trainer.actor.model.module.parameters()]
            gradients.append(torch.cat([gradient.float().flatten() for gradient in found]))
        return stepped(*rest, **named)

    trainer.training_step, trainer.strategy.optimizer_step = training_step, optimizer_step
    trainer.ppo_train(0.0)
    plain = Actor(str(model), attn_implementation="sdpa", param_dtype="bf16")
    plain.model.float()
    (gradient,) = gradients
    wanted = expected(plain, micro_batches)
    return {
        "sizes": [len(batch.sequences) for batch in micro_batches],
        "norm": float(wanted.norm()),
        "distance": float((gradient - wanted).norm()),
    }


def critic_gradient(model: Path, stage: int) -> list[float]:
    """Of the value head, under dynamic batches."""
    import torch
    from deepspeed.utils import safe_get_full_grad

    args, rank = settings(model, "dynamic, ZeRO 2"), int(os.environ["RANK"])
    args.ds.zero_stage = stage
    args.critic.value_clip = 0.2
    torch.manual_seed(0)  # the head's first weights
    trainer = trainer_of(args, critic=True)
    trainer.dataloader_pin_memory = False
    trainer.replay_buffer.append(unequal(rank))
    gradients, stepped = [], trainer.strategy.optimizer_step

    def optimizer_step(*rest, **named):
        gradients.append(safe_get_full_grad(list(trainer.critic.module.parameters())[-1]).float().flatten().tolist())
        return stepped(*rest, **named)

    trainer.strategy.optimizer_step = optimizer_step
    trainer.ppo_train()
    (gradient,) = gradients
    return gradient


def outcomes_of_means(model: Path) -> dict:
    found = {name: outcome(model, name) for name in CASES}
    return {**found, "critic": {stage: critic_gradient(model, stage) for stage in (2, 3)}}
