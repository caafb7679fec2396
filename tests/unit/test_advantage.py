"""`estimate` against the worked example and against a slow reference."""

import math

import numpy as np
import pytest
import torch
from estimates import ebpo_step
from properties import given, settings, st

from openrlhf_ebpo.estimator.advantage import grpo_advantages, with_statistics
from openrlhf_ebpo.estimator.config import EstimatorConfig
from openrlhf_ebpo.estimator.contract import Batch
from openrlhf_ebpo.estimator.prior import Prior
from tests.reference_ebpo import Reference

CONFIG = EstimatorConfig(n_samples_per_prompt=4)
EXAMPLE = torch.tensor([[1.0, 0, 0, 0], [1, 1, 1, 1], [0, 0, 0, 0]])
ALL = torch.ones(3, 4, dtype=torch.bool)


def numbers(values) -> list[float]:
    return values.reshape(-1).tolist()


def test_the_worked_example_in_all_its_numbers():
    result = ebpo_step(EXAMPLE, ALL, Prior(), CONFIG)
    assert numbers(result.group_means) == [0.25, 1.0, 0.0]
    assert result.state.rewards.mean == pytest.approx(5 / 12, rel=1e-14)
    assert result.state.rewards.variance == pytest.approx(35 / 144, rel=1e-14)
    assert result.state.group_means.variance == pytest.approx(13 / 72, rel=1e-14)
    assert numbers(result.shrinkage) == pytest.approx([35 / 139] * 3, rel=1e-14)
    assert numbers(result.baselines) == pytest.approx([0.2919664, 0.8531175, 0.1049161], abs=5e-8)
    assert (result.rewards - result.baselines)[2, 0].item() == pytest.approx(-0.1049161, abs=5e-8)
    assert result.grpo_advantages[2].tolist() == [0.0] * 4
    expected = [[2.4928, -1.0280, -1.0280, -1.0280], [0.5171] * 4, [-0.3694] * 4]
    assert result.advantages.tolist() == [pytest.approx(row, abs=5e-5) for row in expected]


def test_the_metrics_of_the_worked_example():
    assert ebpo_step(EXAMPLE, ALL, Prior(), CONFIG).metrics == pytest.approx(
        {
            "ebpo/shrinkage": 35 / 139,
            "ebpo/prior_mean": 5 / 12,
            "ebpo/within_variance": 35 / 144,
            "ebpo/between_variance": 13 / 72,
            "ebpo/prior_count": 12,
            "ebpo/rescued_fraction": 8 / 12,
            "ebpo/all_fail_fraction": 1 / 3,
            "ebpo/all_pass_fraction": 1 / 3,
        }
    )


@st.composite
def batches(draw):
    """Batches of one run: (fail, pass), then lists of (rewards, valid); single groups can lose all their samples."""
    low, high = draw(st.sampled_from([(0.0, 1.0), (-1.0, 1.0), (0.0, 10.0)]))
    size = draw(st.integers(2, 5))
    step = st.sampled_from([0, 0, 0, 1, 1, 0.5, 0.3, 0.125]).map(lambda share: low + share * (high - low))
    rows = st.lists(st.tuples(st.lists(step, min_size=size, max_size=size), st.integers(0, 3)), min_size=1, max_size=5)
    runs = []
    for rows_of_batch in draw(st.lists(rows, min_size=1, max_size=4)):
        valid = []
        for _, kind in rows_of_batch:
            row = st.lists(st.booleans(), min_size=size, max_size=size)
            valid.append([True] * size if kind > 1 else [False] * size if kind == 1 else draw(row))
        valid[0][0] = True
        runs.append(([r for r, _ in rows_of_batch], valid))
    return (low, high), size, runs


