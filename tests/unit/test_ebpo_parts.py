"""EBPO's parts, one by one and together, against a slow reference, and what must hold whatever is chosen."""

import copy
import itertools
import json
import math
from fractions import Fraction

import numpy as np
import pytest

from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.estimator import clusters
from openrlhf_ebpo.estimator.config import EBPO_FLAG, PRESETS, EstimatorConfig
from openrlhf_ebpo.estimator.contract import Batch
from openrlhf_ebpo.estimator.ebpo import EBPO, PARTS
from openrlhf_ebpo.estimator.history import HALF_LIVES
from openrlhf_ebpo.estimator.stored import PriorMismatch, pack, unpack
from tests.reference_ebpo import Reference

G = 4
HALF_LIFE = {"history": "half_life", "half_life": 10.0}
ONE_PART = [
    {part: choice} | (HALF_LIFE if choice == "half_life" else {})
    for part, choices in PARTS.items()
    for choice in choices
    if choice != PRESETS["paper"][part]
]
SEVERAL = [
    *({"preset": preset} for preset in PRESETS),
    {"preset": "corrected", "order": "lagged"},
    {"preset": "corrected", "weights": "score", "normalise": "scale"},
    {"preset": "revision", **HALF_LIFE, "between_variance": "corrected"},
    *({"clusters": "cluster", "history": history} for history in ("batch", "adaptive")),
    {"clusters": "cluster", "order": "lagged", "between_variance": "corrected", "within_variance": "within"},
    {"clusters": "cluster", "preset": "revision"},
    {"clusters": "cluster", "weights": "score", **HALF_LIFE, "within_variance": "within"},
    {"saturated": "zero", "weights": "score", "normalise": "none"},
]
SETTINGS = [*ONE_PART, *SEVERAL]


def named(settings: dict) -> str:
    return ",".join(f"{part}={choice}" for part, choice in settings.items())


every_setting = pytest.mark.parametrize("settings", SETTINGS, ids=named)


def ebpo(size: int = G, **settings) -> EBPO:
    return EBPO(EstimatorConfig(size, **settings))


def batch_of(rng: np.random.Generator, low: float = 0.0, high: float = 1.0, binary: bool = True) -> Batch:
    """Nine groups: one without a valid response, one that passes everywhere, one with a single response."""
    wins = rng.random((9, G)) < rng.random((9, 1))
    rewards = np.where(wins, high, low) if binary else low + (high - low) * rng.random((9, G))
    valid = rng.random((9, G)) < 0.8
    rewards[1], valid[0], valid[1], valid[2] = high, False, True, np.arange(G) == 1
    names = tuple(rng.choice(["algebra", "geometry", "logic", None], 9).tolist())
    return Batch.of(rewards, valid, clusters=names, score_weights=5 * rng.random((9, G)) ** 2)


def walk(estimator: EBPO, batches) -> list:
    steps, state = [], estimator.initial()
    for batch in batches:
        steps.append(estimator.step(batch, state))
        state = steps[-1].state
    return steps


@pytest.mark.parametrize(
    ("settings", "binary"),
    [
        pytest.param(settings, binary, id=f"{named(settings)}-{'binary' if binary else 'graded'}")
        for settings in SETTINGS
        for binary in (True, False)
        if binary or ebpo(**settings).variant["prior"] != "beta_binomial"
    ],
)
def test_every_choice_agrees_with_the_reference(settings, binary):
    rng = np.random.default_rng(0)
    estimator = ebpo(fail_reward=-1.0, pass_reward=3.0, **settings)
    reference = Reference(estimator.config)
    batches = [batch_of(rng, -1.0, 3.0, binary) for _ in range(5)]
    for batch, step in zip(batches, walk(estimator, batches), strict=True):
        columns = (batch.rewards, batch.valid, batch.score_weights)
        shrinkages, baselines, advantages = reference.step(*(each.tolist() for each in columns), batch.clusters)
        alive = batch.valid.any(-1)
        assert step.shrinkage[alive, 0] == pytest.approx([s for s in shrinkages if s is not None], rel=1e-9, abs=1e-9)
        assert step.baselines[alive, 0] == pytest.approx([v for v in baselines if v is not None], rel=1e-9, abs=1e-9)
        found = np.where(batch.valid, step.advantages, 0.0)
        assert found == pytest.approx(np.array(advantages), rel=1e-9, abs=1e-8)


