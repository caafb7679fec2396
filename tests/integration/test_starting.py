"""An engine that does not start, or refuses a weight, ends the command, with the first cause."""

import json

import pytest

pytestmark = pytest.mark.nightly  # daily: unit/test_engine_deaths.py

AGENT = """
from openrlhf.utils.agent import AgentExecutorBase
class AgentExecutor(AgentExecutorBase):
    def __init__(self):
        raise RuntimeError("the tool server has no licence")
    async def execute(self, **kwargs):
        pass
"""


def test_an_engine_that_does_not_start_ends_the_training_and_says_why(train, command, tmp_path):
    (tmp_path / "agent.py").write_text(AGENT)
    training = train(command(tmp_path, train__agent_func_path=tmp_path / "agent.py", reward__remote_url=None))
    output = training.fail()  # what workers print may come behind it
    cause = "rollout engine 0 has died: RuntimeError: the tool server has no licence"
    assert f"\nerror: training stopped: {cause}\n" in output
    run = json.loads((tmp_path / "model" / "run" / "run.json").read_text())
    assert run["status"] == "failed" and run["error"] == cause


OTHER_TYPE = """
import torch, vllm
from openrlhf.utils.agent import AgentInstanceBase, MultiTurnAgentExecutor

arguments = vllm.AsyncEngineArgs
vllm.AsyncEngineArgs = lambda *args, **given: arguments(*args, **{**given, "dtype": "float32"})

class OneTurn(AgentInstanceBase):
    def __init__(self):
        pass
    async def step(self, states, **kwargs):
        passed = torch.tensor(float(len(states["action_text"]) % 2))
        return {"rewards": passed, "scores": passed, "environment_feedback": "", "done": True}

class AgentExecutor(MultiTurnAgentExecutor):
    def __init__(self):
        super().__init__(OneTurn)
"""


def test_an_engine_that_refuses_a_weight_ends_the_training_that_waits_for_it_in_the_broadcast(train, command, tmp_path):
    (tmp_path / "agent.py").write_text(OTHER_TYPE)
    argv = command(tmp_path, train__agent_func_path=tmp_path / "agent.py", reward__remote_url=None)
    training = train(argv)
    output = training.fail()
    cause = json.loads((tmp_path / "model" / "run" / "run.json").read_text())["error"]
    assert cause.startswith("rollout engine 0 has died: a weight sync failed: ")
    assert "arrives as torch.bfloat16, vLLM holds torch.float32" in cause
    assert f"\nerror: training stopped: {cause}\n" in output
