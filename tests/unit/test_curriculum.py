"""The adaptive order of the prompts: posteriors, probabilities, coverage of an epoch, and a prior that stays unbiased."""

import numpy as np
import pytest

from openrlhf_ebpo.estimator.config import EstimatorConfig
from openrlhf_ebpo.estimator.contract import Batch
from openrlhf_ebpo.estimator.ebpo import EBPO
from openrlhf_ebpo.training import curriculum
from openrlhf_ebpo.training.curriculum import Curriculum


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def of(successes, failures, clusters=None, drawn=None) -> Curriculum:
    size = len(successes)
    state = curriculum.start(np.zeros(size, int) if clusters is None else np.array(clusters))
    drawn = np.zeros(size, bool) if drawn is None else np.array(drawn)
    return Curriculum(
        state.clusters, np.array(successes, float), np.array(failures, float), drawn, state.epoch, state.left
    )


def run(state: Curriculum, rates, n: int, steps: int, rng, group: int = 4):
    """Draws and trains on responses of fixed success rates; yields (state before, indices, inclusion, successes)."""
    for _ in range(steps):
        indices, inclusion = curriculum.draw(state, n, rng)
        successes = rng.binomial(group, rates[indices])
        yield state, indices, inclusion, successes
        state = curriculum.update(state, indices, successes, np.full(n, group))


def slow_update(history: list[tuple[int, int]]) -> tuple[float, float]:
    """MoPPS's recursion in its own form, with a prior of Beta(1, 1), less that prior."""
    alpha = beta = 1.0
    for passed, trials in history:
        alpha = 0.5 * alpha + 0.5 * 1.0 + passed
        beta = 0.5 * beta + 0.5 * 1.0 + trials - passed
    return alpha - 1, beta - 1


def test_counts_follow_mopps_recursion():
    state = curriculum.start(np.zeros(3, int))
    history = [(1, 4), (4, 4), (0, 2), (2, 4)]
    for passed, trials in history:
        state = curriculum.update(state, np.array([1]), np.array([passed]), np.array([trials]))
    assert (state.successes[1], state.failures[1]) == pytest.approx(slow_update(history), abs=1e-12)
    assert state.successes[[0, 2]].tolist() == state.failures[[0, 2]].tolist() == [0, 0]


def test_update_leaves_the_state_before_as_it_is_and_a_prompt_without_a_reward_keeps_its_posterior():
    before = of([1, 2], [3, 0])
    after = curriculum.update(before, np.array([0, 1]), np.array([0, 3]), np.array([0, 4]))
    assert before.successes.tolist() == [1, 2] and before.drawn.tolist() == [False, False]
    assert (after.successes[0], after.failures[0]) == (1, 3)
    assert (after.successes[1], after.failures[1]) == (4, 1)
    assert after.drawn.tolist() == [True, True]


def test_a_prompt_without_history_starts_from_its_clusters_successes():
    successes, failures = [4] * 30 + [0] * 30 + [0, 0], [0] * 30 + [4] * 30 + [0, 0]
    state = of(successes, failures, clusters=[0] * 30 + [1] * 30 + [0, 1])
    easy, hard = curriculum.expected_success(state)[-2:]
    assert easy > 0.8 and hard < 0.2
    assert curriculum.expected_success(of(successes, failures))[-2:] == pytest.approx([0.5, 0.5])


def test_a_cluster_of_which_little_is_known_is_pooled_towards_the_run():
    state = of([4] * 100 + [0], [0] * 100 + [4], clusters=[0] * 100 + [1])
    means, _ = curriculum.cluster_priors(state)
    assert means[1] == pytest.approx(10 * means[0] / 11, rel=0.03)


def test_nothing_known_means_an_even_draw_on_average(rng):
    state = curriculum.start(np.zeros(50, int))
    alpha, beta = curriculum.posterior(state)
    assert alpha.tolist() == beta.tolist() == [1.0] * 50


