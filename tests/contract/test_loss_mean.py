"""--actor.loss_mean: gradients of upstream's own trainer and DeepSpeed, two ranks, against means taken one token at a time."""

from fractions import Fraction

import pytest
import torch

from openrlhf_ebpo.cli import train_ppo_ray
from openrlhf_ebpo.cli.upstream_main import UpstreamMain
from openrlhf_ebpo.command import parse
from openrlhf_ebpo.training.loss_mean import within_micro_batch

DYNAMIC = ["step, dynamic, ZeRO 2", "micro_batch, dynamic, ZeRO 1", "micro_batch, dynamic, ZeRO 3"]
LOSS = torch.tensor([[8.0, 2.0, 4.0], [16.0, 1.0, 1.0], [32.0, 8.0, 2.0], [1.0, 1.0, 1.0]], dtype=torch.float64)
MASK = torch.tensor([[1, 1, 1], [1, 0, 0], [1, 1, 0], [0, 0, 0]])


def mean(mask, by_token: bool) -> Fraction:
    """Of the rows of LOSS under the mask, in rationals."""
    rows = [
        [Fraction(value) for value, there in zip(row, there, strict=True) if there]
        for row, there in zip(LOSS[: len(mask)].tolist(), mask.tolist(), strict=True)
    ]
    rows = [row for row in rows if row]
    if by_token:
        return sum(map(sum, rows)) / sum(map(len, rows))
    return sum(sum(row) / len(row) for row in rows) / len(rows)


@pytest.mark.parametrize("by_token", [True, False], ids=["token-mean", "seq-mean-token-mean"])
@pytest.mark.parametrize("share", [1.0, 0.25])
@pytest.mark.parametrize("rows", [1, 2, 3, 4])
def test_upstreams_loss_of_a_micro_batch_is_its_own_mean(by_token, share, rows):
    from openrlhf.models.loss import aggregate_loss

    loss, mask = LOSS[:rows], MASK[:rows]
    found = aggregate_loss(loss, mask, by_token, **within_micro_batch(mask, share))
    assert found.item() == pytest.approx(float(mean(mask, by_token)) * share, rel=1e-6)


@pytest.mark.parametrize("by_token", [True, False])
def test_a_micro_batch_without_a_token_has_no_loss(by_token):
    from openrlhf.models.loss import aggregate_loss

    empty = torch.zeros_like(MASK)
    assert aggregate_loss(LOSS, empty, by_token, **within_micro_batch(empty)).item() == 0


@pytest.mark.parametrize(("argv", "expected"), [([], "step"), (["--actor.loss_mean", "micro_batch"], "micro_batch")])
def test_the_flag_survives_upstreams_validation(argv, expected):
    command = UpstreamMain("openrlhf.cli.train_ppo_ray")
    argv = ["--actor.model_name_or_path", "m", "--reward.remote_url", "r.py", *argv]
    assert command.validate(parse(train_ppo_ray.build_parser(command), argv)).actor.loss_mean == expected


@pytest.fixture(scope="module")
def outcomes(of_two_ranks) -> dict:
    """Gradients of two ranks, as each case of loss_mean_ranks.py found and expected them."""
    return of_two_ranks[0]["loss_mean"]


@pytest.mark.parametrize("case", ["step", "micro_batch", "micro_batch, clip_cov", *DYNAMIC])
def test_the_gradient_of_two_ranks_is_that_of_the_mean_asked_for(outcomes, case):
    found = outcomes[case]
    assert found["distance"] < 0.02 * found["norm"], found  # bf16
    assert found["other"] > 0.1 * found["norm"]  # the other mean's gradient is another


def test_a_critics_gradient_under_dynamic_batches_is_the_same_in_every_zero_stage(outcomes):
    two, three = (outcomes["critic"][stage] for stage in ("2", "3"))
    assert max(map(abs, three)) > 0
    assert two == pytest.approx(three, rel=0.02, abs=0.02 * max(map(abs, three)))
