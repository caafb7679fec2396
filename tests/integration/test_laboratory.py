"""All estimators of the package in turn: sync, killed, then async; LoRA, dynamic batches and an agent of two turns all
the way."""

import json
import os
import signal
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from in_turn import NAMES

from openrlhf_ebpo.run.run_log import read_metrics, read_rollouts, read_run

pytestmark = (
    pytest.mark.nightly
)  # daily: integration/test_restarts.py is killed and resumed async; contract/test_methods_in_upstream.py

HERE = str(Path(__file__).parent)
NAME = "in_turn:InTurn"
PROMPTS, BATCH, EPISODE = 48, 8, 6  # prompts, prompts a step, steps an episode
STEPS = 4 * EPISODE
SAVED, KILLED = 2 * EPISODE, 2 * EPISODE + 2
AGENT = """
import torch
from openrlhf.utils.agent import AgentInstanceBase, MultiTurnAgentExecutor

class TwoTurns(AgentInstanceBase):
    def __init__(self):
        self.turns = 0
    async def step(self, states, **kwargs):
        self.turns += 1
        passed = float(sum(map(ord, states["action_text"])) % 3 == 0 and ord(states["label"]) % 4 > 0)
        return {"rewards": torch.tensor(passed if self.turns == 2 else 0.0), "scores": torch.tensor(passed),
                "environment_feedback": "" if self.turns == 2 else "p", "done": self.turns == 2}

class AgentExecutor(MultiTurnAgentExecutor):
    def __init__(self):
        super().__init__(TwoTurns)
"""


@pytest.fixture(scope="module")
def story(train, command, curriculum, tmp_path_factory):
    output = tmp_path_factory.mktemp("laboratory")
    (output / "agent.py").write_text(AGENT)
    run_dir = output / "model" / "run"
    argv = command(
        output,
        advantage_estimator=NAME,
        train__agent_func_path=output / "agent.py",
        reward__remote_url=None,
        train__dynamic_batch_enable=True,
        ds__lora__rank=4,
        data__prompt_dataset=curriculum,
        data__max_samples=PROMPTS,
        train__num_episodes=STEPS // EPISODE,
        ckpt__save_steps=SAVED,
        ckpt__load_enable=True,
    )
    first = train(argv, PYTHONPATH=HERE)
    first.wait_for_step(run_dir, KILLED)
    os.killpg(first.process.pid, signal.SIGKILL)
    first.process.wait()
    train([*argv, "--train.async_enable"], PYTHONPATH=HERE).succeed()
    assert len(NAMES) <= STEPS, "give the story more episodes: not every estimator has had its turn"
    return SimpleNamespace(output=output, run_dir=run_dir, argv=argv)


def test_every_estimator_trains_and_its_state_is_the_one_of_the_logged_rollouts(story, monkeypatch, capsys):
    """`replay` computes all estimators' states again, through the kill and into async mode."""
    from openrlhf_ebpo.cli import replay

    rows = read_metrics(story.run_dir)
    assert read_run(story.run_dir)["status"] == "complete"
    assert [row["step"] for row in rows] == list(range(1, STEPS + 1))
    assert all(row[f"in_turn/{each}"] is not None for row in rows for each in NAMES)
    taught = {row["step"] for row in rows if any(read_rollouts(story.run_dir, row["step"])["advantage"].to_pylist())}
    assert len(taught) >= STEPS // 2, "rewards differ, and estimators make something of it"
    monkeypatch.setattr(sys, "path", [HERE, *sys.path])
    replay.main([str(story.run_dir), "--estimator", NAME])  # custom code runs when it is named
    assert "bit for bit" in capsys.readouterr().out
    ended = json.loads((story.run_dir / "prior.json").read_text())
    assert ended["turn"] == STEPS
    for place in (story.output / "ckpt" / "_actor" / f"global_step{STEPS}", story.output / "model"):
        assert json.loads((place / "prior.json").read_text()) == ended
