"""An agent whose responses all have the greatest length, so that every step does the same work.

rewards.jsonl beside it: of each response [when it was generated, when its reward was there], seconds since the epoch.
It is copied beside the reward that it asks (--train.agent_func_path takes a file).
"""

import copy
import json
import time
from pathlib import Path

from openrlhf.utils.agent import SingleTurnAgentExecutor

HERE = Path(__file__).parent


class AgentExecutor(SingleTurnAgentExecutor):
    def __init__(self):
        super().__init__(str(HERE / "reward.py"))

    async def execute(self, *, sampling_params, **kwargs):
        endless = copy.deepcopy(sampling_params)
        endless.ignore_eos = True
        return await super().execute(sampling_params=endless, **kwargs)

    async def _fetch_rewards_via_func(self, *args):
        generated = time.time()
        rewards = await super()._fetch_rewards_via_func(*args)
        with open(HERE / "rewards.jsonl", "a") as file:
            file.write(json.dumps([generated, time.time()]) + "\n")
        return rewards
