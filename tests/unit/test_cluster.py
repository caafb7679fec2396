"""How many GPUs a run asks for; tests/contract holds the same function against upstream's own train()."""

import pytest

from openrlhf_ebpo.cluster import ClusterError, check_resources, gpus_needed

BASE = {
    "train.colocate_all": False,
    "train.colocate_actor_ref": False,
    "train.colocate_critic_reward": False,
    "train.async_enable": False,
    "algo.kl.init_coef": 0.01,
    "actor.num_nodes": 1,
    "actor.num_gpus_per_node": 4,
    "ref.num_nodes": 1,
    "ref.num_gpus_per_node": 4,
    "critic.num_nodes": 1,
    "critic.num_gpus_per_node": 2,
    "critic.model_name_or_path": None,
    "reward.num_nodes": 1,
    "reward.num_gpus_per_node": 2,
    "reward.remote_url": ["r.py"],
    "vllm.num_engines": 2,
    "vllm.tensor_parallel_size": 2,
}


@pytest.mark.parametrize(
    ("change", "needed"),
    [
        ({}, 4 + 4 + 4),
        ({"algo.kl.init_coef": 0.0}, 4 + 4),
        ({"actor.num_nodes": 2}, 8 + 4 + 4),
        ({"train.colocate_actor_ref": True}, 4 + 4),
        ({"train.colocate_all": True}, 4),
        ({"train.colocate_all": True, "train.async_enable": True}, 4 + 4),
        ({"train.async_enable": True}, 4 + 4 + 4),
        ({"vllm.num_engines": 0}, 4 + 4),
        ({"reward.remote_url": None}, 4 + 4 + 4 + 2),
        ({"critic.model_name_or_path": "c"}, 4 + 4 + 4 + 2),
        ({"critic.model_name_or_path": "c", "reward.remote_url": None}, 4 + 4 + 4 + 2 + 2),
        (
            {"critic.model_name_or_path": "c", "reward.remote_url": None, "train.colocate_critic_reward": True},
            4 + 4 + 4 + 2,
        ),
        ({"reward.remote_url": None, "train.colocate_critic_reward": True}, 4 + 4 + 4 + 2),
        ({"train.colocate_all": True, "reward.remote_url": None}, 4),
        ({"train.colocate_all": True, "critic.model_name_or_path": "c"}, 4),
        (  # upstream opens a placement group of its own for critic and reward, also here
            {
                "train.colocate_all": True,
                "critic.model_name_or_path": "c",
                "reward.remote_url": None,
                "train.colocate_critic_reward": True,
            },
            4 + 2,
        ),
    ],
    ids=str,
)
def test_the_gpus_of_every_way_to_share_them(sections, change, needed):
    assert gpus_needed(sections(**{**BASE, **change})) == needed


@pytest.mark.parametrize("found", [{"GPU": 2.0, "CPU": 64.0}, {"GPU": 8.0, "CPU": 3.0}, {"CPU": 64.0}, {}], ids=str)
def test_a_cluster_that_is_too_small_is_an_error_with_the_numbers(found):
    check_resources(4, {"GPU": 4.0, "CPU": 4.0})
    with pytest.raises(ClusterError) as error:
        check_resources(4, found)
    for part in ("needs 4 GPUs", f"{found.get('GPU', 0):g} GPUs", f"{found.get('CPU', 0):g} CPUs"):
        assert part in str(error.value)
