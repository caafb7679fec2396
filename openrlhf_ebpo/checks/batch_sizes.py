"""Check batch sizes and ranks as OpenRLHF and DeepSpeed check them after Ray and the engines are up, and name numbers
that fit."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from openrlhf_ebpo.errors import raise_problems

FROM_ONE = (
    *("train.batch_size", "train.micro_batch_size"),
    *("rollout.batch_size", "rollout.micro_batch_size", "rollout.n_samples_per_prompt"),
    *("actor.num_nodes", "actor.num_gpus_per_node", "ds.ring_attn_size", "ds.tensor_parallel_size"),
    "algo.kl.horizon",
)


@dataclass(frozen=True)
class Model:
    """The processes of one model. trained: by DeepSpeed's optimizer, under --train.dynamic_batch_enable without fixed
    micro-batches. shared: processes that work on the same responses (ring attention, tensor parallel)."""

    name: str
    nodes: int
    gpus_per_node: int
    shared: int
    trained: bool = False

    @property
    def gpus(self) -> int:
        return self.nodes * self.gpus_per_node

    @property
    def ranks(self) -> int:
        return self.gpus // self.shared

    def __str__(self) -> str:
        flags = f"--{self.name}.num_nodes {self.nodes} x --{self.name}.num_gpus_per_node {self.gpus_per_node}"
        return flags + (f" / {self.shared} of ring attention and tensor parallel" if self.shared > 1 else "")


def check(values: dict) -> None:
    """Check the batch sizes of a training. values: by flag.

    Raises:
        UsageError: OpenRLHF or DeepSpeed would refuse them, or nothing would be trained; one problem a line.
    """
    raise_problems([f"--{flag} is {values[flag]}; give 1 or more" for flag in FROM_ONE if values[flag] < 1])
    models = _models(values)
    raise_problems([*_placement_problems(values, models)])
    raise_problems([*_rollout_problems(values, models[0])])
    raise_problems([*_step_problems(values, models)])


def _models(values: dict) -> list[Model]:
    """List the models of a training that work on responses; the actor is the first."""
    shared = values["ds.ring_attn_size"] * values["ds.tensor_parallel_size"]

    def model(name: str, trained: bool = False) -> Model:
        return Model(name, values[f"{name}.num_nodes"], values[f"{name}.num_gpus_per_node"], shared, trained)

    found = [model("actor", trained=True)]
    if values["algo.advantage.estimator"] == "gae":
        found.append(model("critic", trained=True))
    if values["algo.kl.init_coef"] > 0:
        found.append(model("ref"))
    if values["reward.model_name_or_path"] and not values["reward.remote_url"]:
        found.append(model("reward"))
    return found


def _placement_problems(values: dict, models: list[Model]) -> Iterator[str]:
    named = {model.name: model for model in models}
    for model in models:
        if model.gpus < 1 or model.gpus % model.shared:
            yield (
                f"--{model.name}.num_nodes {model.nodes} x --{model.name}.num_gpus_per_node "
                f"{model.gpus_per_node}: give a "
                f"multiple of --ds.ring_attn_size {values['ds.ring_attn_size']} x --ds.tensor_parallel_size "
                f"{values['ds.tensor_parallel_size']} GPUs"
            )
    pairs = [("actor", "ref", "train.colocate_actor_ref"), ("actor", "ref", "train.colocate_all")]
    for one, other, flag in (*pairs, ("critic", "reward", "train.colocate_critic_reward")):
        here, there = named.get(one), named.get(other)
        if values[flag] and here and there and (here.nodes, here.gpus_per_node) != (there.nodes, there.gpus_per_node):
            yield f"--{flag} puts {one} and {other} on the same GPUs: give {there} the numbers of {here}"
    engines, size = values["vllm.num_engines"], values["vllm.tensor_parallel_size"]
    shares = values["train.colocate_all"] and not values["train.async_enable"]
    if shares and engines and engines * size != models[0].gpus:
        yield (
            f"--train.colocate_all puts actor and engines on the same GPUs: --vllm.num_engines {engines} x "
            f"--vllm.tensor_parallel_size {size} must be the {models[0].gpus} of {models[0]}"
        )


def _rollout_problems(values: dict, actor: Model) -> Iterator[str]:
    group, micro = values["rollout.n_samples_per_prompt"], values["rollout.micro_batch_size"]
    responses = values["rollout.batch_size"] * group
    found = (
        f"--rollout.batch_size {values['rollout.batch_size']} x --rollout.n_samples_per_prompt {group} are {responses} "
        f"responses for {actor.ranks} ranks ({actor})"
    )
    if responses < actor.ranks:
        fewest = max(math.lcm(values["train.batch_size"], group), actor.ranks)
        yield f"{found}: give --rollout.batch_size {-(-fewest // group)}"
    elif responses // micro < actor.ranks:
        yield (
            f"{found}, less than a micro-batch of --rollout.micro_batch_size {micro} for each: give "
            f"--rollout.micro_batch_size {responses // actor.ranks}"
        )


def _step_problems(values: dict, models: list[Model]) -> Iterator[str]:
    """Compare an optimizer step with the micro-batches that DeepSpeed makes of it, and with the rollout batch."""
    batch, micro, dynamic = (
        values[f"train.{name}"] for name in ("batch_size", "micro_batch_size", "dynamic_batch_enable")
    )
    fixed = [model for model in models if not (dynamic and model.trained)]
    if dynamic and values["train.enable_ema"]:
        fixed.append(models[0])  # the averaged model is prepared like one that is not trained
    wrong = [model for model in fixed if batch % (micro * model.ranks)]
    unit = math.lcm(*(micro * model.ranks for model in fixed), *(model.ranks for model in models if model.trained))
    if wrong:
        yield (
            f"--train.batch_size {batch} is not a multiple of --train.micro_batch_size {micro} x "
            f"{wrong[0].ranks} ranks "
            f"({wrong[0]}), which DeepSpeed needs: {_remedies(values, unit)}"
        )
    elif dynamic and (small := [model for model in models if model.trained and batch < model.ranks]):
        yield (
            f"--train.batch_size {batch} is less than a response for each of {small[0].ranks} ranks ({small[0]}): "
            f"{_remedies(values, unit)}"
        )
    elif (dynamic or models[0].ranks > 1) and math.lcm(batch, values["rollout.n_samples_per_prompt"]) > _responses(
        values
    ):
        yield (
            f"--train.batch_size {batch}: the {_responses(values)} responses of a rollout batch (--rollout.batch_size "
            f"{values['rollout.batch_size']} x {values['rollout.n_samples_per_prompt']}) fill no optimizer step "
            f"of complete "
            f"groups, and none would be trained on: {_remedies(values, unit)}"
        )


def _responses(values: dict) -> int:
    return values["rollout.batch_size"] * values["rollout.n_samples_per_prompt"]


def _remedies(values: dict, unit: int) -> str:
    """Name the numbers nearest to those given that fit. unit: a batch must be a multiple of it."""
    batch, micro, responses = values["train.batch_size"], values["train.micro_batch_size"], _responses(values)
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
        prompts = math.lcm(size, values["rollout.n_samples_per_prompt"]) // values["rollout.n_samples_per_prompt"]
        found = [f"--train.batch_size {size} with --rollout.batch_size {prompts}"]
    return f"give {', or '.join(found)}"
