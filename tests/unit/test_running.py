"""RunningEstimator, which the integrations of other trainers share: OpenRLHF's numbers, its state on disk, what it
refuses."""

import json
from pathlib import Path

import numpy as np
import pytest

from openrlhf_ebpo.errors import ReportedError, UsageError
from openrlhf_ebpo.integrations.running import RunningEstimator

WEIGHTS = np.linspace(1, 2, 12)
GOLDEN = json.loads((Path(__file__).parents[1] / "data" / "golden_advantages.json").read_text())


@pytest.mark.parametrize("name", GOLDEN["advantages"])
def test_it_gives_the_golden_advantages(name):
    running = RunningEstimator(name, GOLDEN["group"])
    for rewards, golden in zip(GOLDEN["rewards"], GOLDEN["advantages"][name], strict=True):
        assert running.step(rewards).advantages.ravel() == pytest.approx(golden, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("name", ["ebpo", "score_weighted", "group_norm"])
def test_saved_and_restored_it_continues_bit_for_bit(tmp_path, name):
    first, second, third = GOLDEN["rewards"]
    running = RunningEstimator(name, 4)
    running.step(first, score_weights=lambda: WEIGHTS)
    running.step(second, score_weights=lambda: WEIGHTS)
    running.save(tmp_path)
    expected = running.step(third, score_weights=lambda: WEIGHTS).advantages
    other = RunningEstimator(name, 4)
    other.restore(tmp_path)
    assert np.array_equal(other.step(third, score_weights=lambda: WEIGHTS).advantages, expected)


def test_the_state_before_the_latest_batch_can_be_saved(tmp_path):
    running = RunningEstimator("ebpo", 4)
    running.step(GOLDEN["rewards"][0])
    (tmp_path / "after").mkdir()
    running.save(tmp_path / "after")
    running.step(GOLDEN["rewards"][1])
    running.save(tmp_path, before=True)
    assert (tmp_path / "prior.json").read_text() == (tmp_path / "after" / "prior.json").read_text()


def test_a_reward_that_is_nan_is_excluded():
    running = RunningEstimator("ebpo", 2)
    found, metrics = running.step([1, 0, np.nan, 1, 0, 0]), running.metrics
    assert not found.valid[1, 0] and found.advantages[1, 0] == 0 and found.advantages[0].all()
    assert metrics["ebpo/all_fail_fraction"] == pytest.approx(1 / 3) and 0 < metrics["ebpo/shrinkage"] < 1


def test_responses_in_any_order_and_groups_that_lack_some():
    """As grouped, with NaN for what is missing: what is said of a response goes with it."""
    grouped, lengths = [1, 0, 1, np.nan, 0, 1, np.nan, np.nan], [1, 2, 3, 0, 4, 5, 0, 0]
    present = np.array([5, 0, 4, 2, 1])
    for name in ("ebpo", "opo"):
        one, other = RunningEstimator(name, 4), RunningEstimator(name, 4)
        expected = one.step(grouped, lengths).advantages.ravel()[present]
        rows = np.array(grouped)[present], present // 4, np.array(lengths)[present]
        assert np.array_equal(other.step_rows(*rows), expected) and one.pack() == other.pack() and one.metrics
    with pytest.raises(UsageError, match="5 responses, more than the 4"):
        RunningEstimator("ebpo", 4).step_rows([1] * 5, [0] * 5)


def test_a_run_starts_from_a_prior_that_is_named(tmp_path):
    running = RunningEstimator("ebpo", 4)
    running.step(GOLDEN["rewards"][0])
    running.save(tmp_path)
    again = RunningEstimator("ebpo", 4, {"init_prior": str(tmp_path / "prior.json")})
    assert again.state == running.state
    fresh = RunningEstimator("ebpo", 4, {"reset_prior": True})
    fresh.restore(tmp_path)
    assert fresh.state == fresh.estimator.initial()


@pytest.mark.parametrize(
    ("named", "arguments"),
    [
        ("no estimator 'ebop'. Did you mean ebpo", ("ebop", 4)),
        ("gae", ("gae", 4)),
        ("presett", ("ebpo", 4, {"presett": "paper"})),
        ("preset: name it with the estimator, such as ebpo.robust", ("ebpo", 4, {"preset": "robust"})),
        ("pass_reward", ("ebpo", 4, {"pass_reward": -1.0})),
        ("clusters", ("ebpo", 4, {"clusters": "cluster"})),
        ("needs at least 2", ("ebpo", 1)),
    ],
)
def test_what_cannot_be_is_refused_by_name(named, arguments):
    with pytest.raises(UsageError, match=named):
        RunningEstimator(*arguments)


def test_score_weights_are_refused_where_the_trainer_gives_none():
    for name, settings in (("score_weighted", {}), ("ebpo.robust", {})):
        running = RunningEstimator(name, 4, settings)
        with pytest.raises(UsageError, match="log-probabilities"):
            running.rehearse_without_log_probabilities()
        assert running.step([1, 0, 0, 0], score_weights=lambda: [1, 2, 3, 4]).advantages.any()
    RunningEstimator("ebpo", 4).rehearse_without_log_probabilities()


def test_damage_and_anothers_prior_are_refused(tmp_path):
    with pytest.raises(ReportedError, match="no such prior file"):
        RunningEstimator("ebpo", 4).restore(tmp_path)
    RunningEstimator("ebpo", 2).save(tmp_path)
    with pytest.raises(ReportedError, match="n_samples_per_prompt was 2 and is now 4"):
        RunningEstimator("ebpo", 4).restore(tmp_path)
    with pytest.raises(ValueError, match="groups of 4"):
        RunningEstimator("ebpo", 4).step([1, 0, 0])


def test_the_loop_of_the_page_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[2] / "docs" / "integrations.md").read_text()
    names = {}
    exec(page.split("```python\n")[1].split("```")[0], names)
    assert names["again"].pack() == names["running"].pack() and names["advantages"].shape == (8, 4)
