"""Each estimator of the literature against its formula in plain Python, and against numbers of its released code.

The numbers are what the functions named in the estimators' docstrings give for REWARDS, to five places.
"""

import math
import operator
import statistics
from dataclasses import replace

import numpy as np
import pytest
from batches import drawn, groups_of, mean, of_rewards, placed, run, standardised, std

from openrlhf_ebpo.estimator.config import EstimatorConfig

SEEDS = range(8)
REWARDS = [[1, 0, 0, 0], [1, 1, 1, 1], [0, 0, 0, 0], [1, 1, 0, 1]]
LENGTHS = [[3, 1, 2, 4], [1, 2, 3, 4], [4, 4, 1, 1], [2, 5, 6, 1]]
NOTHING = [0.0] * 4


def first_right(right: float, wrong: float) -> list[float]:
    return [right, wrong, wrong, wrong]


def third_wrong(right: float, wrong: float) -> list[float]:
    return [right, right, wrong, right]


RELEASED = {
    "opo": [first_right(0.7, -0.3), NOTHING, NOTHING, third_wrong(0.42857, -0.57143)],
    "maxrl": [first_right(2.99999, -1.0), NOTHING, NOTHING, third_wrong(0.33333, -1.0)],
    "bnpo": [first_right(0.74218, -0.24739), NOTHING, NOTHING, third_wrong(0.24739, -0.74218)],
    "ngrpo": [first_right(1.09544, -0.7303), NOTHING, [-0.44721] * 4, third_wrong(0.44721, -1.78885)],
    "ha_dw": [first_right(2.88905, -0.5841), NOTHING, NOTHING, third_wrong(0.5841, -2.88905)],
}


@pytest.mark.parametrize("name", RELEASED)
def test_it_gives_what_the_released_code_gives(name):
    result = run(name, of_rewards(REWARDS, lengths=LENGTHS))
    assert result.advantages == pytest.approx(np.array(RELEASED[name]), abs=1e-5)


def test_ha_dw_gives_what_the_released_code_gives_with_a_history():
    result = run("ha_dw", of_rewards(REWARDS), {"batch_means": [0.2]})
    released = [first_right(2.48663, -0.67863), NOTHING, NOTHING, third_wrong(0.50274, -3.3566)]
    assert result.advantages == pytest.approx(np.array(released), abs=1e-5)


def own(name, batch, formula):
    """The estimator's advantages against formula(rewards of a group's valid responses)."""
    wanted = [formula(group) if group else [] for group in groups_of(batch, batch.rewards)]
    assert run(name, batch).advantages == pytest.approx(placed(batch, wanted), abs=1e-12)


@pytest.mark.parametrize("seed", SEEDS)
def test_score_weighted(seed):
    batch = drawn(seed)
    rewards = [r for group in groups_of(batch, batch.rewards) for r in group]
    weights = [w for group in groups_of(batch, batch.score_weights) for w in group]
    baseline = math.fsum(r * w for r, w in zip(rewards, weights, strict=True)) / math.fsum(weights)
    scale = math.sqrt(mean([(r - baseline) ** 2 for r in rewards])) + 1e-6
    own("score_weighted", batch, lambda group: [(r - baseline) / scale for r in group])
    assert run("score_weighted", batch).baselines == pytest.approx(np.full((6, 1), baseline))


@pytest.mark.parametrize("weight", [0.0, 1.0, 3.5])
def test_score_weighted_with_equal_weights_takes_the_plain_mean(weight):
    batch = replace(drawn(), give_score_weights=lambda: np.full((6, 4), weight))
    assert run("score_weighted", batch).baselines[0, 0] == pytest.approx(batch.rewards[batch.valid].mean())


def test_score_weighted_gives_nothing_where_all_rewards_are_equal():
    batch = drawn()
    batch = replace(batch, rewards=np.where(batch.valid, 0.3, 0.0))
    assert (run("score_weighted", batch).advantages == 0).all()


@pytest.mark.parametrize("seed", SEEDS)
def test_raw_reward(seed):
    batch = drawn(seed)
    scale = math.sqrt(mean([r**2 for group in groups_of(batch, batch.rewards) for r in group])) + 1e-6
    own("raw_reward", batch, lambda group: [r / scale for r in group])


@pytest.mark.parametrize("seed", SEEDS)
def test_mc_grpo(seed):
    def formula(group: list[float]) -> list[float]:
        median = statistics.median_low(group)
        spread = statistics.median_low([abs(r - median) for r in group]) + 1e-3
        differing = sum(r != median for r in group) or 1
        return [len(group) / differing * (r - median) / spread for r in group]

    own("mc_grpo", drawn(seed), formula)


