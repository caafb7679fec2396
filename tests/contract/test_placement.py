"""`Placement.gpus` against upstream's own train(), run until it would create the trainer."""

import itertools

import pytest

from openrlhf_ebpo.train.placement import Placement


class Placed(Exception):
    pass


@pytest.fixture
def gpus_asked_for(monkeypatch):
    """Runs upstream's train() with Ray's placement counted instead of carried out."""
    from openrlhf.cli import train_ppo_ray
    from openrlhf.trainer import ppo_trainer, ppo_trainer_async

    def count(args) -> int:
        asked = []

        def group(num_nodes, num_gpus_per_node, actor_class, pg=None, num_gpus_per_actor=1, **_):
            if pg is None:
                assert num_gpus_per_actor == 1
                asked.append(num_nodes * num_gpus_per_node)

        def engines(num_engines, tensor_parallel_size, *rest, **_):
            shared = rest[6]  # shared_pg, the ninth argument
            if shared is None:
                asked.append(num_engines * tensor_parallel_size)
            return []

        class Bundles:
            def __init__(self, bundles, strategy):
                asked.append(sum(bundle["GPU"] for bundle in bundles))

            def ready(self):
                return None

        class Strategy:
            def print(self, *_):
                return None

        class Trainer:
            @staticmethod
            def remote(*_, **__):
                raise Placed

        with monkeypatch.context() as patch:
            patch.setattr(train_ppo_ray.ray, "is_initialized", lambda: True)
            patch.setattr(train_ppo_ray.ray, "get", lambda ref: ref)
            patch.setattr(train_ppo_ray, "placement_group", Bundles)
            patch.setattr(train_ppo_ray, "RayActorGroup", group)
            patch.setattr(train_ppo_ray, "create_vllm_engines", engines)
            patch.setattr(train_ppo_ray, "get_strategy", lambda args: Strategy())
            patch.setattr(ppo_trainer, "PPOTrainer", Trainer)
            patch.setattr(ppo_trainer_async, "PPOTrainerAsync", Trainer)
            with pytest.raises(Placed):
                train_ppo_ray.train(args)
        return sum(asked)

    return count


PLACEMENTS = ("colocate_all", "colocate_actor_ref", "colocate_critic_reward", "async_enable")
MODELS = ("kl", "critic", "reward")


def combinations(names):
    return [dict(zip(names, on, strict=True)) for on in itertools.product([False, True], repeat=len(names))]


@pytest.mark.parametrize("places", combinations(PLACEMENTS), ids=lambda p: "+".join(n for n in p if p[n]) or "apart")
def test_the_gpus_are_those_that_upstream_asks_for(places, arguments, gpus_asked_for):
    found, asked = {}, {}
    for models in combinations(MODELS):
        name = "+".join(model for model in MODELS if models[model]) or "actor alone"
        args = arguments(places, models)
        found[name], asked[name] = Placement.from_args(args).gpus, gpus_asked_for(args)
    assert found == asked


@pytest.fixture
def arguments(sections):
    def build(places: dict, on: dict):
        return sections(
            **{f"train.{name}": value for name, value in places.items()},
            **{
                "train.seed": 1,
                "train.full_determinism_enable": False,
                "train.agent_func_path": None,
                "algo.kl.init_coef": 0.01 if on["kl"] else 0.0,
                "algo.advantage.is_correction_level": "off",
                "actor.model_name_or_path": "m",
                "actor.num_nodes": 2,
                "actor.num_gpus_per_node": 4,
                "ref.num_nodes": 2,
                "ref.num_gpus_per_node": 4,
                "algo.advantage.estimator": "gae" if on["critic"] else "rloo",
                "critic.model_name_or_path": "c" if on["critic"] else None,
                "critic.num_nodes": 1,
                "critic.num_gpus_per_node": 3,
                "reward.num_nodes": 1,
                "reward.num_gpus_per_node": 3 if places["colocate_critic_reward"] else 2,  # or upstream refuses
                "reward.model_name_or_path": "r" if on["reward"] else None,
                "reward.remote_url": None if on["reward"] else ["reward.py"],
                "vllm.num_engines": 4,
                "vllm.tensor_parallel_size": 2,
                "vllm.enable_prefix_caching": False,
                "vllm.enforce_eager": True,
                "vllm.gpu_memory_utilization": 0.5,
                "vllm.enable_sleep": False,
                "ds.ring_attn_size": 1,
                "ds.tensor_parallel_size": 1,
                "data.max_len": 64,
                "rollout.max_new_tokens": 16,
                "rollout.temperature": 1.0,
                "rollout.top_p": 1.0,
            },
        )

    return build
