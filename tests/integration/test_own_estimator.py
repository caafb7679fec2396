"""The estimator's door: the example from outside the package trains, is killed, resumes, and its state is right."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
import torch

from openrlhf_ebpo.run.run_log import read_metrics, read_rollouts, read_run

EXAMPLE = str(Path(__file__).parents[2] / "examples" / "estimator")
NAME = "running_mean:RunningMean"


@pytest.fixture(scope="module")
def run_dir(train, command, tmp_path_factory) -> Path:
    """Killed (SIGKILL) after step 1 of 3, and resumed in async mode."""
    output = tmp_path_factory.mktemp("own")
    argv = command(output, advantage_estimator=NAME, ckpt__save_steps=1, ckpt__load_enable=True)
    first = train(argv, PYTHONPATH=EXAMPLE)
    first.wait_for_step(output / "model" / "run", 1)
    os.killpg(first.process.pid, signal.SIGKILL)
    first.process.wait()
    train([*argv, "--train.async_enable"], PYTHONPATH=EXAMPLE).succeed()
    return output / "model" / "run"


def test_its_state_after_a_restart_is_the_one_of_the_logged_rewards(run_dir):
    expected = {"reward_sum": 0.0, "count": 0.0}
    for step in (1, 2, 3):
        rewards = torch.tensor(read_rollouts(run_dir, step)["reward"].to_pylist(), dtype=torch.float64)
        expected = {
            "reward_sum": 0.9 * expected["reward_sum"] + rewards.sum().item(),
            "count": 0.9 * expected["count"] + len(rewards),
        }
    stored = json.loads((run_dir / "prior.json").read_text())
    assert {key: stored[key] for key in expected} == expected
    assert stored["identity"]["estimator"] == NAME
    for place in (run_dir.parents[1] / "ckpt" / "_actor" / "global_step3", run_dir.parent):
        assert json.loads((place / "prior.json").read_text()) == stored


def test_the_run_log_and_the_metrics_show_it(run_dir):
    run, rows = read_run(run_dir), read_metrics(run_dir)
    assert run["status"] == "complete" and run["args"]["algo"]["advantage"]["estimator"] == NAME
    assert [row["step"] for row in rows] == [1, 2, 3]
    for row in rows:
        table = read_rollouts(run_dir, row["step"])
        assert set(table["baseline"].to_pylist()) == {row["running_mean/mean"]}
        reward, baseline, advantage = (table[name].to_numpy() for name in ("reward", "baseline", "advantage"))
        assert advantage == pytest.approx(reward - baseline)
        assert table["shrinkage"].null_count == len(table)
        assert row["mismatch/stale"] == 0, "asynchronous rollouts are older by design"
        assert "ebpo/rescued_fraction" in row and "ebpo/shrinkage" not in row


def test_another_estimator_refuses_its_checkpoint(run_dir, command, run_in_process):
    output = run_dir.parents[1]
    argv = command(output, advantage_estimator="ebpo", ckpt__load_enable=True, logger__run_dir=output / "other")
    assert f"estimator was '{NAME}' and is now 'ebpo'" in run_in_process(argv)
