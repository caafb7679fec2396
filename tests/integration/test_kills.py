"""A policy process that is killed in the middle of saving, with prompts in flight, ends the command; repeated, it loses
nothing."""

import contextlib
import json
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import torch
from patience import seconds

from openrlhf_ebpo.estimator.prior import Moments
from openrlhf_ebpo.run import resume
from openrlhf_ebpo.run.run_log import read_metrics, read_rollouts, read_run
from openrlhf_ebpo.upstream.replacements import SEAMS

pytestmark = [
    # daily: integration/test_train_and_resume.py, integration/test_restarts.py, unit/test_checkpoint.py
    pytest.mark.nightly,
    pytest.mark.timeout(seconds(600)),
]
EPISODE, EPISODES = 3, 2  # steps of an episode


def is_being_saved(checkpoint: Path) -> bool:
    with contextlib.suppress(OSError):
        return any('"complete": false' in path.read_text() for path in checkpoint.glob("*.json"))
    return False


@pytest.fixture(scope="module")
def story(train, command, tmp_path_factory):
    output = tmp_path_factory.mktemp("kills")
    run_dir, actor = output / "model" / "run", output / "ckpt" / "_actor"
    argv = command(
        output,
        train__async_enable=True,
        train__async_queue_size=2,
        train__num_episodes=EPISODES,
        rollout__vllm_generate_batch_size=10,
        ckpt__save_steps=1,
        ckpt__load_enable=True,
    )
    first = train(argv, RAY_ADDRESS="local")
    first.wait_for_step(run_dir, 1)
    started = psutil.Process(first.process.pid).children(recursive=True)
    title = "ray::" + [seam for seam in SEAMS if seam.name == "PolicyModelActor"][-1].replacement.partition(":")[2]
    policy = next(process for process in started if process.cmdline()[0].startswith(title))
    while not is_being_saved(actor / "global_step2"):
        assert first.process.poll() is None, first.output
    policy.kill()
    first.fail()
    killed = read_run(run_dir)
    second = train(argv, RAY_ADDRESS="local")
    second.succeed()
    tables = [read_rollouts(run_dir, step) for step in range(1, EPISODE * EPISODES + 1)]
    return SimpleNamespace(**locals())


def test_the_kill_ends_the_command_and_the_same_command_resumes_it(story):
    run = read_run(story.run_dir)
    assert story.killed["status"] == "failed" and run["status"] == "complete"
    assert [Path(each["checkpoint"]).name for each in run["resumed"]] == ["global_step1"]


def test_no_step_and_no_prompt_is_lost_or_trained_twice(story):
    steps = list(range(1, EPISODE * EPISODES + 1))
    assert [row["step"] for row in read_metrics(story.run_dir)] == steps
    assert [set(table["step"].to_pylist()) for table in story.tables] == [{step} for step in steps]
    drawn = [Counter(table["prompt_id"].to_pylist()) for table in story.tables]
    episodes = [sum(drawn[at : at + EPISODE], Counter()) for at in range(0, len(drawn), EPISODE)]
    assert all(episode == Counter(dict.fromkeys(episode, 4)) and len(episode) == 24 for episode in episodes)


def test_the_prior_is_the_one_of_the_logged_rewards_in_every_place(story):
    stored = json.loads((story.run_dir / "prior.json").read_text())
    rewards = [reward for table in story.tables for reward in table["reward"].to_pylist()]
    found = Moments.of(rewards)
    assert stored["rewards"] == pytest.approx({"count": found.count, "mean": found.mean, "m2": found.m2}, rel=1e-12)
    newest = story.actor / resume.newest_complete([story.actor]).tag
    state = torch.load(next(newest.glob("*mp_rank_00_model_states.pt")), map_location="cpu", weights_only=False)
    assert state["ebpo_prior"] == json.loads((newest / "prior.json").read_text()) == stored


def test_every_complete_checkpoint_is_listed_once_and_none_is_damaged(story):
    lines = (story.run_dir / "checkpoints.jsonl").read_text().splitlines()
    listed = Counter(Path(json.loads(line)["checkpoint"]).name for line in lines)
    folders = [path for path in story.actor.iterdir() if path.is_dir()]
    assert max(listed.values()) == 1 and {path.name for path in folders} <= set(listed)
    assert [path.name for path in folders if resume.damage(path)] == []