def test_mc_grpo_of_two_and_one_more_pushes_the_odd_one_out():
    result = run("mc_grpo", of_rewards([[1, 0, 0], [0, 1, 1], [0, 0, 0]]), config=EstimatorConfig(3))
    assert result.baselines[:, 0].tolist() == [0, 1, 0]
    assert result.advantages == pytest.approx(np.array([[3000, 0, 0], [-3000, 0, 0], [0, 0, 0]]))


@pytest.mark.parametrize("seed", SEEDS)
def test_opo(seed):
    batch = drawn(seed)
    wanted = []
    for rewards, lengths in zip(groups_of(batch, batch.rewards), groups_of(batch, batch.lengths), strict=True):
        baseline = math.fsum(map(operator.mul, rewards, lengths)) / (sum(lengths) or 1)
        wanted.append([r - baseline for r in rewards])
    assert run("opo", batch).advantages == pytest.approx(placed(batch, wanted), abs=1e-12)


def test_opo_with_equal_lengths_takes_the_groups_mean():
    batch = replace(drawn(), lengths=np.full((6, 4), 17.0))
    assert run("opo", batch).advantages == pytest.approx(run("dr_grpo", batch).advantages)


def james_stein_baseline(groups, i, j):
    others = [group for k, group in enumerate(groups) if group and k != i]
    rest = [r for k, r in enumerate(groups[i]) if k != j]
    if not others:
        return mean(rest) if rest else groups[i][j]
    target = mean([mean(group) for group in others])
    if not rest:
        return target
    noises = [std(group) ** 2 / len(group) for group in others if len(group) > 1]
    v = mean(noises) if noises else 0.0
    s = mean([(mean(group) - target) ** 2 for group in others])
    weight = len(others) / (len(others) + 1) * v / (v + s) if v + s > 1e-12 else 0.0
    return (1 - weight) * mean(rest) + weight * target


@pytest.mark.parametrize("rate", [0.05, 0.4, 0.9])
@pytest.mark.parametrize("seed", SEEDS)
def test_james_stein(seed, rate):
    batch = drawn(seed, rate=rate)
    groups = groups_of(batch, batch.rewards)
    wanted = [[r - james_stein_baseline(groups, i, j) for j, r in enumerate(g)] for i, g in enumerate(groups)]
    result = run("james_stein", batch)
    assert result.advantages == pytest.approx(placed(batch, wanted), abs=1e-12)
    assert ((result.shrinkage >= 0) & (result.shrinkage <= 1)).all()


def test_a_james_stein_baseline_does_not_depend_on_its_own_reward():
    batch = drawn(3)
    changed = batch.rewards.copy()
    changed[0, 2] = 1 - changed[0, 2]
    before, after = (run("james_stein", replace(batch, rewards=r)).baselines for r in (batch.rewards, changed))
    assert before[0, 2] == pytest.approx(after[0, 2])
    assert before[0, 1] != pytest.approx(after[0, 1])


@pytest.mark.parametrize("shift", [-3.0, 0.5])
def test_james_stein_and_opo_do_not_depend_on_where_rewards_begin(shift):
    batch = drawn(2)
    moved = replace(batch, rewards=np.where(batch.valid, batch.rewards + shift, 0.0))
    for name in ("james_stein", "opo"):
        assert run(name, moved).advantages == pytest.approx(run(name, batch).advantages, abs=1e-12)


def test_james_stein_of_one_prompt_is_rloo():
    batch = of_rewards([[1, 0, 0, 1]])
    assert run("james_stein", batch).advantages == pytest.approx(run("rloo", batch).advantages)


@pytest.mark.parametrize("rate", [0.05, 0.4, 0.9])
@pytest.mark.parametrize("seed", SEEDS)
def test_bnpo(seed, rate):
    batch = drawn(seed, rate=rate)
    rates = [mean(group) for group in groups_of(batch, batch.rewards) if group]
    centre, variance = mean(rates), std(rates) ** 2
    size = centre * (1 - centre) / variance - 1 if variance else 0.0
    alpha, beta = max(1 + size * centre / 3, 1), max(1 + size * (1 - centre) / 3, 1)
    constant = math.gamma(alpha + beta) / math.gamma(alpha) / math.gamma(beta)

    def formula(group):
        p = mean(group)
        if p in (0, 1):
            return [0.0] * len(group)
        return [(r - p) * min(1 / (constant * p ** (alpha - 1) * (1 - p) ** (beta - 1)), 1e6) for r in group]

    own("bnpo", batch, formula)


def test_bnpo_with_equally_hard_prompts_is_dr_grpo():
    batch = of_rewards([[1, 0, 0, 0], [0, 0, 1, 0], [0, 1, 0, 0]])
    assert run("bnpo", batch).advantages == pytest.approx(run("dr_grpo", batch).advantages)


@pytest.mark.parametrize("seed", SEEDS)
def test_maxrl(seed):
    own("maxrl", drawn(seed), lambda group: [(r - mean(group)) / (mean(group) + 1e-6) for r in group])


