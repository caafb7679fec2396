"""How many GPUs a run asks for; tests/contract holds the same function against upstream's own train()."""

import os
import signal
import sys

import pytest

from openrlhf_ebpo.engines import cluster
from openrlhf_ebpo.engines.cluster import ClusterError, check_resources, gpus_needed, waits_for_others

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


def test_a_run_that_has_to_wait_for_other_jobs_says_so():
    assert waits_for_others(4, 4.0) is None
    for part in ("1 of the 4 GPUs", "RAY_ADDRESS=local"):
        assert part in waits_for_others(4, 1.0)


def test_a_sigterm_interrupts_though_ray_has_a_handler_of_its_own(monkeypatch):
    def connect(*_):
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # as ray.init does

    monkeypatch.setattr(cluster, "_connect", connect)
    monkeypatch.setattr(cluster, "end_processes", lambda children: None)  # pytest's may be others'
    for name in ("cluster_resources", "available_resources"):
        monkeypatch.setattr(f"ray.{name}", lambda: {"GPU": 1, "CPU": 2})
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), cluster.ray_with(1, ""):
        os.kill(os.getpid(), signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is before
