"""Clip-Cov and KL-Cov against their equations, token by token in plain Python."""

import argparse
import math

import pytest
import torch

from openrlhf_ebpo.command import nested
from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.run.batches import BatchSettings
from openrlhf_ebpo.upstream.policy.policy_loss import (
    CovarianceLoss,
    CovarianceLosses,
    Tokens,
    add_flags,
    check_flags,
    clip_cov,
    kl_cov,
    notices,
    selection_size,
    token_covariance,
)

EXCLUDED = 2  # a row without a token to train on


def batch(seed=0, rows=5, length=40, dtype=torch.float32):
    """log π, log π_old, A, mask; one row is excluded, what the mask leaves out is absurd."""
    generator = torch.Generator().manual_seed(seed)
    log_probs = torch.randn(rows, length, generator=generator).abs().neg().mul(2).to(dtype)
    old = (log_probs.float() + 0.3 * torch.randn(rows, length, generator=generator)).to(dtype)
    advantages = torch.randn(rows, 1, generator=generator).expand(rows, length).clone()
    mask = torch.rand(rows, length, generator=generator) > 0.3
    mask[EXCLUDED] = False
    log_probs[~mask], old[~mask], advantages[~mask] = -50.0, -49.0, 1e3
    return log_probs, old, advantages, mask


def tokens_of(mask) -> list[tuple[int, int]]:
    return [(b, t) for b, row in enumerate(mask.tolist()) for t, on in enumerate(row) if on]


def slow_covariance(log_probs, advantages, mask) -> dict[tuple[int, int], float]:
    places = tokens_of(mask)
    x = {i: log_probs[i].item() for i in places}
    y = {i: advantages[i].item() for i in places}
    mean_x, mean_y = math.fsum(x.values()) / len(places), math.fsum(y.values()) / len(places)
    return {i: (x[i] - mean_x) * (y[i] - mean_y) for i in places}


