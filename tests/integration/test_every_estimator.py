"""Every estimator of the package trains on the real stack: sync, then killed, then async; LoRA, dynamic batches and an
agent of two turns all the way."""

from __future__ import annotations

import json
import math
import os
import signal
import sys
from pathlib import Path

import pytest
from in_turn import NAMES

from openrlhf_ebpo.estimator import registry, stored
from openrlhf_ebpo.estimator.config import EstimatorConfig
from openrlhf_ebpo.record.run_log import read_metrics, read_rollouts, read_run

HERE = str(Path(__file__).parent)
NAME = "in_turn:InTurn"
STEPS = len(NAMES)
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
def output(train, command, curriculum, tmp_path_factory) -> Path:
    output = tmp_path_factory.mktemp("every")
    (output / "agent.py").write_text(AGENT)
    argv = command(
        output,
        advantage_estimator=NAME,
        train__agent_func_path=output / "agent.py",
        reward__remote_url=None,
        train__dynamic_batch_enable=True,
        ds__lora__rank=4,
        data__prompt_dataset=curriculum,
        data__max_samples=48,
        train__num_episodes=math.ceil(STEPS / 6),
        ckpt__save_steps=STEPS // 2,
        ckpt__load_enable=True,
    )
    first = train(argv, PYTHONPATH=HERE)
    first.wait_for_step(output / "model" / "run", STEPS // 2 + 2)
    os.killpg(first.process.pid, signal.SIGKILL)
    first.process.wait()
    train([*argv, "--train.async_enable"], PYTHONPATH=HERE).succeed()
    return output


def test_every_estimator_trains_and_its_state_is_the_one_of_the_logged_rollouts(output, monkeypatch, capsys):
    """`replay` computes all estimators' states again, through the kill and into async mode."""
    from openrlhf_ebpo.cli import replay

    run_dir = output / "model" / "run"
    rows = read_metrics(run_dir)
    assert read_run(run_dir)["status"] == "complete" and len(rows) >= STEPS
    assert all(row[f"in_turn/{each}"] is not None for row in rows for each in NAMES)
    taught = {row["step"] for row in rows if any(read_rollouts(run_dir, row["step"])["advantage"].to_pylist())}
    assert len(taught) >= STEPS // 2, "rewards differ, and estimators make something of it"
    monkeypatch.setattr(sys, "path", [HERE, *sys.path])
    replay.main([str(run_dir)])
    assert "bit for bit" in capsys.readouterr().out
    ended = json.loads((run_dir / "prior.json").read_text())
    assert ended["turn"] == len(rows)
    for place in (output / "ckpt" / "_actor" / f"global_step{len(rows)}", output / "model"):
        assert json.loads((place / "prior.json").read_text()) == ended


@pytest.mark.parametrize("name", NAMES)
def test_no_other_estimator_takes_its_state(output, name):
    config = EstimatorConfig(n_samples_per_prompt=4)
    ended = json.loads((output / "model" / "run" / "prior.json").read_text())
    mine = {"schema": stored.SCHEMA, "identity": ended["identity"]["members"][name], **ended["states"][name]}
    for other in {"ebpo", *filter(registry.computed_here, registry.ESTIMATORS)} - {name.split()[0]}:
        with pytest.raises(stored.PriorMismatch, match="belongs to another estimator"):
            stored.unpack(registry.build(other, config), mine)
