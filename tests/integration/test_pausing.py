"""A training that evaluates and saves no step is asked to end: it saves its step, evaluates it, ends, and resumes."""

import json
import os
import re
import signal
from types import SimpleNamespace

import pytest

from openrlhf_ebpo.command import PAUSED
from openrlhf_ebpo.run.heartbeat import END_FILE
from openrlhf_ebpo.run.run_log import read_metrics, read_run

pytestmark = pytest.mark.nightly  # daily: integration/test_restarts.py, unit/test_save_times.py

STEPS = 15


@pytest.fixture(scope="module")
def story(train, command, workshop, tmp_path_factory):
    """No step is to be saved, each is evaluated, USR1 comes."""
    output = tmp_path_factory.mktemp("paused")
    run_dir, actor = output / "model" / "run", output / "ckpt" / "_actor"
    changes = {"eval__dataset": workshop / "prompts.jsonl", "eval__steps": 1, "ckpt__save_hf": True}
    argv = command(output, train__num_episodes=STEPS // 3, ckpt__save_steps=-1, ckpt__load_enable=True, **changes)
    first = train(argv)
    first.wait_for_step(run_dir, 2)
    os.kill(first.process.pid, signal.SIGUSR1)
    first.wait()
    paused, rows = read_run(run_dir), read_metrics(run_dir)
    train(argv).succeed()
    return SimpleNamespace(**locals())


def test_it_saves_its_step_and_ends_and_says_so(story):
    step = story.rows[-1]["step"]
    assert 2 <= step < STEPS and story.first.process.returncode == PAUSED
    assert story.paused["status"] == "paused"
    assert story.paused["error"] == f"saved step {step} and ended, as SIGUSR1 asked"
    said = story.first.output
    assert "SIGUSR1: saving after the current step, then ending; phase: " in said
    # the evaluation of this step may have found it the best one, which is the same state saved once more
    assert re.search(rf"paused: saved step {step} .*, as SIGUSR1 asked\n(best_)?global_step{step} is complete", said)
    assert "Traceback" not in said and "error:" not in said


def test_the_evaluation_that_was_due_comes_and_nothing_is_exported(story):
    step = story.rows[-1]["step"]
    listed = [json.loads(line) for line in (story.run_dir / "checkpoints.jsonl").read_text().splitlines()]
    (row,) = [row for row in listed if row["tag"] == f"global_step{step}"]
    assert [row["tag"] for row in listed if not row["tag"].startswith("best")] == [row["tag"]]
    assert row["model"] is None and not list((story.output / "ckpt").glob("global_step*_hf"))
    assert any(name.startswith("eval_") for name in story.rows[-1])


def test_the_same_command_resumes_it_and_completes_it(story):
    step = story.rows[-1]["step"]
    run = read_run(story.run_dir)
    assert run["status"] == "complete" and run["resumed"][0]["checkpoint"].endswith(f"global_step{step}")
    assert [row["step"] for row in read_metrics(story.run_dir)] == list(range(1, STEPS + 1))
    assert not (story.run_dir / END_FILE).exists()
    # no step was trained twice
    assert not list(story.run_dir.glob("superseded/*/metrics.jsonl"))