@every_setting
def test_shrinkage_lies_between_0_and_1_and_all_is_finite(settings):
    rng = np.random.default_rng(1)
    ends = [Batch.of(np.full((3, G), value), np.ones((3, G), bool)) for value in (0.0, 0.0, 1.0, 1.0)]
    for step in walk(ebpo(**settings), [*ends, *(batch_of(rng) for _ in range(6)), *ends]):
        assert np.isfinite(step.advantages).all() and np.isfinite(step.baselines).all()
        assert ((step.shrinkage >= 0) & (step.shrinkage <= 1)).all()
        assert all(math.isfinite(value) for value in step.metrics.values())


@every_setting
def test_rewards_on_another_scale_give_the_same_shrinkage_and_advantages(settings):
    batches = [batch_of(np.random.default_rng(seed)) for seed in range(4)]
    scaled = [Batch.of(8 * b.rewards - 3, b.valid, clusters=b.clusters, score_weights=b.score_weights) for b in batches]
    factor = 8 if settings.get("normalise") == "none" else 1
    ours, theirs = walk(ebpo(**settings), batches), walk(ebpo(fail_reward=-3.0, pass_reward=5.0, **settings), scaled)
    for b, one, other in zip(batches, ours, theirs, strict=True):
        assert other.shrinkage[b.valid.any(-1)] == pytest.approx(one.shrinkage[b.valid.any(-1)], rel=1e-9, abs=1e-9)
        assert other.advantages[b.valid] == pytest.approx(factor * one.advantages[b.valid], rel=1e-4, abs=1e-9)


@pytest.mark.parametrize("preset", PRESETS)
def test_one_cluster_equals_none(preset):
    batches = [batch_of(np.random.default_rng(seed)) for seed in range(4)]
    for name in ("algebra", None):
        one = [Batch.of(b.rewards, b.valid, clusters=(name,) * 9) for b in batches]
        for ours, theirs in zip(
            walk(ebpo(preset=preset, clusters="cluster"), one), walk(ebpo(preset=preset), one), strict=True
        ):
            np.testing.assert_allclose(ours.advantages, theirs.advantages, rtol=1e-12, atol=1e-12)


def test_a_new_cluster_starts_from_the_runs_prior_and_leaves_it_as_its_groups_differ():
    rng, estimator = np.random.default_rng(0), ebpo(preset="corrected", clusters="cluster", order="lagged")
    easy, hard = (rng.random((64, G)) < p for p in (0.9, 0.1))
    names = ("easy",) * 64 + ("hard",) * 64
    state = estimator.initial()
    for _ in range(5):
        state = estimator.step(Batch.of([*easy, *hard], np.ones((128, G)), (), names), state).state
    fail = np.zeros((3, G))
    step = estimator.step(Batch.of(fail, fail == 0, (), ("easy", "new", "hard")), state)
    plain = ebpo(preset="corrected", order="lagged")
    run = plain.step(Batch.of(fail, fail == 0), state.run).baselines[0, 0]
    assert step.baselines[1, 0] == pytest.approx(run, rel=1e-12)
    assert step.baselines[0, 0] > 0.6 and step.shrinkage[2, 0] > 2 * step.shrinkage[1, 0]


def test_clusters_are_bounded_and_the_one_seen_longest_ago_goes(monkeypatch):
    monkeypatch.setattr(clusters, "MAX_CLUSTERS", 3)
    estimator, state = ebpo(clusters="cluster"), ebpo(clusters="cluster").initial()
    for names in ("ab", "cc", "da"):
        state = estimator.step(Batch.of(np.eye(2, G), np.ones((2, G)), (), tuple(names)), state).state
    assert set(state.table.names) == {"a", "c", "d"}
    assert estimator.step(Batch.of(np.eye(2, G), np.ones((2, G)), (), ("e", "e")), state).metrics["ebpo/clusters"] == 3


def test_a_group_without_a_valid_response_does_not_keep_its_cluster(monkeypatch):
    monkeypatch.setattr(clusters, "MAX_CLUSTERS", 2)
    estimator, state = ebpo(clusters="cluster"), ebpo(clusters="cluster").initial()
    valid = np.ones((2, G))
    for names, alive in (("aa", valid), ("bb", valid), ("ac", valid * [[0], [1]])):
        state = estimator.step(Batch.of(np.eye(2, G), alive, (), tuple(names)), state).state
    assert set(state.table.names) == {"b", "c"}


