"""--data.order adaptive: killed in sync mode and resumed in async mode, and the draws are those of one run."""

from __future__ import annotations

import json
import os
import signal
from types import SimpleNamespace

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from openrlhf_ebpo.record.run_log import read_metrics, read_rollouts, read_run
from openrlhf_ebpo.training.curriculum import start, update
from openrlhf_ebpo.training.rollouts import prompt_id

PROMPTS, BATCH, STEPS = 24, 8, 6  # two episodes of three steps: one epoch


@pytest.fixture(scope="module")
def story(train, command, curriculum, tmp_path_factory):
    """Saves every second step, is killed (SIGKILL) after step 3 and resumed in async mode to step 6."""
    output = tmp_path_factory.mktemp("adaptive")
    run_dir = output / "model" / "run"
    argv = command(
        output,
        data__prompt_dataset=curriculum,
        data__order="adaptive",
        data__max_samples=PROMPTS,
        train__num_episodes=2,
        ckpt__save_steps=2,
        ckpt__load_enable=True,
    )
    first = train(argv)
    first.wait_for_step(run_dir, 3)
    os.killpg(first.process.pid, signal.SIGKILL)
    first.process.wait()
    train([*argv, "--train.async_enable"]).succeed()
    return SimpleNamespace(output=output, run_dir=run_dir, argv=argv)


def drawn(table) -> dict[str, float]:
    """Importance of each prompt."""
    found = dict(zip(table["prompt_id"].to_pylist(), table["importance"].to_pylist(), strict=True))
    assert len(found) == BATCH and len(table) == 4 * BATCH
    return found


def test_every_prompt_is_drawn_in_an_epoch_although_the_run_was_killed(story, curriculum):
    rows = [json.loads(line) for line in curriculum.read_text().splitlines()[:PROMPTS]]
    wanted = {prompt_id(row["prompt"], row["label"]) for row in rows}
    assert read_run(story.run_dir)["status"] == "complete"
    assert [row["step"] for row in read_metrics(story.run_dir)] == list(range(1, STEPS + 1))
    assert set().union(*(drawn(read_rollouts(story.run_dir, step)) for step in range(1, STEPS + 1))) == wanted


def test_steps_that_were_lost_are_drawn_again_as_they_were(story):
    aside = sorted(story.run_dir.glob("superseded/*/rollouts/step-*.parquet"))
    first = min(aside, key=lambda path: path.name)
    assert drawn(pq.read_table(first)) == drawn(read_rollouts(story.run_dir, int(first.stem[-6:])))


def test_the_checkpoint_holds_the_counts_of_the_logged_rewards(story, curriculum):
    folder = story.output / "ckpt" / "_actor" / "global_step6"
    states = torch.load(folder / "mp_rank_00_model_states.pt", weights_only=False)
    saved = states["data_loader_state_dict"]
    state = start(np.zeros(PROMPTS, int))
    places = {name: i for i, name in enumerate(saved["prompts"].tolist())}
    for step in range(1, STEPS + 1):
        table = read_rollouts(story.run_dir, step)
        groups = np.array([places[name] for name in table["prompt_id"].to_pylist()[::4]])
        successes = table["raw_reward"].to_numpy().reshape(-1, 4).sum(1)
        state = update(state, groups, successes, np.full(BATCH, 4))
    assert saved["successes"].tolist() == state.successes.tolist()
    assert saved["failures"].tolist() == state.failures.tolist()
    assert saved["draws"] == STEPS and saved["left"] == 2 * PROMPTS and not saved["drawn"].any()


def test_the_metrics_tell_what_an_even_draw_would_have_earned(story):
    for row in read_metrics(story.run_dir):
        table = read_rollouts(story.run_dir, row["step"])
        weights, rewards = table["importance"].to_numpy(), table["reward"].to_numpy()
        assert row["curriculum/reward_mean"] == pytest.approx(np.average(rewards, weights=weights), rel=1e-5)
        assert 1 < row["curriculum/effective_prompts"] <= BATCH


def test_a_run_is_not_resumed_in_another_order(story, run_in_process):
    argv = [word if word != "adaptive" else "as_is" for word in story.argv]
    assert "--data.order is as_is, and was adaptive" in run_in_process(argv)
