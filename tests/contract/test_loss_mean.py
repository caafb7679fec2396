"""The loss is one mean over all tokens of an optimizer step: gradients of upstream's own trainer and DeepSpeed on two
ranks, against a mean taken one token at a time; with dynamic batches too (upstream/policy/micro_batches.py)."""

import pytest


@pytest.fixture(scope="module")
def outcomes(of_two_ranks) -> dict:
    """Gradients of two ranks, as each case of loss_mean_ranks.py found and expected them."""
    return of_two_ranks[0]["loss_mean"]


@pytest.mark.parametrize("case", ["fixed", "dynamic, ZeRO 1", "dynamic, ZeRO 2", "dynamic, ZeRO 3"])
def test_the_gradient_of_two_ranks_is_that_of_the_mean_over_all_tokens(outcomes, case):
    found = outcomes[case]
    assert found["distance"] < 0.02 * found["norm"], found  # bf16


def test_a_critics_gradient_under_dynamic_batches_is_the_same_in_every_zero_stage(outcomes):
    two, three = (outcomes["critic"][stage] for stage in ("2", "3"))
    assert max(map(abs, three)) > 0
    assert two == pytest.approx(three, rel=0.02, abs=0.02 * max(map(abs, three)))
