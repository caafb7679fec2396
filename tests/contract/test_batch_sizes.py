"""Batch sizes that DeepSpeed or OpenRLHF refuse after Ray and the engines are up are refused at the start, with numbers
that fit."""

import itertools
import re
from types import SimpleNamespace

import pytest

from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.run.batches import BatchSettings
from openrlhf_ebpo.train.batch_sizes import FROM_ONE, check_batch_sizes, check_positive
from openrlhf_ebpo.train.flags import build_parser
from openrlhf_ebpo.train.placement import Placement
from openrlhf_ebpo.train.upstream_main import UpstreamMain


@pytest.fixture(scope="module")
def values():
    """Flags by name: values({"train.batch_size": 8}). One actor process and no reference model unless asked for."""
    parser = build_parser(UpstreamMain("openrlhf.cli.train_ppo_ray"))
    defaults = vars(parser.parse_args(["--reward.remote_url", "math", "--vllm.num_engines", "1"]))
    small = {
        "algo.advantage.estimator": "rloo",
        "actor.num_gpus_per_node": 1,
        "algo.kl.init_coef": 0,
        "rollout.n_samples_per_prompt": 4,
    }
    return lambda changes: {**defaults, **small, **changes}


@pytest.fixture
def problem(sections):
    def problem(flags: dict) -> str | None:
        try:
            args = sections(**flags)
            check_positive(args)
            check_batch_sizes(args, BatchSettings.from_args(args), Placement.from_args(args))
        except UsageError as error:
            return str(error)
        return None

    return problem


@pytest.fixture
def deepspeed_takes(monkeypatch):
    """Ask DeepSpeed's own configuration, as OpenRLHF makes it."""
    from deepspeed.runtime import config

    monkeypatch.setattr(config.dist, "get_rank", lambda: 0)

    def takes(batch: int, micro: int, gpus: int, shared: int) -> bool:
        world = SimpleNamespace(get_data_parallel_world_size=lambda: gpus)
        asked = {"train_batch_size": batch * shared, "train_micro_batch_size_per_gpu": micro}
        try:
            return config.DeepSpeedConfig(asked, world).gradient_accumulation_steps > 0
        except AssertionError:
            return False

    return takes


@pytest.mark.parametrize("shared", [{}, {"ds.ring_attn_size": 2}, {"ds.tensor_parallel_size": 2}], ids=str)
def test_what_deepspeed_refuses_is_refused_and_the_rest_is_not(problem, values, deepspeed_takes, shared):
    seen = set()
    for batch, micro, gpus in itertools.product((4, 8, 12, 16, 24, 64), (1, 2, 3, 8, 16), (2, 4, 8, 16)):
        ranks = gpus // (2 if shared else 1)
        flags = values(
            {"train.batch_size": batch, "train.micro_batch_size": micro, "actor.num_gpus_per_node": gpus, **shared}
        )
        found = problem({**flags, "rollout.batch_size": 48})  # 192 responses: every batch fits into them
        fits = deepspeed_takes(batch, micro, gpus, 2 if shared else 1)
        assert (found is None) == fits, (batch, micro, gpus, found)
        if found:
            assert f"--train.batch_size {batch} " in found and f"--train.micro_batch_size {micro} x {ranks} " in found
        seen.add(fits)
    assert seen == {True, False}


def remedies(message: str) -> list[dict]:
    """The changes that a message offers."""
    found = []
    for offer in message.rpartition("give ")[2].split(", or "):
        pairs = re.findall(r"--([a-z_.]+) (\d+)(?: or (\d+))?", offer)
        if " or " in offer:
            found += [{flag: int(number)} for flag, *numbers in pairs for number in numbers]
        else:
            found.append({flag: int(number) for flag, number, _ in pairs})
    return found


