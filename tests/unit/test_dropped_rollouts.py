"""A run whose older rollouts were dropped, as a version with --logger.keep_rollouts left it, is read, replayed and
resumed."""

import json

import pytest
from replay_runs import drop_before, train

from openrlhf_ebpo.cli import main
from openrlhf_ebpo.run import run_log, run_writer
from openrlhf_ebpo.run.rollout_columns import logged_steps
from openrlhf_ebpo.run.run_log import PRIOR_STARTS, rollouts_path


@pytest.fixture
def replayed(capsys):
    """Replays a run and gives all that is said."""

    def run(run_dir, *flags) -> str:
        capsys.readouterr()
        try:
            main(["replay", str(run_dir), *flags])
        except SystemExit as stop:
            print(stop.code)
        return capsys.readouterr().out

    return run


@pytest.mark.parametrize("estimator", ["ebpo", "score_weighted"])
def test_the_kept_steps_are_replayed_bit_for_bit(tmp_path, replayed, estimator):
    states = train(tmp_path, estimator, to=6)
    train(tmp_path, estimator, to=9, states=json.loads(json.dumps(states)))
    drop_before(tmp_path, 7, states)
    assert run_log.first_kept(tmp_path) == 7
    said = replayed(tmp_path)
    assert "3 logged steps" in said and "steps up to 6 were dropped" in said and "bit for bit: 3 steps" in said


def test_a_resume_from_before_what_is_kept_takes_its_steps_for_kept(tmp_path, replayed):
    states = train(tmp_path, to=2)
    train(tmp_path, to=9, states=states)
    drop_before(tmp_path, 7, states)
    train(tmp_path, to=4, states=states)
    assert run_log.first_kept(tmp_path) == 3 and list(run_log.step_files(tmp_path)) == [3, 4]
    assert "bit for bit: 2 steps" in replayed(tmp_path)


def test_what_an_interrupted_removal_left_is_not_replayed(tmp_path, replayed):
    states = train(tmp_path, to=3)
    train(tmp_path, to=6, states=states)
    left = rollouts_path(tmp_path, 3).read_bytes()
    drop_before(tmp_path, 4, states)
    rollouts_path(tmp_path, 3).write_bytes(left)
    assert list(logged_steps(tmp_path)) == [4, 5, 6]
    assert "bit for bit: 3 steps" in replayed(tmp_path)


def test_another_estimator_with_a_state_is_told_why_it_cannot_be_replayed(tmp_path, replayed):
    states = train(tmp_path, to=3)
    train(tmp_path, to=6, states=states)
    drop_before(tmp_path, 4, states)
    said = replayed(tmp_path, "--estimator", "ebpo.corrected")
    assert "state before step 4 is not known: the rollouts up to step 3 were dropped on purpose (dropped.json)" in said
    assert "3 steps" in replayed(tmp_path, "--estimator", "score_weighted")


def test_a_step_that_was_lost_is_not_taken_for_dropped(tmp_path, replayed):
    states = train(tmp_path, to=6)
    train(tmp_path, to=9, states=states)
    drop_before(tmp_path, 7, states)
    (tmp_path / PRIOR_STARTS).unlink()
    assert "dropped on purpose" in replayed(tmp_path)  # step 7's start
    rollouts_path(tmp_path, 7).unlink()
    assert "no rollouts of step 7 are in" in replayed(tmp_path)


def test_the_dry_run_says_what_the_rollouts_will_take():
    said = "up to about 1.60 MB a logged step, 160 MB in 1,000 steps (--logger.rollouts_every 10)"
    assert said in run_writer.size_notice(responses=32 * 8, tokens=4060, every=10)
