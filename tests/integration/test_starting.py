"""An engine that does not start ends the command, with the first cause."""

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
