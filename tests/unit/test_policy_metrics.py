"""Entropy and KL against their definitions."""

import math

import pytest
import torch

from openrlhf_ebpo.upstream.policy.micro_batches import EmptyMicroBatches, clamp_loss_normalisers
from openrlhf_ebpo.upstream.policy.policy_metrics import (
    ENTROPY_ROWS,
    entropy_sum,
    k3,
)


def slow_entropy(row: list[float]) -> float:
    total = math.fsum(math.exp(x) for x in row)
    return -math.fsum(math.exp(x) / total * math.log(math.exp(x) / total) for x in row)


@pytest.mark.parametrize("shape", [(3, 5), (1, ENTROPY_ROWS * 2 + 7), (ENTROPY_ROWS,)])
def test_the_entropy_is_summed_over_the_tokens_of_the_mask(shape):
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(*shape, 11, generator=generator)
    mask = torch.rand(shape, generator=generator) > 0.4
    expected = math.fsum(slow_entropy(row) for row in logits[mask].tolist())
    assert entropy_sum(logits, mask).item() == pytest.approx(expected, rel=1e-5)
    assert entropy_sum(logits, mask.long()).item() == pytest.approx(expected, rel=1e-5)


def test_even_logits_have_the_entropy_of_the_vocabulary_and_no_token_has_none():
    assert entropy_sum(torch.zeros(4, 32), torch.ones(4)).item() == pytest.approx(4 * math.log(32), rel=1e-6)
    assert entropy_sum(torch.zeros(4, 32), torch.zeros(4)).item() == 0.0


def test_a_token_that_cannot_come_adds_nothing_to_the_entropy():
    logits = torch.tensor([[0.0, 0.0, -math.inf]])
    assert entropy_sum(logits, torch.ones(1)).item() == pytest.approx(math.log(2), rel=1e-6)


def test_the_entropy_keeps_no_graph():
    logits = torch.zeros(2, 3, requires_grad=True)
    assert not entropy_sum(logits, torch.ones(2)).requires_grad


def test_k3_is_the_formula_and_never_negative():
    generator = torch.Generator().manual_seed(0)
    before, after = -5 * torch.rand(2, 1000, generator=generator)
    ratio = (after.double() - before.double()).exp()
    torch.testing.assert_close(k3(before, after), ratio - 1 - ratio.log(), rtol=0, atol=1e-12)
    assert (k3(before, after) >= 0).all()
    assert k3(before, before).abs().max() == 0


def test_k3_keeps_its_digits_where_a_step_is_tiny():
    before, after = torch.tensor([-1.0], dtype=torch.float64), torch.tensor([-1.0 + 1e-6], dtype=torch.float64)
    assert k3(before, after).item() == pytest.approx(0.5e-12, rel=1e-3)


def test_k3_over_tokens_sampled_before_is_the_kl_from_before_to_after():
    generator = torch.Generator().manual_seed(1)
    before, after = torch.randn(2, 8, generator=generator, dtype=torch.float64).log_softmax(-1)
    exact = (before.exp() * (before - after)).sum()
    torch.testing.assert_close((before.exp() * k3(before, after)).sum(), exact, rtol=0, atol=1e-9)


def test_a_step_without_tokens_has_something_to_divide_by_and_others_are_left_alone():
    def info(tokens, batch):
        found = {"batch_num_tokens": torch.tensor(tokens), "global_batch_size": torch.tensor(batch), "dp_size": 2}
        return clamp_loss_normalisers(lambda *args, **kwargs: dict(found))([], None, gas=4)

    assert 0 < info(0.0, 0.0)["batch_num_tokens"] < 0.01
    assert 0 < info(0.0, 0.0)["global_batch_size"] < 0.01
    assert info(12.5, 3.0)["batch_num_tokens"] == 12.5
    assert info(12.5, 3.0)["global_batch_size"] == 3.0
    assert info(0.0, 0.0)["dp_size"] == 2


@pytest.mark.parametrize("tokens", [0, 5])
def test_a_micro_batch_without_tokens_reports_0_where_upstream_has_0_by_0(tokens):
    class Upstream:
        def training_step(self, experience):
            metrics = {"policy_loss": torch.tensor(math.nan), "reward": torch.tensor(0.5)}
            return {
                "num_action_tokens": tokens,
                "metrics": metrics,
                "weights": {"policy_loss": "token", "reward": "sample"},
            }

    result = type("Trainer", (EmptyMicroBatches, Upstream), {})().training_step(None)
    assert result["metrics"]["reward"] == 0.5
    assert result["num_action_tokens"] == (tokens or pytest.approx(0, abs=0.01)) and result["num_action_tokens"] > 0
    assert result["metrics"]["policy_loss"].isnan() if tokens else result["metrics"]["policy_loss"] == 0
