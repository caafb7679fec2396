"""The running moments, whatever way the data is cut; and every stored prior that must not be taken."""

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from properties import assume, given, settings, st

from openrlhf_ebpo.estimator import stored as storage
from openrlhf_ebpo.estimator.config import EstimatorConfig
from openrlhf_ebpo.estimator.contract import Batch
from openrlhf_ebpo.estimator.ebpo import EBPO
from openrlhf_ebpo.estimator.prior import Moments, Prior
from openrlhf_ebpo.estimator.stored import SCHEMA, PriorMismatch, pack, unpack

VALUES = st.floats(-1e6, 1e6, width=32)
EBPO_4 = EBPO(EstimatorConfig(n_samples_per_prompt=4))
IDENTITY = EBPO_4.identity()


def close(found: Moments, values) -> None:
    values = np.asarray(values, dtype=np.float64)
    spread = np.abs(values).max() if values.size else 0.0
    assert found.count == values.size
    assert found.mean == pytest.approx(values.mean(), rel=1e-12, abs=1e-12 * spread)
    assert found.m2 == pytest.approx(((values - values.mean()) ** 2).sum(), rel=1e-9, abs=1e-12 * spread**2)


@given(st.lists(st.lists(VALUES, max_size=12), min_size=1, max_size=8))
def test_any_split_into_batches_gives_the_moments_of_all_values(batches):
    values = list(itertools.chain.from_iterable(batches))
    assume(values)
    merged = Moments()
    for batch in batches:
        merged = merged.merge(Moments.of(batch))
    close(Moments.of(values), values)
    close(merged, values)
    assert merged.variance == pytest.approx(np.var(values), rel=1e-9, abs=1e-12 * np.abs(values).max() ** 2)


@given(st.lists(VALUES, min_size=1), st.lists(VALUES, min_size=1), st.lists(VALUES, min_size=1))
def test_the_order_and_the_nesting_of_merges_do_not_matter(a, b, c):
    x, y, z = map(Moments.of, (a, b, c))
    for merged in (x.merge(y).merge(z), x.merge(y.merge(z)), z.merge(y).merge(x), z.merge(x.merge(y))):
        close(merged, a + b + c)


def test_a_small_spread_on_a_large_mean_keeps_its_variance():
    values = 1e8 + np.array([0.0, 1.0, 2.0, 3.0])
    merged = Moments.of(values[:1]).merge(Moments.of(values[1:3])).merge(Moments.of(values[3:]))
    assert merged.variance == pytest.approx(1.25, rel=1e-9)


def test_an_empty_batch_is_neutral_on_both_sides():
    some = Moments.of([0.1, 0.7, 0.9])
    assert Moments.of([]) == Moments()
    assert some.merge(Moments.of([])) == some
    assert Moments.of([]).merge(some) == some
    assert Moments().variance == 0.0


@pytest.mark.parametrize("shape", [(12,), (3, 4), (2, 2, 3)])
def test_the_shape_and_the_dtype_of_a_batch_do_not_matter(shape):
    values = np.linspace(0, 1, 12, dtype=np.float32)
    assert Moments.of(values.reshape(shape)) == Moments.of(values.astype(np.float64))


def test_sums_are_exactly_rounded_so_the_order_of_a_batch_leaves_the_same_bits():
    rng = np.random.default_rng(0)
    values = rng.normal(size=1001)
    assert Moments.of(values) == Moments.of(rng.permutation(values)) == Moments.of(values[::-1])


def test_merge_returns_the_next_prior_and_leaves_the_old_one():
    before = Prior.of([1.0, 0.0], [0.5])
    kept = pack(EBPO_4, before)
    after = before.merge(Prior.of([1.0, 1.0, 0.0, 1.0], [1.0, 0.5]))
    assert pack(EBPO_4, before) == kept
    assert (after.rewards.count, after.group_means.count, after.batches) == (6, 3, 2)
    assert after.rewards.mean == pytest.approx(4 / 6)
    assert after.rewards.variance == pytest.approx(np.var([1, 0, 1, 1, 0, 1]))
    assert after.group_means.variance == pytest.approx(np.var([0.5, 1.0, 0.5]))
    with pytest.raises(AttributeError):
        after.batches = 7


@given(st.lists(VALUES, min_size=1, max_size=9), st.lists(VALUES, min_size=1, max_size=9))
def test_a_prior_comes_back_from_json_to_the_last_bit(rewards, means):
    prior = Prior.of(rewards, means).merge(Prior.of(means, rewards))
    state = json.loads(json.dumps(pack(EBPO_4, prior)))
    assert state == pack(EBPO_4, prior)
    assert unpack(EBPO_4, state) == prior


