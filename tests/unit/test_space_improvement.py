"""The outcome of a run: paired over questions, or over steps, whose noise is that of successive differences."""

import numpy as np
import pyarrow.parquet as pq
import pytest
from space_runs import evaluation, learning_run

from openrlhf_ebpo.eval.differences import compare, of_steps
from openrlhf_ebpo.space import improvement, results
from openrlhf_ebpo.space.change import Change, over_questions, window
from openrlhf_ebpo.space.headline import _by_step
from openrlhf_ebpo.space.metrics import Metrics
from openrlhf_ebpo.space.runs import Run
from openrlhf_ebpo.space.workspace import LoadedRun

SHARE = (0.0, 1.0)


def outcome(run: Run, metrics: Metrics, rewards: tuple[float, float], about: dict | None = None):
    ebpo = {"fail_reward": rewards[0], "pass_reward": rewards[1]}
    args = {"algo": {"advantage": {"ebpo": ebpo}}, **(about or {})}
    return improvement.outcome(LoadedRun(run, {"args": args}, metrics, ()))


def metrics(**columns) -> Metrics:
    named = {name.replace("__", "/"): np.asarray(values, float) for name, values in columns.items()}
    return Metrics(np.arange(1, len(next(iter(named.values()))) + 1), named)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = learning_run(tmp_path_factory.mktemp("run") / "ebpo", steps=4, seed=1, name="x", prompts=2)
    return Run("ebpo", folder, 0)


def test_checkpoints_are_compared_question_by_question(run):
    found, problems = outcome(run, Metrics(), SHARE)
    each, _ = results.find(run)
    ends = [[r for r in each if r.step == step] for step in (0, 4)]
    said = [[np.array(list(results.rates(run, r).values())) for r in end] for end in ends]
    expected = compare(*said, [each.samples for each in ends[0]])
    assert found.last - found.first == pytest.approx(expected["difference"])
    assert [found.change.low, found.change.high] == pytest.approx(expected["interval"])
    assert "mean of 2 tasks, base model to step 4" in found.what and "paired over 30 questions" in found.how
    assert not problems and found.verdict == "better" and found.difference.startswith("+")


def test_samples_that_cannot_be_read_leave_the_values(tmp_path):
    for step, rate in ((0, 0.1), (8, 0.9)):
        evaluation(tmp_path, "aime24", step, rate, seed=1)
    for path in tmp_path.glob("eval/*/*/*/samples.parquet"):
        path.write_bytes(b"damaged")
    found, _ = outcome(Run("x", tmp_path, 0), Metrics(), SHARE)
    assert found.verdict == "unsure" and found.change is None and "cannot be read" in found.how
    assert found.last > found.first


def test_only_questions_of_both_count(tmp_path):
    for step, rate in ((0, 0.1), (8, 0.9)):
        evaluation(tmp_path, "aime24", step, rate, seed=1)
    path = next(tmp_path.glob("eval/*/*/step-000008/samples.parquet"))
    pq.write_table(pq.read_table(path).slice(0, 80), path)
    first, last = results.find(Run("x", tmp_path, 0))[0]
    run = Run("x", tmp_path, 0)
    assert over_questions([(run, first, run, last)]).over == "10 questions"
    pq.write_table(pq.read_table(path).slice(0, 0), path)
    assert over_questions([(run, first, run, last)]) is None


def test_a_change_is_said_in_words():
    better = Change(0.121, 0.08, 0.162, "200 questions")
    assert better.sentence == "better by more than chance would explain, over 200 questions"
    assert (better.text, better.interval) == ("+12.1 points", "95% CI +8.0 to +16.2")
    assert (
        Change(-0.1, -0.2, -0.01, "1 question").sentence == "worse by more than chance would explain, over 1 question"
    )
    nothing = Change(0.01, -0.05, 0.07, "200 questions")
    assert nothing.sentence.startswith("no difference shown over 200 questions; ") and nothing.text == "+1.0 points"
    assert nothing.sentence.endswith("less than about 6 points could not be seen") and nothing.verdict == "open"
    assert Change(0.001, -0.003, 0.005, "20,000 questions").sentence.endswith(" 0.4 points could not be seen")


