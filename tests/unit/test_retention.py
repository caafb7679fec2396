"""--logger.keep_rollouts: the newest steps stay and can be replayed, and the record says what was dropped."""

import json
from types import SimpleNamespace

import pytest
from replay_runs import train

from openrlhf_ebpo.cli import main
from openrlhf_ebpo.errors import ReportedError
from openrlhf_ebpo.files import read_json_lines
from openrlhf_ebpo.run import run_log, run_writer
from openrlhf_ebpo.run.rollout_columns import logged_steps
from openrlhf_ebpo.run.run_log import PRIOR_STARTS, read_metrics, rollouts_path
from openrlhf_ebpo.run.run_writer import RunLog


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


def steps_of(run_dir) -> list[int]:
    return list(run_log.step_files(run_dir))


def starts_of(run_dir) -> list[int]:
    return [row["step"] for row in read_json_lines(run_dir / PRIOR_STARTS)]


def test_without_the_flag_every_step_stays(tmp_path):
    train(tmp_path, to=6)
    assert steps_of(tmp_path) == [1, 2, 3, 4, 5, 6]
    assert run_log.first_kept(tmp_path) == 1 and not (tmp_path / run_log.DROPPED).exists()


@pytest.mark.parametrize("estimator", ["ebpo", "score_weighted", "spo"])
def test_the_newest_steps_stay_and_are_replayed_bit_for_bit(tmp_path, replayed, estimator):
    train(tmp_path, estimator, to=9, keep=3)
    assert steps_of(tmp_path) == [7, 8, 9] == starts_of(tmp_path)
    assert run_log.first_kept(tmp_path) == 7
    assert [row["step"] for row in read_metrics(tmp_path)] == list(range(1, 10))
    said = replayed(tmp_path)
    assert "3 logged steps" in said and "steps up to 6 were dropped" in said and "bit for bit: 3 steps" in said


def test_states_are_written_at_every_tenth_part_and_a_tenth_more_files_may_stay(tmp_path, replayed):
    train(tmp_path, to=47, keep=20)
    assert (run_log.first_kept(tmp_path), steps_of(tmp_path)[-1]) == (28, 47)
    assert steps_of(tmp_path) == list(range(28, 48))
    assert starts_of(tmp_path) == list(range(28, 48, 2))
    train(tmp_path / "later", to=48, keep=20)
    assert 20 <= len(steps_of(tmp_path / "later")) < 20 + 2 + run_writer.spare_files(20)
    assert "bit for bit" in replayed(tmp_path)


def test_sparse_steps_are_counted_as_they_are_logged(tmp_path, replayed):
    train(tmp_path, to=12, every=2, keep=2)
    assert steps_of(tmp_path) == [10, 12] == starts_of(tmp_path)
    assert "bit for bit: 2 steps" in replayed(tmp_path)


def test_rollouts_without_an_estimators_state_need_none(tmp_path):
    log = RunLog(tmp_path, None, keep_rollouts=2)
    for step in range(1, 6):
        log.write_rollouts(step, Batch())
    log.flush()
    assert steps_of(tmp_path) == [4, 5] and not (tmp_path / PRIOR_STARTS).exists()


class Batch:
    def table(self, step, tokenizer):
        import pyarrow as pa

        return pa.table({"step": [step]})


@pytest.mark.parametrize("checkpoint", [2, 4, 6])
def test_a_resume_goes_on_from_before_from_within_and_from_the_end_of_what_is_kept(tmp_path, replayed, checkpoint):
    states = json.loads(json.dumps(train(tmp_path, to=checkpoint, keep=3)))
    train(tmp_path, to=7, states=states, keep=3)  # and is killed there
    train(tmp_path, to=9, states=states, keep=3)
    assert steps_of(tmp_path) == [7, 8, 9] == starts_of(tmp_path)
    assert "bit for bit: 3 steps" in replayed(tmp_path)