CASES = {
    "8 responses on 8 GPUs": {"rollout.batch_size": 2, "train.batch_size": 8, "train.micro_batch_size": 2}
    | {"actor.num_gpus_per_node": 8},
    "between two that fit": {
        "rollout.batch_size": 8,
        "train.batch_size": 10,
        "train.micro_batch_size": 2,
        "actor.num_gpus_per_node": 2,
    },
    "fewer responses than ranks": {"rollout.batch_size": 1, "train.batch_size": 8, "actor.num_gpus_per_node": 8},
    "large micro-batches of rollouts": {
        "rollout.batch_size": 4,
        "rollout.micro_batch_size": 8,
        "train.batch_size": 16,
        "actor.num_gpus_per_node": 4,
    },
    "more than the rollouts": {"rollout.batch_size": 4, "train.batch_size": 32, "actor.num_gpus_per_node": 4},
    "one rank": {"rollout.batch_size": 4, "train.batch_size": 10, "train.micro_batch_size": 4},
    "no whole groups": {"rollout.batch_size": 2, "train.batch_size": 6, "actor.num_gpus_per_node": 2},
    "critic": {
        "algo.advantage.estimator": "gae",
        "rollout.batch_size": 4,
        "train.batch_size": 4,
        "critic.num_gpus_per_node": 8,
    },
    "reference": {
        "algo.kl.init_coef": 0.1,
        "rollout.batch_size": 6,
        "train.batch_size": 12,
        "ref.num_gpus_per_node": 8,
    },
    "reward": {
        "reward.remote_url": None,
        "reward.model_name_or_path": "m",
        "rollout.batch_size": 6,
        "train.batch_size": 12,
    },
    "dynamic": {
        "train.dynamic_batch_enable": True,
        "rollout.batch_size": 4,
        "train.batch_size": 2,
        "actor.num_gpus_per_node": 4,
    },
    "dynamic with a reference": {
        "train.dynamic_batch_enable": True,
        "algo.kl.init_coef": 0.1,
        "rollout.batch_size": 6,
        "train.batch_size": 12,
    },
    "ring attention": {
        "ds.ring_attn_size": 2,
        "rollout.batch_size": 3,
        "train.batch_size": 3,
        "actor.num_gpus_per_node": 8,
    },
}


@pytest.mark.parametrize("case", CASES)
def test_what_a_message_offers_is_taken(problem, values, sections, case):
    flags = values(CASES[case])
    message = problem(flags)
    offers = remedies(message)
    assert offers, message
    for offer in offers:
        better = {**flags, **offer}
        assert problem(better) is None, (message, offer)
        assert BatchSettings.from_args(sections(**better)).trainable(better["rollout.batch_size"] * 4) > 0


@pytest.mark.parametrize("flag", FROM_ONE)
@pytest.mark.parametrize("number", [0, -1])
def test_numbers_below_one_are_refused_by_their_flag(problem, values, flag, number):
    assert problem(values({"rollout.batch_size": 64, flag: number})) == f"--{flag} is {number}; give 1 or more"


def test_gpus_that_do_not_divide_among_ring_attention_are_refused(problem, values):
    message = problem(values({"actor.num_gpus_per_node": 6, "ds.ring_attn_size": 4}))
    assert "--actor.num_gpus_per_node 6" in message and "--ds.ring_attn_size 4" in message


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ({"train.colocate_all": True, "actor.num_gpus_per_node": 2}, ["--vllm.num_engines 1", "the 2 of --actor"]),
        (
            {"train.colocate_actor_ref": True, "algo.kl.init_coef": 0.1},
            ["--train.colocate_actor_ref", "--ref.num_gpus_per_node 8"],
        ),
    ],
)
def test_models_on_the_same_gpus_need_the_same_numbers(problem, values, flags, named):
    message = problem(values(flags))
    assert all(each in message for each in named)


def test_under_dynamic_batches_the_micro_batch_does_not_count(problem, values):
    dynamic = {"train.dynamic_batch_enable": True, "train.micro_batch_size": 7, "actor.num_gpus_per_node": 2}
    assert problem(values({**dynamic, "rollout.batch_size": 4, "train.batch_size": 16})) is None
