"""The estimators of the literature, each against its formula in plain Python loops, and what holds for all of them."""

import math
from dataclasses import replace

import numpy as np
import pytest

from openrlhf_ebpo.estimator import registry, stored
from openrlhf_ebpo.estimator.advantage import estimate
from openrlhf_ebpo.estimator.config import EstimatorConfig
from openrlhf_ebpo.estimator.contract import Batch
from openrlhf_ebpo.estimator.rehearsal import made_up

CONFIG = EstimatorConfig(n_samples_per_prompt=4)
METHODS = ["score_weighted"]


def build(name, config=CONFIG):
    return registry.build(name, config)


def run(name, batch, state=None, config=CONFIG):
    estimator = build(name, config)
    return estimate(estimator, batch, estimator.initial() if state is None else state)


def drawn(seed=0, groups=6, size=4, rate=0.4, ids=None) -> Batch:
    """Binary rewards, some responses not valid, one group without any, lengths and weights of all sizes."""
    random = np.random.default_rng(seed)
    valid = random.random((groups, size)) < 0.9
    valid[0], valid[-1] = True, False
    return Batch.of(
        (random.random((groups, size)) < rate).astype(float),
        valid,
        ids or tuple(f"prompt {i}" for i in range(groups)),
        (None,) * groups,
        random.integers(1, 50, (groups, size)),
        random.random((groups, size)) * 10,
    )


def rows(batch):
    """The valid responses of each group, as lists of (column, reward, length, weight)."""
    return [
        [
            (j, batch.rewards[i, j].item(), batch.lengths[i, j].item(), batch.score_weights[i, j].item())
            for j in range(batch.valid.shape[1])
            if batch.valid[i, j]
        ]
        for i in range(len(batch.valid))
    ]


def spread(batch, per_response) -> np.ndarray:
    """{(row, column): value} as an array, 0 elsewhere."""
    out = np.zeros_like(batch.rewards)
    for place, value in per_response.items():
        out[place] = value
    return out


def mean(values):
    values = list(values)
    return math.fsum(values) / len(values)


def std(values, ddof=1):
    values = list(values)
    centre = mean(values)
    return math.sqrt(math.fsum((v - centre) ** 2 for v in values) / (len(values) - ddof))


@pytest.mark.parametrize("name", METHODS)
def test_what_is_excluded_has_no_influence_and_gets_nothing(name):
    batch = drawn()
    result = run(name, batch)
    assert np.isfinite(result.advantages).all()
    assert (result.advantages[~batch.valid] == 0).all() and (result.advantages[-1] == 0).all()
    noise = np.where(batch.valid, 0.0, 7.5)
    other = Batch.of(
        batch.rewards + noise, batch.valid, batch.prompt_ids, (), batch.lengths + noise, batch.score_weights + noise
    )
    assert np.array_equal(run(name, other).advantages, result.advantages)


@pytest.mark.parametrize("reward", [0.0, 0.3, 1.0, -2.0])
@pytest.mark.parametrize("name", METHODS)
def test_constant_rewards_give_finite_advantages(name, reward):
    batch = drawn()
    batch = replace(batch, rewards=np.where(batch.valid, reward, 0.0))
    state = None
    for _ in range(3):
        result = run(name, batch, state)
        state = result.state
        assert np.isfinite(result.advantages).all()


@pytest.mark.parametrize("name", METHODS)
def test_the_scale_of_the_rewards_changes_nothing_but_the_scale_of_the_advantages(name):
    batch = drawn()
    other = replace(batch, rewards=np.where(batch.valid, 6 * batch.rewards - 2, 0.0))
    ours = run(name, batch).advantages
    theirs = run(name, other, config=EstimatorConfig(4, fail_reward=-2.0, pass_reward=4.0)).advantages
    ratio = 6.0 if name in ("opo", "james_stein") else 1.0
    assert theirs == pytest.approx(ratio * ours, rel=1e-4)


@pytest.mark.parametrize("name", METHODS)
def test_a_state_comes_back_and_goes_on_as_if_never_saved(name):
    estimator = build(name)
    state = estimator.initial()
    for seed in range(3):
        batch = drawn(seed)
        kept = estimate(estimator, batch, state)
        again = estimate(estimator, batch, stored.unpack(estimator, stored.pack(estimator, state)))
        assert np.array_equal(kept.advantages, again.advantages)
        state = kept.state


@pytest.mark.parametrize("name", METHODS)
def test_the_state_of_another_estimator_is_refused(name):
    other = build("ebpo")
    with pytest.raises(stored.PriorMismatch, match=f"estimator was 'ebpo' and is now '{name}'"):
        stored.unpack(build(name), stored.pack(other, other.initial()))


@pytest.mark.parametrize("name", METHODS)
def test_it_runs_on_what_the_rehearsal_makes_up(name):
    assert np.isfinite(run(name, made_up(CONFIG)).advantages).all()


def test_score_weighted_is_the_weighted_mean_divided_by_the_root_mean_square():
    batch = drawn()
    entries = {(i, j): (r, w) for i, row in enumerate(rows(batch)) for j, r, _, w in row}
    baseline = math.fsum(r * w for r, w in entries.values()) / math.fsum(w for _, w in entries.values())
    scale = math.sqrt(mean((r - baseline) ** 2 for r, _ in entries.values())) + 1e-6
    result = run("score_weighted", batch)
    assert result.baselines == pytest.approx(np.full((6, 1), baseline))
    assert result.advantages == pytest.approx(
        spread(batch, {k: (r - baseline) / scale for k, (r, _) in entries.items()})
    )


@pytest.mark.parametrize("weight", [0.0, 1.0, 3.5])
def test_score_weighted_with_equal_weights_takes_the_plain_mean(weight):
    batch = replace(drawn(), score_weights=np.full((6, 4), weight))
    assert run("score_weighted", batch).baselines[0, 0] == pytest.approx(batch.rewards[batch.valid].mean())


def test_score_weighted_gives_nothing_where_all_rewards_are_equal():
    batch = drawn()
    batch = replace(batch, rewards=np.where(batch.valid, 0.3, 0.0))
    assert (run("score_weighted", batch).advantages == 0).all()
