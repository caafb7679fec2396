"""Placement: the processes of a training, by model, and which of them share GPUs."""

from __future__ import annotations

from dataclasses import dataclass

SHARING = ALL, ACTOR_REF, CRITIC_REWARD = (
    "train.colocate_all",
    "train.colocate_actor_ref",
    "train.colocate_critic_reward",
)


@dataclass(frozen=True)
class Model:
    """The processes of one model.

    shared: processes that work on the same responses (ring attention, tensor parallel). trained: by DeepSpeed's
    optimizer, under --train.dynamic_batch_enable without fixed micro-batches.
    """

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


@dataclass(frozen=True)
class Placement:
    """models: those of the training that work on responses, by name; the actor is the first. ring, tensor_parallel:
    GPUs that share a model and its responses. engines: of vLLM, of `engine_gpus` GPUs each. shared_by: the flags in
    effect that put models on the same GPUs."""

    models: dict[str, Model]
    ring: int
    tensor_parallel: int
    engines: int
    engine_gpus: int
    engines_share: bool
    shared_by: frozenset[str]

    @classmethod
    def from_args(cls, args) -> Placement:
        """From upstream's nested arguments, before or after its validation."""
        train, ds, reward = args.train, args.ds, args.reward
        used = {
            "actor": True,
            "critic": args.algo.advantage.estimator == "gae",
            "ref": args.algo.kl.init_coef > 0,
            "reward": reward.model_name_or_path and not (reward.remote_url or train.agent_func_path),
        }
        sections = {name: getattr(args, name) for name, is_used in used.items() if is_used}
        shared = ds.ring_attn_size * ds.tensor_parallel_size
        return cls(
            models={
                name: Model(name, each.num_nodes, each.num_gpus_per_node, shared, name in ("actor", "critic"))
                for name, each in sections.items()
            },
            ring=ds.ring_attn_size,
            tensor_parallel=ds.tensor_parallel_size,
            engines=args.vllm.num_engines or 0,
            engine_gpus=args.vllm.tensor_parallel_size,
            engines_share=train.colocate_all and not train.async_enable,
            shared_by=frozenset(flag for flag in SHARING if getattr(train, flag.removeprefix("train."))),
        )

    @property
    def actor(self) -> Model:
        return self.models["actor"]

    @property
    def gpus(self) -> int:
        """Count the GPUs that upstream's placement groups ask for; on a machine without CUDA they are logical resources
        of Ray."""
        alone = {name: model.gpus for name, model in self.models.items()}
        if {ALL, ACTOR_REF} & self.shared_by:
            alone.pop("ref", None)
        if ALL in self.shared_by:
            alone.pop("reward", None)
            if CRITIC_REWARD not in self.shared_by:
                alone.pop("critic", None)
        elif CRITIC_REWARD in self.shared_by and "critic" in alone:
            alone.pop("reward", None)
        return sum(alone.values()) + (0 if self.engines_share else self.engines * self.engine_gpus)
