"""Real trainings that a scheduler asks to end: they save after their step, end, and the same command resumes them."""

from __future__ import annotations

import json
import os
import re
import signal
from types import SimpleNamespace

import pytest

from openrlhf_ebpo.command import PAUSED
from openrlhf_ebpo.run import manifest, resume
from openrlhf_ebpo.run.heartbeat import END_FILE
from openrlhf_ebpo.run.run_log import read_metrics, read_run

STEPS = 15


# sync is nightly; daily: unit/test_save_times.py, unit/test_supervisor.py
@pytest.fixture(scope="module", params=[pytest.param("sync", marks=pytest.mark.nightly), "async"])
def story(request, train, command, workshop, tmp_path_factory):
    """Sync: no step is to be saved, each is evaluated, USR1 comes. Async: the minutes save every step, SIGTERM comes."""
    output = tmp_path_factory.mktemp(request.param)
    run_dir, actor = output / "model" / "run", output / "ckpt" / "_actor"
    changes = {
        "sync": {"eval__dataset": workshop / "prompts.jsonl", "eval__steps": 1, "ckpt__save_hf": True},
        "async": {"train__async_enable": True, "ckpt__save_minutes": 1e-6},
    }[request.param]
    argv = command(output, train__num_episodes=STEPS // 3, ckpt__save_steps=-1, ckpt__load_enable=True, **changes)
    first = train(argv)
    first.wait_for_step(run_dir, 2)
    name = "SIGUSR1" if request.param == "sync" else "SIGTERM"
    os.kill(first.process.pid, signal.Signals[name])
    first.wait()
    paused, rows = read_run(run_dir), read_metrics(run_dir)
    tags = resume.tags_of([actor])
    whole = [tag for tag in tags if not manifest.damage(actor / tag, contents=True)]
    priors = json.loads((run_dir / "prior.json").read_text()), json.loads((actor / tags[-1] / "prior.json").read_text())
    second = train(argv)
    second.succeed()
    return SimpleNamespace(mode=request.param, **{k: v for k, v in locals().items() if k != "request"})


def test_it_saves_its_step_and_ends_and_says_so(story):
    step = story.rows[-1]["step"]
    assert 2 <= step < STEPS and story.first.process.returncode == PAUSED
    assert story.paused["status"] == "paused"
    assert story.paused["error"] == f"saved step {step} and ended, as {story.name} asked"
    said = story.first.output
    assert f"{story.name}: saving after the current step, then ending; phase: " in said
    # the evaluation of this step may have found it the best one, which is the same state saved once more
    assert re.search(
        rf"paused: saved step {step} .*, as {story.name} asked\n(best_)?global_step{step} is complete", said
    )
    assert "Traceback" not in said and "error:" not in said


def test_what_it_saves_is_a_checkpoint_like_any_other(story):
    step = story.rows[-1]["step"]
    assert story.tags == story.whole and f"global_step{step}" in story.tags and story.priors[0] == story.priors[1]
    listed = [json.loads(line) for line in (story.run_dir / "checkpoints.jsonl").read_text().splitlines()]
    (row,) = [row for row in listed if row["tag"] == f"global_step{step}"]
    assert row["checkpoint"] == str(story.actor / row["tag"])
    if story.mode == "sync":
        assert [row["tag"] for row in listed if not row["tag"].startswith("best")] == [f"global_step{step}"]
        assert row["model"] is None and not list(
            (story.output / "ckpt").glob("global_step*_hf")
        )  # not a step of --ckpt.save_steps
        assert any(name.startswith("eval_") for name in story.rows[-1])  # the evaluation that was due was not left out
    else:
        assert {f"global_step{number}" for number in range(step - 2, step + 1) if number} == set(
            story.tags
        )  # the newest three


def test_the_same_command_resumes_it_and_completes_it(story):
    step = story.rows[-1]["step"]
    run = read_run(story.run_dir)
    assert run["status"] == "complete" and run["resumed"][0]["checkpoint"].endswith(f"global_step{step}")
    assert [row["step"] for row in read_metrics(story.run_dir)] == list(range(1, STEPS + 1))
    assert not (story.run_dir / END_FILE).exists()
    # no step was trained twice
    assert not list(story.run_dir.glob("superseded/*/metrics.jsonl"))
