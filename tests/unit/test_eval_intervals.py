"""Intervals of scores: by hand, where nothing varies, and how often they hold the truth."""

import math

import numpy as np
import pytest

import interval_coverage as coverage
from openrlhf_ebpo.eval import differences, intervals
from openrlhf_ebpo.eval.intervals import Estimate


def wilson(mean: float, draws: float) -> list[float]:
    z = intervals.Z
    half = z * math.sqrt(mean * (1 - mean) / draws + (z / draws) ** 2 / 4)
    return [(mean + z * z / draws / 2 + sign * half) / (1 + z * z / draws) for sign in (-1, 1)]


def test_with_one_response_it_is_wilsons_interval():
    values = np.array([1.0] * 7 + [0.0] * 23)
    assert intervals.over_questions(values) == pytest.approx(wilson(7 / 30, 30))


def test_questions_that_agree_are_worth_more_draws():
    values = np.array([0.25, 0.75] * 10)  # variance 1/16 · 20/19; the most is 1/4
    prior = intervals.QUESTIONS_PRIOR
    worth = 20 * (5 + prior) / (20 / 16 * 20 / 19 + prior)
    assert intervals.over_questions(values) == pytest.approx(wilson(0.5, worth))


def test_the_error_across_runs_is_from_the_variance_within_all_questions():
    rates = np.array([0.5, 0.0, 1.0, 0.25])  # of four responses each
    within = (0.25 + 0.1875) / 4 * 4 / 3
    assert intervals.standard_error(rates, 4) == pytest.approx(math.sqrt(within / 16))
    most = 0.4375 * 0.5625
    prior = intervals.RUNS_PRIOR
    worth = 16 * (16 * most + prior) / (16 * within + prior)
    assert intervals.across_runs(rates, 4) == pytest.approx(wilson(0.4375, worth))


def test_one_response_says_nothing_of_a_second():
    rates = np.array([0.0, 1.0, 1.0])
    assert intervals.across_runs(rates, 1) is None and intervals.standard_error(rates, 1) is None


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_where_all_is_alike_the_interval_has_a_width(value):
    """30 questions x 32 responses, none right or all: other questions may differ, these hardly."""
    values = np.full(30, value)
    for interval, draws in ((intervals.over_questions(values), 30), (intervals.across_runs(values, 32), 960)):
        assert interval == pytest.approx(wilson(value, draws)) and value in interval
    low, high = differences.of_questions(values, values, 32)
    assert low == pytest.approx(-high) and 0.1 < high < 0.13


@pytest.mark.parametrize("values", [[0.5], [0.0], [0.3, 0.4], [0.2, 0.2, 0.2]])
def test_few_questions_say_little(values):
    low, high = intervals.over_questions(np.array(values))
    assert 0 <= low <= np.mean(values) <= high <= 1 and high - low > 0.35


def test_many_tasks_at_once_are_each_task_alone():
    rng = np.random.default_rng(0)
    a, b = rng.random((2, 40, 3))
    together = intervals.over_questions(a), intervals.across_runs(a, 4), differences.of_questions(a, b, 4)
    for i in range(3):
        x, y = a[:, i], b[:, i]
        alone = intervals.over_questions(x), intervals.across_runs(x, 4), differences.of_questions(x, y, 4)
        for whole, one in zip(together, alone, strict=True):
            assert whole[:, i] == pytest.approx(one)


def test_a_difference_is_the_other_way_round_with_the_other_sign():
    rng = np.random.default_rng(1)
    a = rng.random(50)
    b = np.clip(a + 0.1 * rng.standard_normal(50), 0, 1)
    forth, back = differences.of_questions(a, b, 8), differences.of_questions(b, a, 8)
    assert forth == pytest.approx(-back[::-1])
    alone = differences.of_questions(a, rng.permutation(b), 8)
    assert np.diff(forth) < np.diff(alone) / 2, "questions in common make a difference surer"


def test_a_difference_of_models_that_agree_is_surer_the_more_responses_agree():
    """Three questions of thirty solved by both: with one response to each that does not prove that they are alike."""
    values = np.array([1.0] * 3 + [0.0] * 27)
    highs = [differences.of_questions(values, values, n)[1] for n in (1, 8, 64)]
    assert 0.05 < highs[0] < 0.1 and highs[0] > 2 * highs[1] > 4 * highs[2] > 0


def test_a_vote_needs_more_room_than_a_mean():
    values = np.array([0.25] * 2 + [0.0] * 28)
    mean, vote = intervals.over_questions(values), intervals.over_questions(values, votes=True)
    assert vote[1] > mean[1] > values.mean()


def test_errors_of_tasks_add_up_as_squares():
    found = intervals.of_average([Estimate(0.2, 0.1, 0.4), Estimate(0.6, 0.6, 0.6)])
    assert found == pytest.approx((0.4, 0.4 - 0.05, 0.4 + 0.1))
    same = intervals.of_average([Estimate(0.5, 0.4, 0.6)] * 4)
    assert same == pytest.approx((0.5, 0.45, 0.55))


@pytest.mark.parametrize("task", ["AIME", "AMC"])
@pytest.mark.parametrize("n", [1, 4, 32])
def test_intervals_hold_the_truth_as_often_as_they_say(task, n):
    """The benchmark with few repetitions: bounds are those of 300, not of the intervals."""
    for name, cell in coverage.task_cells(coverage.SHAPES[task], n, np.random.default_rng(n), 300):
        assert 0.9 <= cell.coverage <= (1 if cell.few else 0.99), name


def test_a_paired_interval_has_two_degrees_of_freedom_less_than_questions():
    a, b, n = np.array([1.0, 0, 0.5, 1, 0, 1]), np.array([1.0, 0.5, 0, 1, 1, 0.5]), 2
    (a_low, a_high), (b_low, b_high) = intervals.over_questions(a), intervals.over_questions(b)
    alone, apart = 6 * (a.var(ddof=1) + b.var(ddof=1)) * n + 1, 6 * (b - a).var(ddof=1) * n + 1
    length = (6 / 4 * apart / alone) ** 0.5
    low, high = differences.of_questions(a, b, n) - (b.mean() - a.mean())
    assert high == pytest.approx(length * np.hypot(b_high - b.mean(), a.mean() - a_low))
    assert -low == pytest.approx(length * np.hypot(b.mean() - b_low, a_high - a.mean()))


@pytest.mark.parametrize("rates", [[0.5, 0.5], [0.0, 1.0, 0.5, 0.5], [0.25] * 3])
def test_draws_are_never_worth_less_than_they_are(rates):
    """Of two responses each, the variance within is twice the most that it can be: worth as many draws, not fewer."""
    rates = np.array(rates)
    assert intervals.across_runs(np.full(2, 0.5), 2) == pytest.approx(wilson(0.5, 4))
    widest = wilson(rates.mean(), 2 * len(rates))
    low, high = intervals.across_runs(rates, 2)
    assert widest[0] - 1e-12 <= low <= rates.mean() <= high <= widest[1] + 1e-12


def test_quantiles_are_students():
    from scipy import stats

    degrees = [1, 2, 5, 9, 9.5, 10, 17.3, 30, 400]
    found = [differences.t_quantile(each) for each in degrees]
    assert found == pytest.approx(stats.t.ppf(0.975, degrees), rel=1e-4)
    assert differences.t_quantile(0) == float("inf")