@pytest.mark.parametrize("rates", [[0.1, 0.5, 0.8, 0.4, 0.1], [0.1, 0.8, 0.1]])
def test_a_run_that_rose_and_fell_names_its_best_checkpoint_and_the_fall(tmp_path, rates):
    for step, rate in enumerate(rates):
        evaluation(tmp_path, "aime24", 10 * step, rate, seed=1)
    found, _ = outcome(Run("x", tmp_path, 0), Metrics(), SHARE)
    best = 10 * rates.index(max(rates))
    assert found.verdict == "fell" and found.peak.at == f"at step {best}"
    assert found.peak.fall.low <= found.last - found.peak.value < found.peak.fall.high < 0


@pytest.mark.parametrize("rates", [[0.1, 0.3, 0.5, 0.7], [0.7, 0.5, 0.3, 0.1], [0.4, 0.42, 0.41, 0.4], [0.1, 0.8]])
def test_a_run_that_ends_about_as_good_as_it_ever_was_has_no_peak(tmp_path, rates):
    for step, rate in enumerate(rates):
        evaluation(tmp_path, "aime24", 10 * step, rate, seed=1)
    found, _ = outcome(Run("x", tmp_path, 0), Metrics(), SHARE)
    assert found.peak is None and found.verdict != "fell"


def test_a_training_reward_that_rose_and_fell(tmp_path):
    rng = np.random.default_rng(0)
    rise = np.concatenate([np.linspace(0, 0.48, 60), np.linspace(0.48, 0, 40)])
    values = np.clip(rise + 0.02 * rng.standard_normal(100), 0, 1)
    found, _ = outcome(Run("x", tmp_path, 0), metrics(rollout__reward_mean=values), SHARE)
    assert found.verdict == "fell" and found.peak.value == pytest.approx(0.44, abs=0.03)
    assert found.peak.at == "in steps 55 to 64" or found.peak.at.startswith("in steps 5")


def test_noise_alone_rarely_has_a_peak(tmp_path):
    rng = np.random.default_rng(0)
    verdicts = [
        outcome(Run("x", tmp_path, 0), metrics(reward=rng.standard_normal(100)), (0.0, 2.0))[0].verdict
        for _ in range(200)
    ]
    assert verdicts.count("fell") <= 10


def test_evaluations_in_the_log_come_before_the_training_reward(tmp_path):
    logged = metrics(eval_held_pass1=[0.2, np.nan, 0.4], rollout__reward_mean=[0.1, 0.1, 0.1])
    found, _ = outcome(Run("x", tmp_path, 0), logged, SHARE)
    assert (found.first, found.last, found.verdict) == (0.2, 0.4, "unsure") and "step 1 to 3" in found.what


def test_the_training_reward_is_the_last_tenth_against_the_first(tmp_path):
    rng = np.random.default_rng(0)
    values = np.clip(np.linspace(0.2, 0.6, 80) + 0.02 * rng.standard_normal(80), 0, 1)
    found, _ = outcome(Run("x", tmp_path, 0), metrics(rollout__reward_mean=values), SHARE)
    assert found.first == pytest.approx(values[:8].mean()) and found.last == pytest.approx(values[-8:].mean())
    assert found.verdict == "better" and found.is_share and "first 8 against last 8 of 80 steps" in found.what
    flat, _ = outcome(Run("x", tmp_path, 0), metrics(reward=rng.standard_normal(80)), SHARE)
    assert flat.verdict == "open" and not flat.is_share


@pytest.mark.parametrize("count", range(7))
def test_few_steps_have_no_interval_and_none_no_outcome(tmp_path, count):
    found, _ = outcome(Run("x", tmp_path, 0), metrics(reward=np.full(count, 0.5)), SHARE)
    assert (found is None) == (count < 2)
    assert found is None or found.change is None or count > 5


def test_parts_are_a_tenth_of_five_steps_or_more():
    assert [window(n) for n in (2, 3, 9, 10, 60, 1000)] == [1, 1, 4, 5, 6, 100]


# steps and their noise: rewards are shares right of 32 answers


def curve(*stretches: tuple[float, int], seed: int = 0, answers: int = 32) -> np.ndarray:
    rates = np.concatenate([np.full(count, rate) for rate, count in stretches])
    return np.random.default_rng(seed).binomial(answers, rates) / answers


def trained(tmp_path, values, rewards=SHARE):
    return outcome(Run("x", tmp_path, 0), metrics(rollout__reward_mean=values), rewards)[0]