def test_what_a_history_forgets_is_forgotten_of_clusters_too():
    estimator, state = ebpo(clusters="cluster", history="batch"), ebpo(clusters="cluster").initial()
    for names in ("ab", "cc"):
        state = estimator.step(Batch.of(np.eye(2, G), np.ones((2, G)), (), tuple(names)), state).state
    assert state.table.names == ("c",)


def test_a_half_life_without_end_equals_the_whole_run():
    batches = [batch_of(np.random.default_rng(seed)) for seed in range(4)]
    endless = walk(ebpo(history="half_life", half_life=1e300), batches)
    assert all(a.state == b.state for a, b in zip(endless, walk(ebpo(), batches), strict=True))
    assert HALF_LIVES[-1] == math.inf
    run, adaptive = (walk(ebpo(history=h, within_variance="within"), batches)[-1].state for h in ("run", "adaptive"))
    assert adaptive.priors[-1] == run


def released(rewards: list[list[Fraction]]) -> list[list[Fraction]]:
    """Baselines of `compute_ebpo_outcome_advantage`, as the authors' repository has it, in rationals: all moments are
    this batch's, the divisors n, and μ_glob is the mean of the group means whatever the groups' sizes."""
    every = [reward for group in rewards for reward in group]
    means = [sum(group) / len(group) for group in rewards]
    sigma2, tau2 = population_variance(every), population_variance(means)
    anchor = sum(means) / len(means)
    found = []
    for group, mean in zip(rewards, means, strict=True):
        noise = sigma2 / len(group)
        s = noise / (noise + tau2) if noise + tau2 > Fraction(1, 10**6) else 1
        found.append((1 - s) * mean + s * anchor)
    return found


def population_variance(values: list[Fraction]) -> Fraction:
    mean = sum(values) / len(values)
    return sum((value - mean) ** 2 for value in values) / len(values)


@pytest.mark.parametrize("low", [0, -1])
@pytest.mark.parametrize("seed", range(20))
def test_preset_release_is_the_released_code_whatever_came_before(low, seed):
    rng = np.random.default_rng(seed)
    estimator = ebpo(preset="release", fail_reward=float(low))
    state = estimator.initial()
    for _ in range(3):
        batch = batch_of(rng, low=low) if seed % 2 else full_batch(rng, low)
        kept = [[Fraction(r) for r in row[there]] for row, there in zip(batch.rewards, batch.valid, strict=True)]
        alive = batch.valid.any(-1)
        baselines = released([group for group in kept if group])
        raw = [r - v for group, v in zip(filter(None, kept), baselines, strict=True) for r in group]
        centred = [value - sum(raw) / len(raw) for value in raw]
        std = math.sqrt(sum(value**2 for value in centred) / (len(raw) - 1))  # of a rational: rounded once
        step = estimator.step(batch, state)
        assert step.baselines[alive, 0] == pytest.approx(list(map(float, baselines)), rel=1e-12)
        expected = [float(value) / (std + 1e-6) for value in centred]
        assert step.advantages[batch.valid] == pytest.approx(expected, rel=1e-11, abs=1e-13)
        assert step.advantages == pytest.approx(estimator.step(batch, estimator.initial()).advantages, rel=0, abs=0)
        state = step.state


def full_batch(rng: np.random.Generator, low: int) -> Batch:
    return Batch.of(np.where(rng.random((6, G)) < rng.random((6, 1)), 1.0, low), np.ones((6, G)))


@pytest.mark.parametrize("preset", ["paper", "release", "corrected"])
def test_equal_weights_of_responses_give_the_plain_means(preset):
    batches = [batch_of(np.random.default_rng(seed)) for seed in range(3)]
    for weight in (0.0, 3.0):
        same = [Batch.of(b.rewards, b.valid, score_weights=np.full((9, G), weight)) for b in batches]
        ours, plain = walk(ebpo(preset=preset, weights="score"), same), walk(ebpo(preset=preset), same)
        if preset == "corrected":  # the adaptive history counts successes where weights are off
            ours, plain = ours[:1], plain[:1]
        for one, other in zip(ours, plain, strict=True):
            np.testing.assert_allclose(one.baselines, other.baselines, rtol=1e-9, atol=1e-12)