def stored(**changes) -> dict:
    return {**pack(EBPO_4, Prior.of([1.0, 0.0, 0.0, 0.0], [0.25])), **changes}


def read(tmp_path, state) -> Prior:
    path = tmp_path / "prior.json"
    path.write_text(state if isinstance(state, str) else json.dumps(state))
    return storage.read(EBPO_4, path)


def test_a_prior_that_fits_is_read(tmp_path):
    assert read(tmp_path, stored()) == Prior.of([1.0, 0.0, 0.0, 0.0], [0.25])
    recorded = Path(__file__).parents[1] / "data" / "quickstart_run" / "prior.json"
    assert storage.read(EBPO_4, recorded).rewards.count == 30720


@pytest.mark.parametrize(
    ("key", "was", "shown"),
    [
        ("estimator", "grpo", "estimator was 'grpo' and is now 'ebpo'"),
        ("variant", {"history": "batch"}, "variant was {'history': 'batch'} and is now"),
        ("n_samples_per_prompt", 8, "n_samples_per_prompt was 8 and is now 4"),
        ("fail_reward", -1.0, "fail_reward was -1.0 and is now 0.0"),
        ("pass_reward", 2.0, "pass_reward was 2.0 and is now 1.0"),
        ("a_key_of_a_later_version", 1, "a_key_of_a_later_version was 1 and is now None"),
    ],
)
def test_a_prior_of_another_estimator_is_refused_by_name(tmp_path, key, was, shown):
    with pytest.raises(PriorMismatch) as error:
        read(tmp_path, stored(identity={**IDENTITY, key: was}))
    assert_helps(error, tmp_path, shown)


def test_all_differences_are_named_at_once(tmp_path):
    with pytest.raises(PriorMismatch) as error:
        read(tmp_path, stored(identity={**IDENTITY, "fail_reward": -1.0, "n_samples_per_prompt": 8}))
    assert_helps(error, tmp_path, "fail_reward was -1.0", "n_samples_per_prompt was 8")


DAMAGED = {
    "later schema": (stored(schema=SCHEMA + 1), f"prior schema {SCHEMA + 1}, this version reads {SCHEMA}"),
    "empty": ({}, "prior schema None"),
    "a list": ([1, 2], "prior schema 'list'"),
    "no rewards": ({k: v for k, v in stored().items() if k != "rewards"}, "damaged (KeyError('rewards'))"),
    "no batches": ({k: v for k, v in stored().items() if k != "batches"}, "damaged"),
    "rewards a list": (stored(rewards=[1, 2, 3]), "damaged"),
    "an unknown moment": (stored(group_means={"count": 1, "mean": 0.5, "median": 0.5}), "damaged"),
    "batches a word": (stored(batches="many"), "damaged"),
    "no identity": (stored(identity=None), ""),
    "identity a list": (stored(identity=["ebpo"]), ""),
    "count null": (stored(rewards={"count": None, "mean": 0.5, "m2": 0.1}), "damaged"),
    "mean a word": (stored(rewards={"count": 4, "mean": "0.5", "m2": 0.1}), "damaged"),
    "mean NaN": (stored(rewards={"count": 4, "mean": float("nan"), "m2": 0.1}), "damaged"),
    "mean too big": (stored(rewards={"count": 4, "mean": 10**400, "m2": 0.1}), "damaged"),
    "count negative": (stored(rewards={"count": -4, "mean": 0.5, "m2": 0.1}), "damaged"),
    "m2 negative": (stored(rewards={"count": 4, "mean": 0.5, "m2": -0.1}), "damaged"),
    "moments of nothing": (stored(rewards={"count": 0, "mean": 0.5, "m2": 0.1}), "damaged"),
    "count true": (stored(rewards={"count": True, "mean": 0.5, "m2": 0.1}), "damaged"),
    "mean true": (stored(rewards={"count": 4, "mean": True, "m2": 0.1}), "damaged"),
    "another key": (stored(more=1), "damaged"),
    "deep": ("[" * 100_000, "cannot be read as a prior"),
    "torn": ('{"schema": 1, "identi', "cannot be read as a prior"),
    "empty file": ("", "cannot be read as a prior"),
}