@pytest.mark.parametrize("shape", [(0.2, 1.8), (0.3, 0.3), (2, 6)])
@pytest.mark.parametrize("trials", [2, 4, 16])
def test_the_strength_of_the_prior_is_the_populations(rng, shape, trials):
    rates = rng.binomial(trials, rng.beta(*shape, size=40_000)) / trials
    means = np.full(40_000, shape[0] / sum(shape))
    assert curriculum.prior_strength(rates, means, np.full(40_000, trials)) == pytest.approx(sum(shape), rel=0.1)


@pytest.mark.parametrize(
    ("rates", "trials"), [([], []), ([0.0, 1.0], [1, 1]), ([0.0, 0.0], [4, 4])], ids=["none", "one each", "all fail"]
)
def test_the_strength_is_2_where_it_cannot_be_told(rates, trials):
    rates = np.array(rates)
    assert curriculum.prior_strength(rates, rates.round(), np.array(trials)) == 2


def test_inclusion_probabilities_keep_to_their_limits_and_sum_to_n(rng):
    for _ in range(200):
        size = int(rng.integers(2, 60))
        n = int(rng.integers(1, size + 1))
        weights = rng.random(size) ** 8 + 0.05
        at_least = np.where(rng.random(size) < 0.5, rng.random() * n / size, 0.0)
        found = curriculum.inclusion_probabilities(weights, at_least, n)
        assert found.sum() == pytest.approx(n, abs=1e-9)
        assert (found >= at_least).all() and (found <= 1).all()
        free = (found > at_least) & (found < 1)
        assert np.ptp((found / weights)[free]) < 1e-9 if free.any() else True


def test_every_prompt_is_drawn_as_often_as_its_probability_says(rng):
    inclusion = curriculum.inclusion_probabilities(np.arange(1.0, 13), np.zeros(12), 5)
    assert inclusion[-1] < 1
    drawn = np.arange(12) % 3 == 0
    counts = np.zeros(12)
    for _ in range(20_000):
        indices = curriculum.systematic_sample(inclusion, drawn, 5, rng)
        assert len(set(indices.tolist())) == 5
        counts[indices] += 1
    assert counts / 20_000 == pytest.approx(inclusion, abs=0.015)


def test_every_prompt_has_a_floor_under_its_probability(rng):
    """A prompt that never passes still comes, also where the epoch has drawn it already."""
    hopeless = np.arange(100) < 50
    state = of(np.where(hopeless, 0, 20), np.where(hopeless, 400, 20), drawn=np.ones(100, bool))
    counts = np.zeros(100)
    for _ in range(2000):
        indices, inclusion = curriculum.draw(state, 10, rng)
        assert curriculum.importance(inclusion, 10, 100).max() < 0.26 / curriculum.FLOOR
        counts[indices] += 1
    assert 0.03 < counts[hopeless].sum() / counts[~hopeless].sum() < 0.1
    assert counts.min() > 0