@pytest.mark.parametrize("seed", SEEDS)
def test_ngrpo(seed):
    def formula(group):
        more = [*group, 1.0]
        return [(r - mean(more)) / (std(more) + 1e-6) for r in group]

    own("ngrpo", drawn(seed), formula)


def test_ngrpo_of_partial_rewards_above_the_pass_reward():
    batch = of_rewards([[1.5, 0.2, 0.2, 0.7]])
    own("ngrpo", batch, lambda group: [(r - 0.72) / (std([*group, 1.0]) + 1e-6) for r in group])


@pytest.mark.parametrize("seed", SEEDS)
def test_global_mean_and_grpo_batch_norm(seed):
    batch = drawn(seed)
    groups = groups_of(batch, batch.rewards)
    centred = [[r - mean(group) for r in group] for group in groups]
    assert run("global_mean", batch).advantages == pytest.approx(placed(batch, standardised(groups)), abs=1e-12)
    assert run("grpo_batch_norm", batch).advantages == pytest.approx(placed(batch, standardised(centred)), abs=1e-12)


def test_ha_dw_over_more_batches_than_its_window():
    state, means = None, []
    for seed in range(14):
        batch = drawn(seed, rate=seed / 14)
        groups = groups_of(batch, batch.rewards)
        means.append(mean([r for group in groups for r in group]))
        anchor = mean(means[-10:])
        wanted = []
        for group in groups:
            scale = std(group) + 1e-9 if group else 1.0
            wanted.append(
                [
                    1.5
                    * math.exp(-math.copysign(1, r - mean(group)) * (mean(group) - anchor))
                    * (r - mean(group))
                    / scale
                    for r in group
                ]
            )
        result = run("ha_dw", batch, state)
        assert result.advantages == pytest.approx(placed(batch, wanted), abs=1e-9)
        state = result.state
    assert state == {"batch_means": pytest.approx(means[-10:])}


def posterior_rates(batch, counts, keep, start):
    """Success rate before and after each group's batch, of prompts that come once a batch; changes `counts`."""
    found = []
    for name, group in zip(batch.prompt_ids, groups_of(batch, batch.rewards), strict=True):
        old = counts.get(name, start)
        new = (keep * old[0] + sum(group), keep * old[1] + len(group) - sum(group)) if group else old
        found.append((old[0] / sum(old), new[0] / sum(new)))
        if group:
            counts[name] = new
    return found


def test_dbb_over_several_epochs():
    state, counts = None, {}
    for seed in range(6):
        batch = drawn(seed)
        rates = posterior_rates(batch, counts, 0.75, (1.0, 1.0))
        wanted = [
            [(r - p) / (math.sqrt(p * (1 - p)) + 1e-6) for r in group]
            for group, (_, p) in zip(groups_of(batch, batch.rewards), rates, strict=True)
        ]
        result = run("dbb", batch, state)
        assert result.advantages == pytest.approx(placed(batch, wanted), abs=1e-12)
        state = result.state
    assert list(state.counts) == list(counts)
    assert np.array(list(state.counts.values())) == pytest.approx(np.array(list(counts.values())))


def test_spo_over_several_epochs():
    state, counts = None, {}
    for seed in range(6):
        batch = drawn(seed)
        rates = posterior_rates(batch, counts, 0.875, (0.5, 0.5))
        raw = [[r - v for r in group] for group, (v, _) in zip(groups_of(batch, batch.rewards), rates, strict=True)]
        result = run("spo", batch, state)
        assert result.advantages == pytest.approx(placed(batch, standardised(raw)), abs=1e-12)
        state = result.state
    assert list(state.counts) == list(counts)
    assert np.array(list(state.counts.values())) == pytest.approx(np.array(list(counts.values())))


def test_spo_begins_as_the_global_mean():
    batch = drawn()
    assert run("spo", batch).advantages == pytest.approx(run("global_mean", batch).advantages)


def test_the_first_step_of_dbb_by_hand():
    """α = 1 + 1, β = 1 + 3, less a quarter of the ones they begin with: p = 1.75 / 5.5."""
    result = run("dbb", of_rewards([[1, 0, 0, 0]], ("a",)))
    p = 1.75 / 5.5
    assert result.baselines[0, 0] == pytest.approx(p)
    assert result.advantages[0, 0] == pytest.approx((1 - p) / math.sqrt(p * (1 - p)), rel=1e-5)


def test_dbb_lets_an_all_fail_group_push_down_and_an_all_pass_group_push_up():
    result = run("dbb", of_rewards([[0, 0, 0, 0], [1, 1, 1, 1]], ("a", "b")))
    assert (result.advantages[0] < 0).all() and (result.advantages[1] > 0).all()
