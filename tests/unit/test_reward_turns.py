"""A warning that names the line at which an agent stops everything."""

import asyncio
import time

from patience import seconds

from openrlhf_ebpo.rewards.turns import await_turn, watch_turns


def test_an_agent_that_blocks_is_named_with_its_line(caplog):
    async def blocks():
        deadline = time.monotonic() + seconds(60)
        while not caplog.records and time.monotonic() < deadline:
            time.sleep(0.01)
        return {"done": True}

    async def main():
        watch_turns(0.1)
        return await await_turn("the agent's step", blocks, seconds=100)

    assert asyncio.run(main()) == {"done": True}
    (message, *_) = caplog.messages
    assert "in an agent's turn, at " in message and f"{__file__}:" in message and "in blocks" in message


def test_what_blocks_outside_of_a_turn_is_not_the_agents(caplog):
    async def main():
        watch_turns(0.05)
        time.sleep(0.5)

    asyncio.run(main())
    assert caplog.messages == []