def places_of(selected) -> set[tuple[int, int]]:
    return set(map(tuple, selected.nonzero().tolist()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("mask_type", [torch.bool, torch.long, torch.float32])
def test_the_covariance_is_the_product_of_what_each_token_is_off_its_mean(dtype, mask_type):
    log_probs, _, advantages, mask = batch(dtype=dtype)
    found = token_covariance(log_probs, advantages, mask.to(mask_type))
    assert found.dtype == torch.float32
    for place, value in slow_covariance(log_probs, advantages, mask).items():
        assert found[place].item() == pytest.approx(value, rel=1e-4, abs=1e-5)
    assert (found[~mask] == 0).all()


@pytest.mark.parametrize(
    ("ratio", "tokens", "size"),
    [
        (2e-4, 30720, 6),
        (2e-4, 9999, 1),
        (2e-4, 4, 1),
        (2e-4, 1, 1),
        (2e-4, 0, 0),
        (0.0, 100, 0),
        (1.0, 7, 7),
        (0.5, 7, 3),
        (1.0, 0, 0),
    ],
)
def test_the_number_of_tokens_is_rounded_down_and_at_least_one(ratio, tokens, size):
    assert selection_size(ratio, tokens) == size


def clip(log_probs, old, advantages, mask, *, ratio=0.1, bounds=(0.1, 3.0), eps_clip=(0.2, 0.2), seed=0):
    covariance = token_covariance(log_probs, advantages, mask)
    generator = torch.Generator().manual_seed(seed)
    settings = {"ratio": ratio, "bounds": bounds, "eps_clip": eps_clip, "generator": generator}
    return clip_cov(Tokens(log_probs - old, advantages, covariance, mask), **settings)


def slow_eligible(log_probs, old, advantages, mask, bounds=(0.1, 3.0), eps_clip=(0.2, 0.2)) -> set:
    found = set()
    for place, value in slow_covariance(log_probs, advantages, mask).items():
        r, a = math.exp(log_probs[place].item() - old[place].item()), advantages[place].item()
        clipped = (a > 0 and r > 1 + eps_clip[1]) or (a < 0 and r < 1 - eps_clip[0])
        if bounds[0] < value < bounds[1] and not clipped:
            found.add(place)
    return found


@pytest.mark.parametrize("ratio", [0.0, 1e-3, 0.1, 0.3, 1.0])
@pytest.mark.parametrize("bounds", [(0.1, 3.0), (-1.0, 0.5), (100.0, 200.0), (-math.inf, math.inf)])
@pytest.mark.parametrize("eps_clip", [(0.2, 0.2), (1.0, 1.0), (0.1, 0.28)])
def test_clip_cov_takes_out_eligible_tokens_alone(ratio, bounds, eps_clip):
    log_probs, old, advantages, mask = batch()
    changed, selected = clip(log_probs, old, advantages, mask, ratio=ratio, bounds=bounds, eps_clip=eps_clip)
    eligible = slow_eligible(log_probs, old, advantages, mask, bounds, eps_clip)
    size = max(math.floor(ratio * len(tokens_of(mask))), 1) if ratio else 0
    assert places_of(selected) <= eligible
    assert len(places_of(selected)) == min(size, len(eligible))
    assert (changed[selected] == 0).all()
    assert torch.equal(changed[~selected], advantages[~selected])


def test_every_eligible_token_has_the_same_chance():
    log_probs, old, advantages, mask = batch()
    eligible = slow_eligible(log_probs, old, advantages, mask)
    drawn = sum(clip(log_probs, old, advantages, mask, ratio=0.1, seed=seed)[1].float() for seed in range(2000))
    size = math.floor(0.1 * len(tokens_of(mask)))
    assert size < len(eligible) / 2
    expected = 2000 * size / len(eligible)
    for place in eligible:
        assert drawn[place].item() == pytest.approx(expected, abs=5 * math.sqrt(expected))


def test_the_choice_is_reproducible_with_the_seed_and_another_one_each_time():
    data = batch()
    covariance = token_covariance(data[0], data[2], data[3])

    def three(seed):
        generator = torch.Generator().manual_seed(seed)
        settings = {"ratio": 0.05, "bounds": (0.1, 3.0), "eps_clip": (0.2, 0.2), "generator": generator}
        return [clip_cov(Tokens(data[0] - data[1], data[2], covariance, data[3]), **settings)[1] for _ in range(3)]

    torch.manual_seed(7)
    before, first = torch.get_rng_state(), three(42)
    assert torch.equal(torch.get_rng_state(), before)  # the order of the data is drawn from that one
    assert all(map(torch.equal, first, three(42)))
    assert not torch.equal(first[0], first[1])
    assert not all(map(torch.equal, first, three(43)))


@pytest.mark.parametrize("ratio", [0.0, 1e-3, 0.1, 1.0])
def test_kl_cov_takes_the_tokens_of_the_highest_covariance(ratio):
    """Values and gradients: contract/test_policy_loss.py."""
    log_probs, old, advantages, mask = batch()
    covariance = token_covariance(log_probs, advantages, mask)
    changed, selected = kl_cov(Tokens(log_probs - old, advantages, covariance, mask), ratio=ratio, coef=1.0)
    slow = slow_covariance(log_probs, advantages, mask)
    size = max(math.floor(ratio * len(slow)), 1) if ratio else 0
    assert places_of(selected) == set(sorted(slow, key=slow.get, reverse=True)[:size])
    assert torch.equal(changed[~selected], advantages[~selected])


@pytest.mark.parametrize("delta", [-30.0, -19.0, 0.0, 1e-7, 19.0, 30.0])
def test_the_penalty_holds_for_any_change_of_the_policy(delta):
    log_probs = torch.tensor([[-40.0 + delta]], requires_grad=True)
    mask = torch.ones(1, 1, dtype=torch.bool)
    log_ratio = log_probs - torch.tensor([[-40.0]])
    found, _ = kl_cov(Tokens(log_ratio, torch.zeros(1, 1), torch.zeros(1, 1), mask), ratio=1.0, coef=2.0)
    loss = -log_ratio.clamp(-20, 20).exp() * found  # upstream's bounds
    loss.sum().backward()
    assert loss.item() == pytest.approx(2 * abs(log_ratio.item()), rel=1e-5, abs=1e-9)
    sign = math.copysign(1, log_ratio.item()) if log_ratio.item() else 0
    assert log_probs.grad.item() == pytest.approx(2 * sign, abs=1e-4)


def test_what_was_measured_joins_what_upstream_reports_weighted_by_tokens():
    log_probs, old, advantages, mask = batch()
    chosen = torch.zeros_like(mask)
    chosen[0, :3] = True
    loss = CovarianceLoss(lambda *args, **kwargs: (args, kwargs), lambda *args: (advantages + 1, chosen))
    args, kwargs = loss(log_probs, old, advantages, mask, dp_size=2)
    assert torch.equal(args[2], advantages + 1)
    assert kwargs.pop("action_mask") is mask
    assert kwargs == {"dp_size": 2}

    class Upstream:
        def training_step(self, _):
            return {"metrics": {"kl": 1.0}, "weights": {"kl": "sample"}}

    trainer = object.__new__(type("Trainer", (CovarianceLosses, Upstream), {}))
    trainer.actor_loss_fn = loss
    step = trainer.training_step(None)
    slow = slow_covariance(log_probs, advantages, mask)
    assert step["weights"] == {"kl": "sample", "policy/cov_selected_fraction": "token", "policy/cov_mean": "token"}
    assert step["metrics"]["policy/cov_selected_fraction"].item() == pytest.approx(3 / len(slow))
    assert step["metrics"]["policy/cov_mean"].item() == pytest.approx(math.fsum(slow.values()) / len(slow), rel=1e-4)


@pytest.fixture
def values():
    parser = argparse.ArgumentParser()
    parser.add_argument("--actor.policy_loss_type", default="ppo", choices=["ppo", "gspo"])
    parser.add_argument("--actor.dual_clip", type=float, default=None)
    add_flags(parser)
    return lambda *argv: nested(vars(parser.parse_args(argv))).actor


def test_the_defaults_are_the_papers(values):
    found = values("--actor.policy_loss_type", "clip_cov")
    assert (found.clip_cov.ratio, found.clip_cov.bounds) == (2e-4, (1.0, 5.0))
    assert (found.kl_cov.ratio, found.kl_cov.coef, found.dual_clip) == (2e-3, 1.0, None)
    check_flags(found)


@pytest.mark.parametrize(
    "argv",
    [
        ("--actor.clip_cov.ratio", "0"),
        ("--actor.clip_cov.ratio", "1"),
        ("--actor.clip_cov.bounds", "-1", "inf"),
        ("--actor.kl_cov.coef", "0"),
        ("--actor.policy_loss_type", "clip_cov", "--actor.dual_clip", "3"),
    ],
    ids=" ".join,
)
def test_values_at_the_edge_are_accepted(values, argv):
    check_flags(values(*argv))


@pytest.mark.parametrize(
    "argv",
    [
        ("--actor.clip_cov.ratio", "-0.1"),
        ("--actor.clip_cov.ratio", "1.1"),
        ("--actor.clip_cov.ratio", "nan"),
        ("--actor.kl_cov.ratio", "2"),
        ("--actor.clip_cov.bounds", "5", "1"),
        ("--actor.clip_cov.bounds", "1", "1"),
        ("--actor.clip_cov.bounds", "nan", "1"),
        ("--actor.kl_cov.coef", "-1"),
        ("--actor.kl_cov.coef", "inf"),
        ("--actor.dual_clip", "3", "--actor.policy_loss_type", "kl_cov"),
    ],
    ids=" ".join,
)
def test_a_value_that_makes_no_sense_is_an_error_that_names_the_flag(values, argv):
    with pytest.raises(UsageError, match=argv[0].replace(".", r"\.")):
        check_flags(values(*argv))


@pytest.mark.parametrize(
    ("loss_type", "batch_size", "epochs", "warned"),
    [
        ("kl_cov", 32, 1, True),
        ("kl_cov", 64, 1, True),
        ("kl_cov", 16, 1, False),
        ("kl_cov", 32, 2, False),
        ("clip_cov", 32, 1, False),
        ("ppo", 32, 1, False),
    ],
)
def test_kl_cov_with_one_optimizer_step_a_batch_is_warned_about(loss_type, batch_size, epochs, warned):
    found = notices(loss_type, BatchSettings(8, 4, batch_size, micro=4, epochs=epochs))
    assert bool(found) == warned
    assert all("--train.batch_size" in line for line in found)


@pytest.mark.parametrize(
    ("loss_type", "micro_batch_size", "dynamic", "warned"),
    [
        ("clip_cov", 1, False, True),
        ("kl_cov", 1, False, True),
        ("clip_cov", 1, True, False),
        ("clip_cov", 2, False, False),
        ("gspo", 1, False, False),
    ],
)
def test_micro_batches_of_one_response_are_warned_about(loss_type, micro_batch_size, dynamic, warned):
    found = notices(loss_type, BatchSettings(8, 4, 16, micro=micro_batch_size, dynamic=dynamic))
    assert bool(found) == warned
    assert all("--train.micro_batch_size is 1" in line for line in found)