@given(batches())
@settings(max_examples=60)
def test_estimate_is_the_slow_reference_batch_after_batch(drawn):
    (low, high), size, runs = drawn
    config = EstimatorConfig(n_samples_per_prompt=size, fail_reward=low, pass_reward=high)
    prior, reference, seen = Prior(), Reference(config), 0
    for rewards, valid in runs:
        result = ebpo_step(torch.tensor(rewards, dtype=torch.float64), torch.tensor(valid), prior, config)
        prior, seen = result.state, seen + sum(map(sum, valid))
        shrinkages, baselines, advantages = reference.step(
            rewards, valid, [[1.0] * size] * len(rewards), [None] * len(rewards)
        )
        assert prior.rewards.count == seen
        for values, expected in ((result.shrinkage, shrinkages), (result.baselines, baselines)):
            pairs = [(f, e) for f, e in zip(numbers(values), expected, strict=True) if e is not None]
            assert [f for f, _ in pairs] == pytest.approx([e for _, e in pairs], rel=1e-7, abs=1e-9)
        raw = (result.rewards - result.baselines)[result.valid] / (high - low)
        if len(raw) < 2 or not 1e-8 < raw.std() < 1e-5:  # at the threshold itself rounding decides
            assert result.advantages.tolist() == [pytest.approx(row, rel=1e-6, abs=1e-6) for row in advantages]


def test_rewards_in_float32_are_taken_as_they_are():
    values = torch.tensor([[0.1, 0.7], [0.3, 0.3]])
    single = ebpo_step(values, values > 0, Prior(), EstimatorConfig(n_samples_per_prompt=2))
    double = ebpo_step(values.double(), values > 0, Prior(), EstimatorConfig(n_samples_per_prompt=2))
    assert single.state == double.state
    assert torch.equal(single.advantages, double.advantages)
    assert single.advantages.dtype == torch.float64


@settings(max_examples=30)
@given(st.lists(st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=4, max_size=4), min_size=2, max_size=6))
def test_centring_cancels_the_prior_mean_where_all_groups_share_one_weight(rows):
    rewards = torch.tensor(rows, dtype=torch.float64)
    prior = Prior.of([1.0] * 20 + [0.0] * 30, [0.2] * 5 + [0.9] * 3)
    result = ebpo_step(rewards, torch.ones_like(rewards).bool(), prior, CONFIG)
    raw, weight = rewards - result.baselines, result.shrinkage[0, 0]
    without = rewards - ((1 - weight) * result.group_means + weight * rewards.mean())
    torch.testing.assert_close(raw - raw.mean(), without, rtol=0, atol=1e-12)
    torch.testing.assert_close(result.advantages * (without.std() + 1e-6), without, rtol=0, atol=1e-9)