@pytest.mark.parametrize(("size", "n"), [(100, 10), (97, 10), (10, 10), (33, 8), (200, 64), (8, 1)])
@pytest.mark.parametrize("seed", range(5))
def test_every_epoch_draws_every_prompt(size, n, seed):
    rng = np.random.default_rng(seed)
    rates = rng.beta(0.2, 1.8, size=size)
    seen, epochs = np.zeros(size, bool), 0
    for state, indices, _, _ in run(curriculum.start(np.zeros(size, int)), rates, n, 8 * size // n + 8, rng):
        seen[indices] = True
        if state.left <= n:
            assert seen.all(), np.flatnonzero(~seen)
            seen[:], epochs = False, epochs + 1
    assert epochs >= 3


def test_an_epoch_also_ends_with_all_prompts_drawn_where_the_batch_size_changes_and_prompts_are_added(rng):
    rates = np.full(60, 0.3)
    state = curriculum.start(np.zeros(40, int))
    for n in (7, 16, 3):
        *_, (state, indices, _, successes) = run(state, rates, n, 2, rng)
        state = curriculum.update(state, indices, successes, np.full(n, 4))
    more = np.zeros(20)
    state = Curriculum(
        np.zeros(60, int),
        np.append(state.successes, more),
        np.append(state.failures, more),
        np.append(state.drawn, more.astype(bool)),
        120,
        15,  # fewer draws than there are new prompts
    )
    missing = set(np.flatnonzero(~state.drawn).tolist())
    assert len(missing) >= 20
    for _, indices, _, _ in run(state, rates, 10, -(-len(missing) // 10), rng):
        missing -= set(indices.tolist())
    assert missing == set()


def test_hopeless_and_solved_prompts_are_drawn_less_than_those_in_between(rng):
    rates = np.repeat([0.0, 0.5, 1.0], 100)
    counts = np.zeros(300)
    for _, indices, _, _ in run(curriculum.start(np.zeros(300, int)), rates, 20, 300, rng):
        counts[indices] += 1
    hopeless, useful, solved = counts.reshape(3, 100).sum(1)
    assert useful > 1.5 * hopeless and useful > 1.5 * solved


def test_the_same_seed_and_state_give_the_same_draw_also_in_the_middle():
    rates = np.random.default_rng(7).random(50)

    def story(state, first, steps):
        drawn = []
        for step in range(first, first + steps):
            indices, inclusion = curriculum.draw(state, 8, np.random.default_rng((5, step)))
            drawn.append((indices.tolist(), inclusion.tolist()))
            state = curriculum.update(state, indices, np.round(4 * rates[indices]), np.full(8, 4))
        return drawn, state

    whole, _ = story(curriculum.start(np.zeros(50, int)), 0, 20)
    head, middle = story(curriculum.start(np.zeros(50, int)), 0, 9)
    tail, _ = story(middle, 9, 11)
    assert head + tail == whole
    assert whole[0] != whole[1]


@pytest.mark.parametrize("shape", [(0.2, 1.8), (1, 1), (2, 6)])
def test_weighted_by_importance_the_prior_is_the_populations(shape):
    """Mean and variance of the group means within 2 % of those of all prompts; unweighted, the mean is far off."""
    rng = np.random.default_rng(1)
    size, n, group = 2000, 64, 4
    rates = rng.beta(*shape, size=size)
    story = list(run(curriculum.start(np.zeros(size, int)), rates, n, 1500, rng, group))
    weights = np.concatenate([curriculum.importance(inclusion, n, size) for _, _, inclusion, _ in story])
    means = np.concatenate([successes for *_, successes in story]) / group
    mean = np.average(means, weights=weights)
    variance = np.average((means - mean) ** 2, weights=weights)
    assert weights.mean() == pytest.approx(1, rel=0.01)
    assert mean == pytest.approx(rates.mean(), rel=0.02)
    assert variance == pytest.approx(rates.var() + (rates * (1 - rates)).mean() / group, rel=0.02)
    if shape == (0.2, 1.8):
        assert means.mean() > 1.3 * rates.mean()


def test_ebpos_prior_is_that_of_an_even_draw():
    """The estimator itself, given the importance: prior mean and τ² within 2 % of the population's."""
    rng = np.random.default_rng(2)
    size, n, group = 1000, 64, 4
    rates = rng.beta(0.2, 1.8, size=size)
    ebpo = EBPO(EstimatorConfig(n_samples_per_prompt=group))
    even = uneven = ebpo.initial()
    for _, _, inclusion, successes in run(curriculum.start(np.zeros(size, int)), rates, n, 1000, rng, group):
        rewards = (np.arange(group) < successes[:, None]).astype(float)
        importance = curriculum.importance(inclusion, n, size)[:, None]
        even = ebpo.step(Batch.of(rewards, rewards >= 0, importance=importance), even).state
        uneven = ebpo.step(Batch.of(rewards, rewards >= 0), uneven).state
    between = rates.var() + (rates * (1 - rates)).mean() / group
    assert even.rewards.mean == pytest.approx(rates.mean(), rel=0.02)
    assert even.raw_between_variance == pytest.approx(between, rel=0.02)
    assert even.pooled_variance == pytest.approx(rates.mean() * (1 - rates.mean()), rel=0.02)
    assert uneven.rewards.mean > 1.3 * rates.mean()


def test_more_prompts_than_there_are_cannot_be_drawn(rng):
    with pytest.raises(ValueError, match="5 different prompts cannot be drawn out of 4"):
        curriculum.draw(curriculum.start(np.zeros(4, int)), 5, rng)
