"""One of two ranks that take an optimizer step of a batch that the experience maker has cut into micro-batches.

Called by health_ranks.py: upstream's maker, trainer and DeepSpeed. `outcomes_of_cuts` finds, for each case, what the
rank was given, and how far the step's gradient lies from the one that plain autograd gives for all responses, on one
rank.
"""

import os
from pathlib import Path
from types import SimpleNamespace

from health_ranks import ACTIONS, TOKENS, arguments, trainer_of
from loss_mean_ranks import summed_loss

CASES = {  # name -> responses, of rollouts in micro-batches of up to 8
    "three micro-batches for two ranks": 24,
    "the last batch, one micro-batch": 8,
    "a prime number for each rank": 14,
    "two for two": 16,
}
ROLLOUT_MICRO_BATCH_SIZE = 8


def batch_of(responses: int):
    import torch
    from openrlhf.trainer.ppo_utils.experience import Experience

    generator = torch.Generator().manual_seed(responses)
    lengths = torch.randint(1, ACTIONS + 1, (responses, 1), generator=generator)
    return Experience(
        sequences=torch.randint(3, 20, (responses, TOKENS), generator=generator),
        attention_mask=torch.ones(responses, TOKENS, dtype=torch.long),
        action_mask=(torch.arange(ACTIONS) < lengths).long(),
        action_log_probs=torch.full((responses, ACTIONS), -3.25),  # near the model's own: no token is clipped
        advantages=torch.randn(responses, 1, generator=generator).expand(-1, ACTIONS).clone(),
        prompts=[f"p{i}" for i in range(responses)],
        labels=["l"] * responses,
        info={},
    )


def one(batch, row: int):
    """A response as the samples generator gives it."""
    columns = {name: value[row : row + 1] for name, value in vars(batch).items() if value is not None and len(value)}
    return type(batch)(**columns, info={})


def part_of(rank: int, args, batch) -> list:
    """The micro-batches of a rank, as RayActorGroup.async_run_method_batch hands them out."""
    from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker

    strategy = SimpleNamespace(args=args)
    maker = RemoteExperienceMaker(None, None, None, None, None, strategy, SimpleNamespace(pad_token_id=0))
    micro_batches = maker.split_rollout_samples([one(batch, row) for row in range(len(batch.sequences))])
    share = -(-len(micro_batches) // 2)
    return micro_batches[rank * share : (rank + 1) * share]


def outcome(model: Path, responses: int) -> dict:
    import torch
    from deepspeed.utils import safe_get_full_grad
    from openrlhf.models import Actor

    args, rank = arguments(model, stage=2), int(os.environ["RANK"])
    args.actor.num_gpus_per_node = 2
    args.rollout.micro_batch_size = ROLLOUT_MICRO_BATCH_SIZE
    args.train.batch_size, args.train.micro_batch_size = responses, 1
    trainer = trainer_of(args, critic=False)
    trainer.dataloader_pin_memory = False
    batch = batch_of(responses)
    part = part_of(rank, args, batch)
    sizes = [len(each.sequences) for each in part]
    for micro_batch in part:
        trainer.replay_buffer.append(micro_batch)
    done, gradients = [], []
    trained, stepped = trainer.training_step, trainer.strategy.optimizer_step

    def training_step(*rest):
        done.append(rest)
        return trained(*rest)

    def optimizer_step(*rest, **named):
        if len(done) == responses // 2:  # before the last micro-batch's step, which clears it
            found = [safe_get_full_grad(parameter) for parameter in trainer.actor.model.module.parameters()]
            gradients.append(torch.cat([gradient.float().flatten() for gradient in found]))
        return stepped(*rest, **named)

    trainer.training_step, trainer.strategy.optimizer_step = training_step, optimizer_step
    trainer.ppo_train(0.0)
    plain = Actor(str(model), attn_implementation="sdpa", param_dtype="bf16")
    plain.model.float()
    for row in range(responses):
        (summed_loss(plain, one(batch, row)) / batch.action_mask.sum()).backward()
    wanted = torch.cat([parameter.grad.float().flatten() for parameter in plain.parameters()])
    (gradient,) = gradients
    return {
        "sizes": sizes,
        "prompts": [prompt for each in part for prompt in each.prompts],
        "norm": float(wanted.norm()),
        "distance": float((gradient - wanted).norm()),
    }


def outcomes_of_cuts(model: Path) -> dict:
    return {name: outcome(model, responses) for name, responses in CASES.items()}