def test_after_a_resume_from_before_what_is_kept_steps_are_not_taken_for_dropped(tmp_path, replayed):
    states = train(tmp_path, to=2, keep=3)
    train(tmp_path, to=9, states=states, keep=3)
    train(tmp_path, to=4, states=states, keep=3)
    assert run_log.first_kept(tmp_path) == 3 and steps_of(tmp_path) == [3, 4]
    assert "bit for bit: 2 steps" in replayed(tmp_path)


def test_a_run_that_kept_all_and_goes_on_with_the_flag_drops_when_it_has_enough_of_its_own(tmp_path, replayed):
    states = train(tmp_path, to=5)
    states = train(tmp_path, to=7, states=states, keep=3)
    assert steps_of(tmp_path) == [1, 2, 3, 4, 5, 6, 7]  # the state before step 5 is nowhere
    train(tmp_path, to=9, states=states, keep=3)
    assert steps_of(tmp_path) == [7, 8, 9]
    assert "bit for bit" in replayed(tmp_path)


def test_what_an_interrupted_removal_left_is_neither_replayed_nor_kept(tmp_path, replayed):
    left = tmp_path / "left"
    train(left, to=3)
    run = tmp_path / "run"
    states = train(run, to=6, keep=3)
    for step in (2, 3):
        (left / "rollouts" / rollouts_path(left, step).name).rename(rollouts_path(run, step))
    assert list(logged_steps(run)) == [4, 5, 6]
    assert "bit for bit: 3 steps" in replayed(run)
    train(run, to=7, states=states, keep=3)
    assert steps_of(run) == [5, 6, 7]


def test_another_estimator_with_a_state_is_told_why_it_cannot_be_replayed(tmp_path, replayed):
    train(tmp_path, to=6, keep=3)
    said = replayed(tmp_path, "--preset", "corrected")
    assert "state before step 4 is not known: the rollouts up to step 3 were removed, as --logger.keep_rollouts" in said
    assert "3 steps" in replayed(tmp_path, "--estimator", "score_weighted")


def test_a_step_that_was_lost_is_not_taken_for_dropped(tmp_path, replayed):
    train(tmp_path, to=9, keep=3)
    (tmp_path / PRIOR_STARTS).unlink()
    rollouts_path(tmp_path, 8).unlink()
    assert "removed, as --logger.keep_rollouts" in replayed(tmp_path)  # step 7's start
    rollouts_path(tmp_path, 7).unlink()
    assert "no rollouts of step 8 are in" in replayed(tmp_path)


@pytest.mark.parametrize("text", ["{", "[]", "7", '{"rollouts_before": "7"}', '{"rollouts_before": 0}', "[" * 9999, ""])
def test_a_damaged_record_is_named(tmp_path, text):
    (tmp_path / run_log.DROPPED).write_text(text)
    with pytest.raises(ReportedError, match=r"dropped\.json is damaged"):
        run_log.first_kept(tmp_path)


def test_an_error_while_removing_is_raised_at_a_later_step(tmp_path):
    rollouts_path(tmp_path, 1).mkdir(parents=True)
    log = RunLog(tmp_path, None, keep_rollouts=1)
    log.write_rollouts(2, Batch())
    with pytest.raises(OSError, match="step-000001"):
        log.flush()
    assert rollouts_path(tmp_path, 2).is_file()


@pytest.mark.parametrize(
    ("every", "keep", "said"),
    [
        (1, None, "up to about 1.60 MB a logged step, 1,597 MB in 1,000 steps"),
        (10, None, "160 MB in 1,000 steps (--logger.rollouts_every 10, --logger.keep_rollouts all)"),
        (1, 100, "175.7 MB (--logger.rollouts_every 1, --logger.keep_rollouts 100)"),
    ],
)
def test_the_dry_run_says_what_the_rollouts_will_take(every, keep, said):
    rollout = SimpleNamespace(batch_size=32, n_samples_per_prompt=8, max_new_tokens=4060)
    logger = SimpleNamespace(rollouts_every=every, keep_rollouts=keep)
    assert said in run_writer.size_notice(SimpleNamespace(rollout=rollout, logger=logger))
