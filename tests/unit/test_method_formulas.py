"""Each estimator of the literature against its formula in plain Python, and against numbers of its released code.

The numbers are what the functions named in the estimators' docstrings give for REWARDS, to five places.
"""

import math
import operator
from dataclasses import replace

import numpy as np
import pytest
from batches import drawn, groups_of, mean, of_rewards, placed, run, standardised, std

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
}


@pytest.mark.parametrize("name", RELEASED)
def test_it_gives_what_the_released_code_gives(name):
    result = run(name, of_rewards(REWARDS, lengths=LENGTHS))
    assert result.advantages == pytest.approx(np.array(RELEASED[name]), abs=1e-5)


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
def test_opo(seed):
    batch = drawn(seed)
    wanted = []
    for rewards, lengths in zip(groups_of(batch, batch.rewards), groups_of(batch, batch.lengths), strict=True):
        baseline = math.fsum(map(operator.mul, rewards, lengths)) / (sum(lengths) or 1)
        wanted.append([r - baseline for r in rewards])
    assert run("opo", batch).advantages == pytest.approx(placed(batch, wanted), abs=1e-12)


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


def test_james_stein_of_one_prompt_is_rloo():
    batch = of_rewards([[1, 0, 0, 1]])
    assert run("james_stein", batch).advantages == pytest.approx(run("rloo", batch).advantages)


@pytest.mark.parametrize("seed", SEEDS)
def test_maxrl(seed):
    own("maxrl", drawn(seed), lambda group: [(r - mean(group)) / (mean(group) + 1e-6) for r in group])


@pytest.mark.parametrize("seed", SEEDS)
def test_global_mean_and_grpo_batch_norm(seed):
    batch = drawn(seed)
    groups = groups_of(batch, batch.rewards)
    centred = [[r - mean(group) for r in group] for group in groups]
    assert run("global_mean", batch).advantages == pytest.approx(placed(batch, standardised(groups)), abs=1e-12)
    assert run("grpo_batch_norm", batch).advantages == pytest.approx(placed(batch, standardised(centred)), abs=1e-12)
