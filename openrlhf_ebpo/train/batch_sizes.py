"""Check batch sizes and ranks as OpenRLHF and DeepSpeed check them after Ray and the engines are up, and name numbers
that fit."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence

from openrlhf_ebpo.errors import raise_problems
from openrlhf_ebpo.run.batches import BatchSettings
from openrlhf_ebpo.train.placement import ACTOR_REF, ALL, CRITIC_REWARD, Model, Placement

FROM_ONE = (
    *("train.batch_size", "train.micro_batch_size"),
    *("rollout.batch_size", "rollout.micro_batch_size", "rollout.n_samples_per_prompt"),
    *("actor.num_nodes", "actor.num_gpus_per_node", "ds.ring_attn_size", "ds.tensor_parallel_size"),
    *("ds.ring_attn_head_stride", "vllm.tensor_parallel_size"),
    "algo.kl.horizon",
)


def check_positive(args) -> None:
    """Raises UsageError: a number of processes or responses is below 1; one a line. args: upstream's, nested."""
    numbers = {flag: functools.reduce(getattr, flag.split("."), args) for flag in FROM_ONE}
    raise_problems([f"--{flag} is {number}; give 1 or more" for flag, number in numbers.items() if number < 1])


def check_batch_sizes(args, batches: BatchSettings, placement: Placement) -> None:
    """Check the batches of a training against the processes that they are divided among.

    Raises:
        UsageError: OpenRLHF or DeepSpeed would refuse them, or nothing would be trained; one problem a line.
    """
    raise_problems([*_placement_problems(placement)])
    raise_problems([*_rollout_problems(batches, placement.actor, args.rollout.micro_batch_size)])
    raise_problems([*_step_problems(batches, [*placement.models.values()], args.train.enable_ema)])


def _placement_problems(placement: Placement) -> Iterator[str]:
    models = placement.models
    for model in models.values():
        if model.gpus < 1 or model.gpus % model.shared:
            yield (
                f"--{model.name}.num_nodes {model.nodes} x --{model.name}.num_gpus_per_node {model.gpus_per_node}: "
                f"give a multiple of --ds.ring_attn_size {placement.ring} x --ds.tensor_parallel_size "
                f"{placement.tensor_parallel} GPUs"
            )
    for one, other, flag in (
        ("actor", "ref", ACTOR_REF),
        ("actor", "ref", ALL),
        ("critic", "reward", CRITIC_REWARD),
    ):
        here, there = models.get(one), models.get(other)
        if flag not in placement.shared_by or not here or not there:
            continue
        if (here.nodes, here.gpus_per_node) != (there.nodes, there.gpus_per_node):
            yield f"--{flag} puts {one} and {other} on the same GPUs: give {there} the numbers of {here}"
    engines, size = placement.engines, placement.engine_gpus
    if placement.engines_share and engines and engines * size != placement.actor.gpus:
        yield (
            f"--train.colocate_all puts actor and engines on the same GPUs: --vllm.num_engines {engines} x "
            f"--vllm.tensor_parallel_size {size} must be the {placement.actor.gpus} of {placement.actor}"
        )


def _rollout_problems(batches: BatchSettings, actor: Model, micro: int) -> Iterator[str]:
    responses = batches.responses
    found = (
        f"--rollout.batch_size {batches.prompts} x --rollout.n_samples_per_prompt {batches.group} are {responses} "
        f"responses for {actor.ranks} ranks ({actor})"
    )
    if responses < actor.ranks:
        fewest = max(math.lcm(batches.batch, batches.group), actor.ranks)
        yield f"{found}: give --rollout.batch_size {-(-fewest // batches.group)}"
    elif responses // micro < actor.ranks:
        yield (
            f"{found}, less than a micro-batch of --rollout.micro_batch_size {micro} for each: give "
            f"--rollout.micro_batch_size {responses // actor.ranks}"
        )


def _step_problems(batches: BatchSettings, models: Sequence[Model], averages: bool) -> Iterator[str]:
    """Compare an optimizer step with the micro-batches that DeepSpeed makes of it, and with the rollout batch.

    averages: OpenRLHF averages the actor's weights.
    """
    batch, micro, dynamic = batches.batch, batches.micro, batches.dynamic
    fixed = [model for model in models if not (dynamic and model.trained)]
    if dynamic and averages:
        fixed.append(models[0])  # the averaged model is prepared like one that is not trained
    wrong = [model for model in fixed if batch % (micro * model.ranks)]
    unit = math.lcm(*(micro * model.ranks for model in fixed), *(model.ranks for model in models if model.trained))
    if wrong:
        yield (
            f"--train.batch_size {batch} is not a multiple of --train.micro_batch_size {micro} x "
            f"{wrong[0].ranks} ranks ({wrong[0]}), which DeepSpeed needs: {_remedies(batches, unit)}"
        )
    elif dynamic and (small := [model for model in models if model.trained and batch < model.ranks]):
        yield (
            f"--train.batch_size {batch} is less than a response for each of {small[0].ranks} ranks ({small[0]}): "
            f"{_remedies(batches, unit)}"
        )
    elif (dynamic or models[0].ranks > 1) and math.lcm(batch, batches.group) > batches.responses:
        yield (
            f"--train.batch_size {batch}: the {batches.responses} responses of a rollout batch (--rollout.batch_size "
            f"{batches.prompts} x {batches.group}) fill no optimizer step of complete groups, and none would be "
            f"trained on: {_remedies(batches, unit)}"
        )


def _remedies(batches: BatchSettings, unit: int) -> str:
    """Name the numbers nearest to those given that fit. unit: a batch must be a multiple of it."""
    batch, micro, responses = batches.batch, batches.micro, batches.responses
    fitting = [size for size in range(unit, responses + 1, unit) if responses % size == 0]
    nearest = [*(size for size in fitting if size < batch)][-1:] + [size for size in fitting if size > batch][:1]
    found = [f"--train.batch_size {' or '.join(map(str, nearest))}"] if nearest else []
    ranks = unit // micro
    if batch % unit and batch % ranks == 0 and responses % batch == 0:
        share = batch // ranks
        smaller = max(size for size in range(1, micro + 1) if share % size == 0)
        found.append(f"--train.micro_batch_size {smaller}")
    if not found:
        size = -(-batch // unit) * unit
        prompts = math.lcm(size, batches.group) // batches.group
        found = [f"--train.batch_size {size} with --rollout.batch_size {prompts}"]
    return f"give {', or '.join(found)}"
