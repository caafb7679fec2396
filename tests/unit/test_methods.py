"""Every estimator of the literature keeps these rules."""

from dataclasses import fields, replace

import numpy as np
import pytest
from batches import CONFIG, drawn, run

from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.estimator import registry, stored
from openrlhf_ebpo.estimator.advantage import estimate
from openrlhf_ebpo.estimator.config import EstimatorConfig
from openrlhf_ebpo.estimator.contract import Batch
from openrlhf_ebpo.estimator.stored import example_batch

METHODS = [name for name, entry in registry.ESTIMATORS.items() if (entry.code or "").startswith("methods.")]
UNSCALED = {"opo", "james_stein"}  # their advantages are in units of the reward
OF_GROUPS = {"opo", "james_stein", "maxrl", "grpo_batch_norm"}


def constant(reward: float) -> Batch:
    batch = drawn()
    return replace(batch, rewards=np.where(batch.valid, reward, 0.0))


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("seed", range(5))
def test_what_is_excluded_has_no_influence_and_gets_nothing(name, seed):
    batch = drawn(seed)
    result = run(name, batch)
    assert np.isfinite(result.advantages).all() and result.advantages.any()
    assert (result.advantages[~batch.valid] == 0).all()
    noise = np.where(batch.valid, 0.0, np.nan)
    other = Batch.of(
        batch.rewards + noise, batch.valid, batch.prompt_ids, (), batch.lengths + noise, batch.score_weights + noise
    )
    assert np.array_equal(run(name, other).advantages, result.advantages)


@pytest.mark.parametrize("reward", [0.0, 0.3, 1.0, -2.0, 9.0])
@pytest.mark.parametrize("name", METHODS)
def test_constant_rewards_give_finite_advantages(name, reward):
    state = None
    for _ in range(50):
        result = run(name, constant(reward), state)
        state = result.state
        assert np.abs(result.advantages).max() < 10


@pytest.mark.parametrize("name", METHODS)
def test_one_valid_response_gives_finite_advantages(name):
    batch = drawn()
    result = run(name, Batch.of(np.ones((6, 4)), np.arange(24).reshape(6, 4) == 5, batch.prompt_ids))
    assert np.isfinite(result.advantages).all()


@pytest.mark.parametrize("name", METHODS)
def test_other_fail_and_pass_rewards_change_nothing_but_the_unit(name):
    other_config = EstimatorConfig(4, fail_reward=-2.0, pass_reward=4.0)
    states = [None, None]
    for seed in range(3):
        batch = drawn(seed)
        other = replace(batch, rewards=np.where(batch.valid, 6 * batch.rewards - 2, 0.0))
        ours, theirs = run(name, batch, states[0]), run(name, other, states[1], other_config)
        states = [ours.state, theirs.state]
        unit = 6.0 if name in UNSCALED else 1.0
        assert theirs.advantages == pytest.approx(unit * ours.advantages, rel=1e-4, abs=1e-9)
        baselines = [np.broadcast_to(result.baselines, (6, 4))[batch.valid] for result in (ours, theirs)]
        assert baselines[1] == pytest.approx(6 * baselines[0] - 2)


@pytest.mark.parametrize("name", METHODS)
def test_a_state_comes_back_and_goes_on_as_if_never_saved(name):
    estimator = registry.build(name, CONFIG)
    state = estimator.initial()
    for seed in range(3):
        kept = estimate(estimator, drawn(seed), state)
        again = estimate(estimator, drawn(seed), stored.unpack(estimator, stored.pack(estimator, state)))
        assert np.array_equal(kept.advantages, again.advantages)
        state = kept.state


@pytest.mark.parametrize("name", METHODS)
def test_the_state_of_another_estimator_is_refused(name):
    other = registry.build("ebpo", CONFIG)
    with pytest.raises(stored.PriorMismatch, match=f"'ebpo' .*'{name}'"):
        stored.unpack(registry.build(name, CONFIG), stored.pack(other, other.initial()))


@pytest.mark.parametrize("name", METHODS)
def test_a_step_changes_neither_batch_nor_state(name):
    estimator = registry.build(name, CONFIG)
    state = estimate(estimator, drawn(1), estimator.initial()).state
    before = stored.pack(estimator, state)
    batch, same = drawn(2), drawn(2)
    first, second = estimate(estimator, batch, state), estimate(estimator, batch, state)
    assert np.array_equal(first.advantages, second.advantages)
    assert stored.pack(estimator, state) == before
    names = [*(field.name for field in fields(Batch) if field.name != "give_score_weights"), "score_weights"]
    assert all(np.array_equal(getattr(batch, name), getattr(same, name)) for name in names)


@pytest.mark.parametrize("name", METHODS)
def test_it_runs_on_what_the_rehearsal_makes_up(name):
    assert np.isfinite(run(name, example_batch(CONFIG)).advantages).all()


@pytest.mark.parametrize("name", METHODS)
def test_it_says_what_it_compares_where_a_prompt_has_one_response(name):
    single = EstimatorConfig(n_samples_per_prompt=1)
    if name not in OF_GROUPS:
        batch = Batch.of([[1.0], [0.0], [0.0]], np.ones((3, 1)), ("a", "b", "c"))
        assert run(name, batch, config=single).advantages.any()
        return
    with pytest.raises(UsageError, match=f"n_samples_per_prompt is 1: {name} needs at least 2"):
        registry.build(name, single)


def test_the_mean_of_eight_equal_rewards_leaves_no_rounding_behind():
    batch = Batch.of(np.full((2, 8), 0.3), np.ones((2, 8)), ("a", "b"), (), np.arange(1, 17).reshape(2, 8))
    for name in sorted(OF_GROUPS):
        assert (run(name, batch, config=EstimatorConfig(8)).advantages == 0).all(), name
