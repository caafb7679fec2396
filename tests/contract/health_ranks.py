"""One of two ranks that train the tiny model with upstream's own trainers and DeepSpeed, without Ray and engines.

python health_ranks.py MODEL OUTPUT RENDEZVOUS RANK: one case after the other, and then those of loss_mean_ranks.py and
micro_batch_ranks.py; OUTPUT gets what each has come to, as JSON.
"""

import json
import os
import sys
from pathlib import Path

CASES = {  # name -> ZeRO stage, what is done to the second of the two ranks
    "healthy 0": (0, None),
    "advantage 0": (0, "advantage"),
    "advantage 2": (2, "advantage"),
    "advantage 3": (3, "advantage"),
    "weight 2": (2, "weight"),
    "weight 3": (3, "weight"),
    "gradient 2": (2, "gradient"),
    "gradient 3": (3, "gradient"),
    "critic 2": (2, "return"),
}
RESPONSES, TOKENS, ACTIONS = 4, 12, 6


def arguments(model: Path, stage: int):
    from openrlhf_ebpo.train.flags import build_parser
    from openrlhf_ebpo.train.upstream_main import UpstreamMain
    from openrlhf_ebpo.upstream import cpu

    command = UpstreamMain("openrlhf.cli.train_ppo_ray")
    flags = {
        "actor.model_name_or_path": model,
        "data.prompt_dataset": "none",
        "reward.remote_url": "none.py",
        "advantage_estimator": "rloo",
        "rollout.n_samples_per_prompt": 2,
        "train.batch_size": 2 * RESPONSES,
        "train.micro_batch_size": RESPONSES // 2,
        "actor.adam.lr": 1e-2,
        "actor.lr_warmup_ratio": 0,
        "ds.zero_stage": stage,
        "ds.attn_implementation": "sdpa",
        "vllm.num_engines": 1,
    }
    args = build_parser(command).parse_args(
        [str(word) for name, value in flags.items() for word in (f"--{name}", value)]
    )
    args = command.validate(args)
    cpu.adapt_args(args)
    return args


def experience(poison: str | None):
    import torch
    from openrlhf.trainer.ppo_utils.experience import Experience

    generator = torch.Generator().manual_seed(int(os.environ["RANK"]))
    advantages = torch.randn(RESPONSES, 1, generator=generator).expand(-1, ACTIONS).clone()
    returns = advantages.clone()
    if poison == "advantage":
        advantages[1, 2] = torch.inf
    if poison == "return":
        returns[1, 2] = torch.nan
    return Experience(
        sequences=torch.randint(3, 20, (RESPONSES, TOKENS), generator=generator),
        attention_mask=torch.ones(RESPONSES, TOKENS, dtype=torch.long),
        action_mask=torch.ones(RESPONSES, ACTIONS, dtype=torch.long),
        action_log_probs=torch.full((RESPONSES, ACTIONS), -3.0),
        values=torch.zeros(RESPONSES, ACTIONS),
        advantages=advantages,
        returns=returns,
        prompts=[f"p{i}" for i in range(RESPONSES)],
        labels=["l"] * RESPONSES,
        info={},
    )


def trainer_of(args, critic: bool):
    from openrlhf.models import Actor, get_llm_for_sequence_regression
    from openrlhf.trainer.ray.ppo_actor import ActorPPOTrainer
    from openrlhf.trainer.ray.ppo_critic import CriticPPOTrainer
    from openrlhf.utils import get_strategy

    strategy = get_strategy(args)
    strategy.setup_distributed()
    section = args.critic if critic else args.actor
    common = {
        "param_dtype": args.ds.param_dtype,
        "ds_config": strategy.get_ds_train_config(),
        "attn_implementation": "sdpa",
    }
    settings = {
        "optim": "adam",
        "muon": vars(section.muon),
        "adam": {**vars(section.adam), "lr": 1e-2},
        "lr_scheduler": "constant",
        "lr_warmup_ratio": 0,
        "min_lr_ratio": 1,
        "max_norm": 1.0,
        "scheduler_steps": 10,
    }
    path = args.actor.model_name_or_path
    if critic:
        model = get_llm_for_sequence_regression(path, "critic", init_value_head=True, **common)
        return CriticPPOTrainer(
            strategy, *strategy.prepare((model, settings)), micro_train_batch_size=args.train.micro_batch_size
        )
    model, optimizer, scheduler = strategy.prepare((Actor(path, **common), settings))
    return ActorPPOTrainer(
        strategy, model, None, optimizer, scheduler, micro_train_batch_size=args.train.micro_batch_size
    )


def poison_weight_after(trainer, steps: int) -> None:
    """After the last micro-batch, so that losses and gradients are as ever."""
    import torch

    trained = trainer.training_step
    done = []

    def training_step(*args):
        result = trained(*args)
        done.append(result)
        if len(done) == steps:
            parameter = dict(trainer.actor.model.module.named_parameters())["model.layers.1.mlp.up_proj.weight"]
            getattr(parameter, "ds_tensor", parameter).data.flatten()[5] = torch.nan
        return result

    trainer.training_step = training_step


def poison_gradient(trainer) -> None:
    trainer.actor.model.module.model.layers[0].mlp.up_proj.weight.register_hook(
        lambda gradient: gradient * float("inf")
    )


def outcome(model: Path, name: str) -> dict:
    from openrlhf_ebpo.errors import HealthError

    stage, poison = CASES[name]
    poison = poison if os.environ["RANK"] == "1" else None
    critic = name.startswith("critic")
    trainer = trainer_of(arguments(model, stage), critic)
    trainer.dataloader_pin_memory = False
    if poison == "gradient":
        poison_gradient(trainer)
    if poison == "weight":
        poison_weight_after(trainer, RESPONSES // trainer.micro_train_batch_size)
    trainer.replay_buffer.append(experience(poison))
    try:
        status = trainer.ppo_train() if critic else trainer.ppo_train(0.0)
        return {"status": {key: float(value) for key, value in status.items()}}
    except HealthError as error:
        return {"error": str(error), "report": error.report}


def main() -> None:
    model, output, rendezvous, rank = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], sys.argv[4]
    os.environ.update(RANK=rank, LOCAL_RANK="0", WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=rendezvous)
    from openrlhf_ebpo.upstream.install import install

    install()
    from loss_mean_ranks import outcomes_of_means  # these import this module
    from micro_batch_ranks import outcomes_of_cuts

    found = {"health": {name: outcome(model, name) for name in CASES}, "loss_mean": outcomes_of_means(model)}
    found["micro_batches"] = outcomes_of_cuts(model)
    output.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