@pytest.mark.parametrize("size", [2, 3, 4, 8])
def test_it_is_a_leave_one_out_james_stein_baseline_up_to_scale(size):
    """docs/estimator.md: r − V = c·(r − [(1 − λ)·mean of the others + λ·μ_glob])."""
    rewards = torch.rand(20, size, generator=torch.Generator().manual_seed(size), dtype=torch.float64)
    result = ebpo_step(rewards, torch.ones_like(rewards).bool(), Prior(), EstimatorConfig(n_samples_per_prompt=size))
    weight = result.shrinkage[0, 0]
    others = (rewards.sum(-1, keepdim=True) - rewards) / (size - 1)
    scale, towards_prior = (size - 1 + weight) / size, weight * size / (size - 1 + weight)
    expected = scale * (rewards - ((1 - towards_prior) * others + towards_prior * result.state.rewards.mean))
    torch.testing.assert_close(rewards - result.baselines, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("value", [0.0, 1.0, 0.3])
def test_a_batch_of_one_value_moves_nothing_also_where_groups_differ_in_size(value):
    """Their weights and so their baselines differ; standardising would blow that difference up to full units."""
    prior = ebpo_step(EXAMPLE, ALL, Prior(), CONFIG).state
    valid = ALL.clone()
    valid[0, 1:] = False
    result = ebpo_step(torch.full((3, 4), value), valid, prior, CONFIG)
    assert result.shrinkage[0, 0] > result.shrinkage[1, 0]
    assert not result.advantages.any()


def test_an_excluded_sample_has_no_influence_and_no_advantage():
    valid = ALL.clone()
    valid[0, 3] = valid[1, 0] = False
    results = []
    for junk in (0.0, 1e9, math.nan, math.inf):
        rewards = EXAMPLE.clone()
        rewards[~valid] = junk
        results.append(ebpo_step(rewards, valid, Prior(), CONFIG))
        assert not results[-1].advantages[~valid].any()
        assert not results[-1].grpo_advantages[~valid].any()
        assert torch.equal(results[-1].advantages, results[0].advantages)
    assert results[0].state.rewards.count == 10
    assert numbers(results[0].group_means) == pytest.approx([1 / 3, 1.0, 0.0])
    assert results[0].shrinkage[0, 0] == results[0].shrinkage[1, 0] > results[0].shrinkage[2, 0]


def test_a_group_without_a_valid_sample_leaves_no_trace():
    valid = ALL.clone()
    valid[1] = False
    result = ebpo_step(EXAMPLE, valid, Prior(), CONFIG)
    alone = ebpo_step(EXAMPLE[[0, 2]], ALL[:2], Prior(), CONFIG)
    assert result.state == alone.state
    assert torch.equal(result.advantages[[0, 2]], alone.advantages)
    assert not result.advantages[1].any()
    assert result.metrics == alone.metrics


def test_a_batch_without_a_valid_sample_is_an_error():
    with pytest.raises(ValueError, match="no sample"):
        ebpo_step(EXAMPLE, ~ALL, Prior(), CONFIG)


@pytest.mark.parametrize("value", [0.3, 0.1, 1 / 3, -0.7, 0.0, 1.0])
def test_grpo_gives_constant_groups_exactly_zero(value):
    rewards = np.full((2, 8), value, dtype=np.float32).astype(np.float64)
    assert not grpo_advantages(rewards, np.ones_like(rewards, dtype=bool), 1.0).any()
    assert not grpo_advantages(rewards.astype(np.float32), np.ones((2, 8), bool), 1.0).any()


def test_grpo_normalises_within_the_valid_samples_of_a_group():
    rewards = np.array([[1.0, 0.0, 0.25, 9.0]], dtype=float)
    valid = np.array([[1.0, 1.0, 1.0, 0.0]]) > 0
    counted = np.array([1.0, 0.0, 0.25])
    expected = [*(counted - counted.mean()) / (counted.std(ddof=1) + 1e-9), 0.0]
    assert numbers(grpo_advantages(rewards, valid, 1.0)) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("fail", "success", "rewards", "all_fail", "all_pass"),
    [
        (0, 1, [[0, 0], [1, 1], [0, 1], [0.5, 0.5]], 1 / 4, 1 / 4),
        (-1, 1, [[-1, -1], [-1, -1], [0, 0], [1, 1]], 2 / 4, 1 / 4),
        (0, 10, [[9e-6, 0], [10, 10 - 9e-6], [2e-5, 0], [1, 1]], 1 / 4, 1 / 4),
    ],
)
def test_groups_that_all_fail_or_all_pass_are_counted(fail, success, rewards, all_fail, all_pass):
    rewards = np.array(rewards, dtype=float)
    found = with_statistics(Batch.of(rewards, np.ones_like(rewards)), rewards, fail, success)
    assert found.metrics == pytest.approx({"ebpo/all_fail_fraction": all_fail, "ebpo/all_pass_fraction": all_pass})


def test_outcomes_look_at_valid_samples_and_at_groups_that_have_one():
    rewards = np.array([[0.0, 1.0], [1.0, 0.0], [0.0, 0.0]], dtype=float)
    valid = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 0.0]]) > 0
    found = with_statistics(Batch.of(rewards, valid), rewards, 0.0, 1.0)
    assert found.metrics == {"ebpo/all_fail_fraction": 0.5, "ebpo/all_pass_fraction": 0.5}


def test_rescued_responses_are_valid_and_were_zero_under_grpo():
    valid = ALL.clone()
    valid[2, :2] = False
    result = ebpo_step(EXAMPLE, valid, Prior(), CONFIG)
    assert result.metrics["ebpo/rescued_fraction"] == pytest.approx(6 / 10)
    nothing = ebpo_step(torch.zeros(3, 4), ALL, Prior(), CONFIG)
    assert nothing.metrics["ebpo/rescued_fraction"] == 0.0