def test_score_weights_keep_the_sums_that_the_best_constant_baseline_needs():
    batches = [batch_of(np.random.default_rng(seed)) for seed in range(3)]
    state = walk(ebpo(weights="score"), batches)[-1].state
    weights = [b.score_weights[b.valid] for b in batches]
    rewards = [b.rewards[b.valid] for b in batches]
    total = sum(w.sum() for w in weights)
    assert state.rewards.count == pytest.approx(total, rel=1e-5)  # a weight of next to 0 is lifted
    assert state.rewards.mean == pytest.approx(
        sum((w * r).sum() for w, r in zip(weights, rewards, strict=True)) / total, rel=1e-5
    )


@pytest.mark.parametrize("history", PARTS["history"])
def test_the_first_batch_under_lagged_gets_its_own_means_and_others_do_not_depend_on_their_batch(history):
    settings = {"history": history, "order": "lagged"} | (HALF_LIFE if history == "half_life" else {})
    first, second = (batch_of(np.random.default_rng(seed)) for seed in range(2))
    estimator = ebpo(**settings)
    step = estimator.step(first, estimator.initial())
    assert (step.shrinkage == 0).all()
    changed = Batch.of(np.concatenate([second.rewards[:5], 1 - second.rewards[5:]]), second.valid)
    one, other = (estimator.step(b, step.state).baselines[:5] for b in (second, changed))
    np.testing.assert_array_equal(one, other)


def test_beta_binomial_starts_from_a_uniform_prior():
    rewards = np.array([[1, 0, 0, 0], [1, 1, 1, 1.0], [0, 0, 0, 0]])
    step = walk(ebpo(preset="revision"), [Batch.of(rewards, rewards >= 0)])[0]
    assert step.baselines[:, 0] == pytest.approx([2 / 6, 5 / 6, 1 / 6], rel=1e-14)


def test_beta_binomial_refuses_other_rewards_and_says_what_to_do():
    rewards = np.array([[1, 0, 0, 0.5]])
    with pytest.raises(UsageError, match=r"prior beta_binomial, of ebpo\.revision.*0\.0 or 1\.0"):
        walk(ebpo(prior="beta_binomial"), [Batch.of(rewards, rewards >= 0)])


def test_an_all_pass_group_under_zero_is_pushed_nowhere_before_normalising():
    rewards = np.array([[1, 0, 0, 0], [1, 1, 1, 1.0], [0, 0, 0, 0]])
    plain, muted = (
        walk(ebpo(saturated=kind, normalise="none"), [Batch.of(rewards, rewards >= 0)])[0].advantages
        for kind in ("shrink", "zero")
    )
    assert (muted[1] == 0).all() and (plain[1] > 0).all()
    np.testing.assert_array_equal(muted[[0, 2]], plain[[0, 2]])


def test_normalisations_differ_by_centre_and_scale_alone():
    batch = batch_of(np.random.default_rng(0))
    by = {kind: walk(ebpo(normalise=kind), [batch])[0].advantages[batch.valid] for kind in PARTS["normalise"]}
    assert by["none"] == pytest.approx((batch.rewards - walk(ebpo(), [batch])[0].baselines)[batch.valid], rel=1e-14)
    assert by["scale"] == pytest.approx(by["none"] / (by["none"].std(ddof=1) + 1e-6), rel=1e-12)
    assert by["batch"] == pytest.approx(by["scale"] - by["scale"].mean(), rel=1e-9, abs=1e-12)


@every_setting
def test_a_state_comes_back_and_goes_on_to_the_last_bit(settings):
    estimator, batches = ebpo(**settings), [batch_of(np.random.default_rng(seed)) for seed in range(4)]
    state = walk(estimator, batches[:3])[-1].state
    packed = json.loads(json.dumps(pack(estimator, state)))
    again = unpack(estimator, packed)
    assert pack(estimator, again) == packed
    one, other = estimator.step(batches[3], state), estimator.step(batches[3], again)
    np.testing.assert_array_equal(one.advantages, other.advantages)
    assert estimator.save(one.state) == estimator.save(other.state)
    assert unpack(estimator, pack(estimator, estimator.initial())) is not None


@every_setting
def test_a_step_changes_neither_batch_nor_state(settings):
    estimator, batches = ebpo(**settings), [batch_of(np.random.default_rng(seed)) for seed in range(2)]
    state = walk(estimator, batches[:1])[-1].state
    kept, given = pack(estimator, state), copy.deepcopy(batches[1])
    first, second = estimator.step(batches[1], state), estimator.step(batches[1], state)
    np.testing.assert_array_equal(first.advantages, second.advantages)
    assert pack(estimator, state) == kept
    np.testing.assert_array_equal(given.rewards, batches[1].rewards)