@pytest.mark.parametrize(("state", "shown"), DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_prior_is_refused(tmp_path, state, shown):
    with pytest.raises(PriorMismatch) as error:
        read(tmp_path, state)
    assert_helps(error, tmp_path, shown)


ADAPTIVE = {"preset": "corrected"}
CLUSTERED = {"clusters": "cluster"}


def saved_by(choice: dict, batches: int = 3) -> tuple[EBPO, dict]:
    """An estimator, and what it stores after some batches."""
    estimator = EBPO(EstimatorConfig(n_samples_per_prompt=4, **choice))
    rng, state = np.random.default_rng(0), estimator.initial()
    for _ in range(batches):
        batch = Batch.of(rng.integers(0, 2, (6, 4)), rng.random((6, 4)) < 0.9, clusters=("a", "b", "c") * 2)
        state = estimator.step(batch, state).state
    return estimator, pack(estimator, state)


@pytest.mark.parametrize(
    ("choice", "changes", "shown"),
    [
        ({}, {"batches": -1}, "batches is -1"),
        ({}, {"rewards.count": -5}, "count is -5: counts and sums of squares are not negative"),
        ({}, {"group_means.m2": -0.5}, "m2 is -0.5"),
        ({"within_variance": "within"}, {"within.count": -0.1}, "count is -0.1"),
        ({"within_variance": "within"}, {"inverse_sizes.mean": float("inf")}, "inf is not a finite number"),
        (ADAPTIVE, {"priors.4.rewards.count": -1.0}, "count is -1.0"),
        (ADAPTIVE, {"log_weights.0": float("nan")}, "nan is not a finite number"),
        (CLUSTERED, {"run.rewards.m2": -1.0}, "m2 is -1.0"),
        (CLUSTERED, {"clusters.moments.rewards.count.1": -1.0}, "clusters are not negative"),
        (CLUSTERED, {"clusters.moments.group_means.m2.2": -1.0}, "clusters are not negative"),
        (CLUSTERED, {"clusters.moments.within.mean.0": float("nan")}, "finite"),
        (CLUSTERED, {"clusters.names.0": 7}, "clusters have texts as names"),
    ],
)
def test_a_prior_that_no_rewards_lead_to_is_refused_by_its_field(tmp_path, choice, changes, shown):
    estimator, state = saved_by(choice)
    for path, value in changes.items():
        *way, last = [int(part) if part.isdigit() else part for part in path.split(".")]
        place = state
        for part in way:
            place = place[part]
        assert last in place or isinstance(last, int)
        place[last] = value
    path = tmp_path / "prior.json"
    path.write_text(json.dumps(state))
    with pytest.raises(PriorMismatch) as error:
        storage.read(estimator, path)
    assert_helps(error, path, "damaged", shown)


@given(
    st.sampled_from(
        [{}, ADAPTIVE, CLUSTERED, {**ADAPTIVE, **CLUSTERED}, {"preset": "robust", **CLUSTERED}, {"preset": "release"}]
    ),
    st.integers(0, 2**32),
    st.sampled_from([0.1, 1.0, 1e6]),
)
@settings(max_examples=60)
def test_every_prior_that_rewards_lead_to_is_read_again(choice, seed, high):
    """Rewards at both ends of the range and, being float32, a little beyond; groups of one response and of none."""
    rng, size = np.random.default_rng(seed), int(np.random.default_rng(seed).integers(2, 6))
    estimator = EBPO(EstimatorConfig(size, reward_clip_range=(-high, high), **choice))
    state = estimator.initial()
    for _ in range(12):
        rewards = np.clip(rng.normal(0, 3 * high, (5, size)), -high, high).astype(np.float32)
        valid = rng.random((5, size)) < 0.5
        valid[0, 0] = True
        weights = rng.random((5, size)) * 10.0 ** rng.integers(-3, 4)
        batch = Batch.of(rewards, valid, clusters=tuple(rng.choice(["a", "b", None], 5)), score_weights=weights)
        state = unpack(estimator, pack(estimator, estimator.step(batch, state).state))


def test_a_missing_file_and_a_folder_are_refused(tmp_path):
    for path, shown in ((tmp_path / "none.json", "no such prior file"), (tmp_path, "cannot be read as a prior")):
        with pytest.raises(PriorMismatch) as error:
            storage.read(EBPO_4, path)
        assert_helps(error, path, shown)


def assert_helps(error, *shown) -> None:
    message = str(error.value)
    for part in (*map(str, shown), "--algo.advantage.ebpo.reset_prior", "--algo.advantage.ebpo.init_prior PATH"):
        assert part in message