@pytest.mark.parametrize(
    ("stretches", "verdict"),
    [
        ([(0.9, 6), (0.1, 6)], "worse"),
        ([(0.1, 6), (0.9, 6)], "better"),
        ([(0.05, 30), (0.9, 30)], "better"),
        ([(0.07, 4), (0.9, 4), (0.0, 4)], "fell"),
        ([(0.07, 20), (0.9, 20), (0.0, 20)], "fell"),
    ],
)
def test_sudden_rises_and_falls_are_changes_and_never_noise(tmp_path, stretches, verdict):
    found = [trained(tmp_path, curve(*stretches, seed=seed)) for seed in range(40)]
    assert [each.verdict for each in found] == [verdict] * 40
    assert all(-1 <= each.change.low <= each.change.high <= 1 for each in found), "no share beyond 0 and 100 %"


@pytest.mark.parametrize("steps", [12, 60, 400])
@pytest.mark.parametrize("rate", [0.05, 0.5])
def test_level_noise_is_still_noise(tmp_path, steps, rate):
    found = [trained(tmp_path, curve((rate, steps), seed=seed)).verdict for seed in range(300)]
    assert found.count("open") >= 0.92 * 300 and found.count("fell") <= 6


def opened(values) -> LoadedRun:
    return LoadedRun(Run("x", None, 0), {}, metrics(rollout__reward_mean=values), ())


def test_a_run_at_0_against_one_at_20_percent_is_a_difference():
    for seed in range(30):
        found, what = _by_step(opened(curve((0.2, 12), seed=seed)), opened(np.zeros(12)))
        assert found.verdict == "better" and found.text.endswith(" points") and what == "training reward"
    alike = [
        _by_step(opened(curve((0.2, 12), seed=seed)), opened(curve((0.2, 12), seed=1000 + seed)))[0].verdict
        for seed in range(200)
    ]
    assert alike.count("open") >= 0.92 * 200


def test_the_peak_the_best_step_and_the_fall_come_first_in_words(tmp_path):
    found = trained(tmp_path, curve((0.07, 4), (0.9, 4), (0.0, 4)))
    assert found.peak.at == "in steps 6 to 8" or found.peak.at == "in steps 5 to 7"
    assert found.peak.best.startswith("best step ") and found.peak.fall.high < 0
    assert found.peak.fall.low >= -found.peak.value, "nothing falls below 0"


def test_rewards_of_another_scheme_are_shares_of_the_way_from_fail_to_pass(tmp_path):
    found = trained(tmp_path, 2 * curve((0.1, 6), (0.9, 6)) - 1, (-1.0, 1.0))
    assert found.is_share and found.verdict == "better" and 0 <= found.first < 0.2


@pytest.mark.parametrize("steps", [80, 400])
def test_the_interval_covers_a_run_that_learns(steps):
    rng = np.random.default_rng(1)
    trend, size, covered = 8 * (1 - np.exp(-3 * np.arange(steps) / steps)), window(steps), 0
    for _ in range(300):
        values = trend + rng.standard_normal(steps)
        error = values[-size:].mean() - values[:size].mean() - (trend[-size:].mean() - trend[:size].mean())
        covered += abs(error) <= of_steps(values, size)
    assert covered >= 0.92 * 300


def test_a_run_that_never_changes_has_an_interval_without_width():
    assert of_steps(np.full(40, 0.5), 5) == 0.0


@pytest.mark.parametrize("steps", [12, 16])
def test_a_sudden_collapse_at_the_end_of_a_short_run_is_a_fall(tmp_path, steps):
    """One jump is most of what successive differences see of few steps: 64 responses to 16 prompts decide."""
    rates = np.concatenate([np.linspace(0.1, 0.8, steps - 2), [0.0, 0.0]])
    group = {"rollout": {"n_samples_per_prompt": 4}}
    for seed in range(40):
        values = np.random.default_rng(seed).binomial(64, rates) / 64
        logged = metrics(rollout__reward_mean=values, rollout__num_samples=np.full(steps, 64))
        found, _ = outcome(Run("x", tmp_path, 0), logged, SHARE, group)
        assert found.verdict == "fell" and found.peak.fall.high < 0, seed


@pytest.mark.parametrize("rate", [0.05, 0.5])
def test_a_level_short_run_rarely_falls(tmp_path, rate):
    group, verdicts = {"rollout": {"n_samples_per_prompt": 1}}, []
    for seed in range(300):
        values = np.random.default_rng(seed).binomial(64, rate, 12) / 64
        logged = metrics(rollout__reward_mean=values, rollout__num_samples=np.full(12, 64))
        verdicts.append(outcome(Run("x", tmp_path, 0), logged, SHARE, group)[0].verdict)
    assert verdicts.count("fell") <= 6
