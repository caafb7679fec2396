"""A batch is cut into as many micro-batches, of one size, for every rank, and nothing of it is dropped."""

import itertools

import pytest

from openrlhf_ebpo.upstream.controller.experience_maker import micro_batch_size

CASES = {  # of micro_batch_ranks.py -> responses, micro-batches of each rank
    "three micro-batches for two ranks": (24, [6, 6]),
    "the last batch, one micro-batch": (8, [4]),
    "a prime number for each rank": (14, [7]),
    "two for two": (16, [8]),
}


@pytest.mark.parametrize("case", CASES)
def test_two_ranks_train_on_all_of_a_batch_with_the_gradient_of_one(of_two_ranks, case):
    found, (responses, sizes) = [rank["micro_batches"][case] for rank in of_two_ranks], CASES[case]
    assert [each["sizes"] for each in found] == [sizes] * 2
    assert found[0]["prompts"] + found[1]["prompts"] == [f"p{i}" for i in range(responses)]
    for each in found:
        assert each["distance"] < 0.03 * each["norm"]  # bf16


def test_the_size_is_the_largest_that_fits():
    for responses, ranks, limit in itertools.product(range(1, 200), (1, 2, 3, 8), (1, 2, 8, 32, 500)):
        size = micro_batch_size(responses, ranks, limit)
        if responses % ranks:
            assert size is None
            continue
        share = responses // ranks
        assert share % size == 0 and size <= limit
        assert not [other for other in range(size + 1, min(limit, share) + 1) if share % other == 0]


@pytest.mark.parametrize(
    ("changes", "sizes"),
    [
        ({}, [6, 6, 6, 6]),
        ({"actor.num_gpus_per_node": 1}, [8, 8, 8]),  # one rank: as upstream cuts it
        ({"ds.ring_attn_size": 2}, [8, 8, 8]),  # two GPUs are one rank
        ({"actor.num_gpus_per_node": 3}, [8, 8, 8]),
        ({"rollout.micro_batch_size": 5}, [4] * 6),
        ({"actor.num_gpus_per_node": 5}, [8, 8, 8]),  # 24 responses do not divide among five ranks
    ],
    ids=str,
)
def test_several_ranks_get_equal_parts(rollout_args, answers, to_samples, make_maker, patched_class, changes, sizes):
    flags = {"rollout.micro_batch_size": 8, "actor.num_gpus_per_node": 2, **changes}
    args = rollout_args("ebpo", G=4, **flags)
    maker = make_maker(patched_class, args)
    samples = to_samples(answers([float(i % 2) for i in range(24)]).responses(), args)
    for sample in samples:
        sample.info.clear()
    found = maker.split_rollout_samples(samples)
    assert [len(each.sequences) for each in found] == sizes
    assert [index for each in found for index in each.index] == list(range(24))
    assert args.rollout.micro_batch_size == flags["rollout.micro_batch_size"]


def test_dynamic_batches_are_cut_by_their_tokens(
    rollout_args, answers, to_samples, make_maker, patched_class, original_class
):
    args = rollout_args("ebpo", G=4, **{"train.dynamic_batch_enable": True, "actor.num_gpus_per_node": 2})
    cuts = []
    for maker_class in (patched_class, original_class):
        samples = to_samples(answers([float(i % 2) for i in range(24)]).responses(), args)
        for sample in samples:
            sample.info.clear()
        cuts.append([each.index for each in make_maker(maker_class, args).split_rollout_samples(samples)])
    assert cuts[0] == cuts[1] and len(cuts[0]) % 2 == 0
