"""An estimator from outside the package loses its driver, then an engine, then is paused: the run completes, its state
right."""

import json
import os
import signal
import warnings
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import torch

from openrlhf_ebpo.command import PAUSED
from openrlhf_ebpo.run import manifest, resume
from openrlhf_ebpo.run.heartbeat import END_FILE, read_beat
from openrlhf_ebpo.run.run_log import read_metrics, read_rollouts, read_run
from openrlhf_ebpo.train.supervisor.restarts import PAUSE

EXAMPLE = str(Path(__file__).parents[2] / "examples" / "estimator")
NAME = "running_mean:RunningMean"
STEPS = 15


@pytest.fixture(scope="module")
def story(train, command, workshop, engine_cores, tmp_path_factory):
    """Async with a queue of four, each step saved by the minutes. SIGKILL of the driver after the first checkpoint and
    of the engine's core after step 3 are each restarted; SIGTERM after step 5 pauses; the same command with
    --ckpt.load_enable completes it."""
    output = tmp_path_factory.mktemp("restarts")
    run_dir, actor = output / "model" / "run", output / "ckpt" / "_actor"
    argv = command(
        output,
        advantage_estimator=NAME,
        train__async_enable=True,
        train__async_queue_size=4,
        eval__dataset=workshop / "prompts.jsonl",
        eval__steps=4,
        eval__n_samples_per_prompt=1,
        ckpt__best_metric_key="none",
        train__max_restarts=1,
        train__num_episodes=STEPS // 3,
        ckpt__save_steps=-1,
        ckpt__save_minutes=1e-6,
    )
    first = train([*argv, "--force"], PYTHONPATH=EXAMPLE, **{PAUSE: "0.5"})
    first.wait_until((run_dir / "checkpoints.jsonl").exists)
    os.kill(psutil.Process(first.process.pid).children()[0].pid, signal.SIGKILL)  # the supervisor has the command's id
    first.wait_until(lambda: read_run(run_dir).get("restarts"))
    between = read_run(run_dir)
    first.wait_for_step(run_dir, 3)
    first.wait_until(engine_cores)[0].kill()
    first.wait_until(lambda: len(read_run(run_dir)["restarts"]) == 2)
    first.wait_for_step(run_dir, 5)
    os.kill(first.process.pid, signal.SIGTERM)
    first.wait()
    paused, rows = read_run(run_dir), read_metrics(run_dir)
    tags = resume.tags_of([actor])
    complete = [tag for tag in tags if not manifest.damage(actor / tag, contents=True)]
    aside = sorted(run_dir.glob("superseded/*/metrics.jsonl"))
    priors = [json.loads((folder / "prior.json").read_text()) for folder in (run_dir, actor / tags[-1])]
    second = train([*argv, "--ckpt.load_enable"], PYTHONPATH=EXAMPLE)
    second.succeed()
    return SimpleNamespace(**locals())


def test_a_killed_driver_and_a_dead_engine_are_restarted_from_the_newest_checkpoint(story):
    said, causes = story.first.output, ("the driver was killed by SIGKILL", "rollout engine 0 has died")
    for restart, cause in zip(story.paused["restarts"], causes, strict=True):
        assert cause in restart["cause"] and restart["from"].startswith("global_step")
        assert f"error: training stopped: {restart['cause']}\n" in said
        assert f"restart 1 of 1 (--train.max_restarts) in 0 s, from {restart['from']}" in said
        assert f"resuming from {restart['from']} of" in said


def test_the_restarted_run_is_one_run_without_a_gap(story):
    run = read_run(story.run_dir)
    assert story.between["status"] == "running" and run["status"] == "complete"
    assert len(run["resumed"]) == len(run["restarts"]) + 1  # and the last command
    for restart in run["restarts"][2:]:  # a machine under load may lose a port between its choice and its use
        warnings.warn(f"a restart that the test did not ask for: {restart['cause']}", stacklevel=1)
    assert [row["step"] for row in read_metrics(story.run_dir)] == list(range(1, STEPS + 1))
    assert len(list(story.run_dir.parent.glob("run*"))) == 1  # --force was for the first start
    assert (
        read_beat(story.run_dir).step >= story.rows[-1]["step"]
    )  # a thread writes it; the last may go with its process


def test_a_pause_saves_its_step_and_ends_and_says_so(story):
    step = story.rows[-1]["step"]
    assert 5 <= step < STEPS and story.first.process.returncode == PAUSED
    assert story.paused["status"] == "paused"
    assert story.paused["error"] == f"saved step {step} and ended, as SIGTERM asked"
    said = story.first.output
    assert "SIGTERM: saving after the current step, then ending; phase: " in said
    assert f", as SIGTERM asked\nglobal_step{step} is complete" in said


def test_what_a_pause_saves_is_a_checkpoint_like_any_other(story):
    step = story.rows[-1]["step"]
    assert story.tags == story.complete and story.priors[0] == story.priors[1]
    assert {f"global_step{number}" for number in range(step - 2, step + 1)} == set(story.tags)  # the newest three
    listed = [json.loads(line) for line in (story.run_dir / "checkpoints.jsonl").read_text().splitlines()]
    (row,) = [row for row in listed if row["tag"] == f"global_step{step}"]
    assert row["checkpoint"] == str(story.actor / row["tag"])


def test_the_same_command_resumes_a_pause_and_trains_no_step_twice(story):
    resumed = read_run(story.run_dir)["resumed"][-1]
    assert resumed["checkpoint"].endswith(f"global_step{story.rows[-1]['step']}")
    assert not (story.run_dir / END_FILE).exists()
    assert sorted(story.run_dir.glob("superseded/*/metrics.jsonl")) == story.aside


def test_the_state_after_all_restarts_is_the_one_of_the_logged_rewards(story):
    expected = {"reward_sum": 0.0, "count": 0.0}
    for step in range(1, STEPS + 1):
        rewards = torch.tensor(read_rollouts(story.run_dir, step)["reward"].to_pylist(), dtype=torch.float64)
        seen = {"reward_sum": rewards.sum().item(), "count": len(rewards)}
        expected = {key: 0.9 * value + seen[key] for key, value in expected.items()}
    stored = json.loads((story.run_dir / "prior.json").read_text())
    assert {key: stored[key] for key in expected} == expected
    assert stored["identity"]["estimator"] == NAME
    for place in (story.actor / f"global_step{STEPS}", story.run_dir.parent):
        assert json.loads((place / "prior.json").read_text()) == stored


def test_the_run_log_and_the_metrics_show_it(story):
    assert read_run(story.run_dir)["args"]["algo"]["advantage"]["estimator"] == NAME
    for row in read_metrics(story.run_dir):
        table = read_rollouts(story.run_dir, row["step"])
        assert set(table["baseline"].to_pylist()) == {row["running_mean/mean"]}
        reward, baseline, advantage = (table[name].to_numpy() for name in ("reward", "baseline", "advantage"))
        assert advantage == pytest.approx(reward - baseline)
        assert table["shrinkage"].null_count == len(table)
        assert row["mismatch/stale"] == 0, "asynchronous rollouts are older by design"
        assert "ebpo/rescued_fraction" in row and "ebpo/shrinkage" not in row


def test_each_evaluation_that_was_due_is_recorded_right_after_its_step(story):
    rows = [json.loads(line) for line in (story.run_dir / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows if "eval_num_samples" in row] == [4, 8, 12]
    assert [row["step"] for row in rows] == sorted(row["step"] for row in rows)