def test_a_state_of_any_other_variant_is_refused():
    estimators = [ebpo(), *(ebpo(**settings) for settings in ONE_PART), ebpo(history="half_life", half_life=11)]
    for one, other in itertools.permutations(estimators, 2):
        assert one.identity() != other.identity()
        with pytest.raises(PriorMismatch, match="variant was"):
            unpack(other, pack(one, one.initial()))


def damaged(packed: dict):
    """The same with one entry less, or something else in its place, at every depth."""
    for key in packed:
        yield {name: value for name, value in packed.items() if name != key}
        for wrong in (None, "many", -1.5, {"more": 1}, float("nan")):
            yield {**packed, key: wrong}
        if isinstance(packed[key], dict):
            yield from ({**packed, key: inner} for inner in damaged(packed[key]))
        elif isinstance(packed[key], list) and packed[key]:
            yield from (
                {**packed, key: wrong} for wrong in (packed[key][:-1], [*packed[key], None], [*packed[key][:-1], "x"])
            )


@pytest.mark.parametrize("settings", [{"history": "adaptive"}, {"clusters": "cluster"}], ids=named)
def test_a_damaged_state_is_refused(settings):
    estimator = ebpo(**settings)
    state = pack(estimator, walk(estimator, [batch_of(np.random.default_rng(0))])[-1].state)
    body = {key: value for key, value in state.items() if key not in ("schema", "identity")}
    cases = [case for case in damaged(body) if case != body]
    assert len(cases) > 10
    refused = 0
    for case in cases:
        try:
            restored = unpack(estimator, {**case, "schema": 1, "identity": state["identity"]})
        except PriorMismatch:
            refused += 1
            continue
        step = estimator.step(batch_of(np.random.default_rng(1)), restored)  # what is taken has to work
        assert np.isfinite(step.advantages).all(), case
    assert refused > len(cases) / 2


@pytest.mark.parametrize(
    ("settings", "shown"),
    [
        ({"preset": "papers"}, r"unknown preset 'papers' of EBPO, choose from .*paper"),
        ({"history": "run", "half_life": 512}, "half_life is 512 and history run"),
        ({"history": "half_life"}, "half_life is missing and history half_life"),
        ({"half_life": 0}, rf"{EBPO_FLAG}\.half_life is 0: give a number of prompts above 0"),
        ({"half_life": math.inf}, rf"{EBPO_FLAG}\.half_life is inf: give"),
        ({"preset": "revision", "weights": "score"}, "weights score does not go with prior beta_binomial"),
        *(({part: "nonsense"}, rf"{part} 'nonsense': choose from") for part in PARTS),
    ],
    ids=str,
)
def test_parts_that_do_not_go_together_are_named(settings, shown):
    with pytest.raises(ValueError, match=shown):
        EBPO(EstimatorConfig(G, **settings))


def test_a_half_life_alone_chooses_the_history():
    for preset in ("paper", "corrected"):
        parts = ebpo(preset=preset, half_life=512.0).variant
        assert parts == {**PRESETS[preset], "history": "half_life", "half_life": 512.0}


def test_an_adaptive_history_remembers_long_while_nothing_changes_and_forgets_after_a_jump():
    rng, estimator = np.random.default_rng(0), ebpo(history="adaptive")
    state, found = estimator.initial(), []
    for t in range(60):
        rewards = rng.random((128, G)) < rng.beta(2, 6, (128, 1)) + (0.5 if t >= 40 else 0.0)
        step = estimator.step(Batch.of(rewards, np.ones((128, G))), state)
        state = step.state
        found.append((step.metrics["ebpo/half_life"], step.metrics["ebpo/prior_mean"]))
    assert found[39][0] > 15
    assert min(half_life for half_life, _ in found[40:50]) < found[39][0] / 1.5
    assert found[46][1] == pytest.approx(0.75, abs=0.05)


def test_a_history_of_one_batch_counts_those_before_and_holds_none_of_them():
    estimator = ebpo(preset="release")
    batches = [batch_of(np.random.default_rng(seed)) for seed in range(3)]
    state = walk(estimator, batches)[-1].state
    alone = walk(estimator, batches[-1:])[-1].state
    assert (state.batches, alone.batches) == (3, 1)
    assert state.group_means == alone.group_means and state.rewards == alone.rewards
