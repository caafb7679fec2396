"""A failing reward function, from the rollout actor's executor to the sample, through upstream's own code."""

import asyncio
import contextlib
import math
import pickle
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import pytest
from patience import seconds

from openrlhf_ebpo.errors import ReportedError
from openrlhf_ebpo.rewards.processes.reward_values import ERROR_KEY, RewardError
from openrlhf_ebpo.rewards.processes.sources import MIN_FAILED, default_calls
from openrlhf_ebpo.rewards.reward_settings import RewardSettings
from openrlhf_ebpo.upstream.controller.guarded_samples import INFO_KEY, GuardedSamplesGenerator
from openrlhf_ebpo.upstream.rollout.guarded_rewards import LimitedRolloutActor

REWARD_FILE = """
import sys, time

def reward_func(queries, prompts, labels):
    label = labels[0]
    if label == "raises":
        return {"rewards": {}["answer"]}
    if label == "hangs":
        time.sleep(1000)
    if label == "takes its time":
        time.sleep(0.1)
        label = "good"
    if label == "exits":
        sys.exit("no server")
    if label == "interrupts":
        raise KeyboardInterrupt
    if label == "stops":
        return next(iter(()))
    return {
        "good": {"rewards": 1.0, "extra_logs": {"judge": 0.5}},
        "none": None,
        "nan": {"rewards": float("nan")},
        "two": {"rewards": [1.0, 0.0]},
        "list": [1.0],
    }[label]
"""


class Tokenizer:
    """One token a character."""

    def __call__(self, text, **_):
        import torch

        return {"input_ids": torch.tensor([[ord(c) for c in text]])}

    def decode(self, tokens, **_):
        return "".join(map(chr, tokens))


class Engine:
    """Answers every prompt with the same two tokens."""

    async def generate(self, *_args, **_kwargs):
        await asyncio.sleep(0)
        answer = SimpleNamespace(token_ids=[52, 50], text="42", finish_reason="stop", logprobs=None)
        return SimpleNamespace(outputs=[answer])


@pytest.fixture
def responses(tmp_path):
    """Labels -> what the executor sends back for each, all computed at the same time."""
    from openrlhf.utils.agent import SingleTurnAgentExecutor

    (tmp_path / "reward.py").write_text(REWARD_FILE)
    return lambda *labels, **limits: run_all(SingleTurnAgentExecutor(str(tmp_path / "reward.py")), labels, **limits)


def run_all(executor, labels, seconds: float = 60.0, meanwhile=None, **limits) -> list[dict]:
    """`meanwhile`: a coroutine function of the executor that runs meanwhile."""
    params = SimpleNamespace(max_tokens=4, logprobs=None)  # upstream gives the samples of a prompt the same object

    async def execute(label: str) -> dict:
        return await executor.execute(f"q {label}", label, params, 32, Tokenizer(), Engine())

    async def gather():
        settings = RewardSettings(timeout=seconds, **limits)
        await LimitedRolloutActor.limit_rewards(SimpleNamespace(executor=executor), settings)
        other = asyncio.ensure_future(meanwhile(executor)) if meanwhile else None
        found = await asyncio.gather(*map(execute, labels))
        await (other or asyncio.sleep(0))
        return found

    return asyncio.run(asyncio.wait_for(gather(), 100))


def test_responses_computed_at_the_same_time_keep_their_errors_apart(responses):
    found = responses("good", "raises", "good", "nan", "good", "two")
    assert [ERROR_KEY in response for response in found] == [False, True, False, True, False, True]
    assert [response["reward"] for response in found] == [1.0, None, 1.0, None, 1.0, None]
    assert "KeyError" in found[1][ERROR_KEY]
    assert "nan" in found[3][ERROR_KEY]
    assert found[0]["extra_logs"] == {"judge": 0.5}


def test_the_error_travels_with_the_sample_under_ebpo(responses, rollout_args, to_samples):
    samples = to_samples(responses("good", "raises"), rollout_args("ebpo", G=2))
    assert samples[0].rewards.item() == 1.0
    assert math.isnan(samples[1].rewards.item())
    assert samples[0].info[INFO_KEY] == [""]
    assert "KeyError" in samples[1].info[INFO_KEY][0]


def test_under_another_estimator_it_stops_the_run_and_good_samples_pass(responses, rollout_args, to_samples):
    args = rollout_args("rloo", G=2)
    (sample,) = to_samples(responses("good"), args)
    assert INFO_KEY not in sample.info
    with pytest.raises(RewardError, match=r"KeyError.*\n.*Prompt: 'q raises'"):
        to_samples(responses("raises"), args)


def test_waiting_for_a_free_place_does_not_count(responses):
    found = responses(*["takes its time"] * 20 * default_calls(), seconds=seconds(1.5))  # the last ones wait longer
    assert all(response["reward"] == 1.0 for response in found)


def test_where_every_call_hangs_the_run_stops_with_the_cause(responses):
    limit = 0.2  # nothing has to end within it
    cause = (
        f"reward_func is no longer called: its last .* hung or .*; the last: reward_func took longer than {limit:g} s"
    )
    with pytest.raises(ReportedError, match=cause) as stopped:
        responses(*["hangs"] * 4 * max(MIN_FAILED, 4 * default_calls()), seconds=limit)
    assert str(pickle.loads(pickle.dumps(stopped.value))) == str(stopped.value), "it goes through Ray"


def test_an_actor_says_how_many_rewards_have_not_come_back_and_since_when(responses):
    """Asked while they run: two hang, and one waits for nothing. The moment does not change from poll to poll: a change
    would be a sign of life."""
    seen, before = [], time.time()

    async def watch(executor):
        while not any(count for count, _ in seen) or seen[-1][0]:
            actor = SimpleNamespace(executor=executor)
            seen.append(LimitedRolloutActor.pending_rewards(actor))
            await asyncio.sleep(0.05)

    responses("hangs", "good", "hangs", seconds=seconds(0.5), meanwhile=watch)
    assert max(count for count, _ in seen) >= 2 and seen[-1] == (0, None)
    (began,) = {moment for count, moment in seen if count == 2}
    assert before <= began <= time.time()


def test_only_the_packaged_rewards_run_in_the_actor(responses, tmp_path):
    """They grade in processes of their own, for which waiting must not count. Other files are not even imported."""
    from openrlhf.utils.agent import SingleTurnAgentExecutor

    from openrlhf_ebpo.rewards.reward_settings import BUILT_IN

    for file in BUILT_IN.values():
        assert callable(SingleTurnAgentExecutor(file).reward_func)
    (tmp_path / "reward.py").write_text("import os\nos._exit(3)\n")
    with pytest.raises(RewardError, match=r"reward.py ended its process \(exit code 3\) while it was imported"):
        run_all(SingleTurnAgentExecutor(str(tmp_path / "reward.py")), ["good"])


def test_a_reward_server_that_refuses_is_a_failed_reward_and_where_none_answers_the_run_stops():
    from openrlhf.utils.agent import SingleTurnAgentExecutor

    executor, limit = SingleTurnAgentExecutor(["http://127.0.0.1:1/a", "http://127.0.0.1:1/b"]), 0.5
    (response,) = run_all(executor, ["good"], seconds=limit)
    assert response["reward"] is None
    assert f"the reward server took longer than {limit:g} s (--reward.timeout)" in response[ERROR_KEY]
    executor._source.failure = "no reward server has given a reward for 60 s"
    with pytest.raises(ReportedError, match="no reward server has given a reward"):
        run_all(executor, ["good"], seconds=limit)


def test_what_a_server_answers_is_called_the_servers():
    from openrlhf.utils.agent import SingleTurnAgentExecutor

    from openrlhf_ebpo.rewards.processes import servers

    for reply, shown in ((b'{"score": 1}', "gave no reward"), (b'{"rewards": [1, 2]}', "gave 2 values")):
        with answering(reply) as address:
            (response,) = run_all(SingleTurnAgentExecutor([address]), ["good"])
        assert response[ERROR_KEY].startswith(f"{servers.GIVER} {shown}")


@contextlib.contextmanager
def answering(reply: bytes):
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            self.send_response(200)
            self.send_header("Content-Length", str(len(reply)))
            self.end_headers()
            self.wfile.write(reply)

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


def test_a_failed_reward_of_an_evaluation_counts_as_the_fail_reward(responses, rollout_args, to_samples, caplog):
    args = rollout_args("ebpo", G=3, **{"algo.advantage.ebpo.fail_reward": -1.0})
    samples = to_samples(responses("good", "raises", "good"), args)

    class Generated:
        def generate_eval_samples(self):
            return samples

    generator = type("Generator", (GuardedSamplesGenerator, Generated), {"__init__": lambda self: None})()
    generator.args = args
    assert [float(sample.rewards) for sample in generator.generate_eval_samples()] == [1.0, -1.0, 1.0]
    assert "1 of 3 responses failed" in caplog.text and "KeyError" in caplog.text


def agent(step: str, reset: str = "return states"):
    """A multi-turn executor with these bodies, made as a user's file makes it."""
    from openrlhf.utils import agent

    source = f"""
import asyncio, sys, torch
class Instance(agent.AgentInstanceBase):
    def __init__(self):
        pass
    async def reset(self, states, **kwargs):
        {reset}
    async def step(self, states, **kwargs):
        label, good = states["label"], {{"rewards": torch.tensor(1.0), "environment_feedback": "", "done": True}}
        {step}
        return good
class AgentExecutor(agent.MultiTurnAgentExecutor):
    def __init__(self):
        super().__init__(Instance)
"""
    names = {"agent": agent}
    exec(source, names)
    return names["AgentExecutor"]()


@pytest.mark.parametrize(
    ("bodies", "shown"),
    [
        (
            ["if label == 'bad': await asyncio.sleep(1000)"],
            f"the agent's step took longer than {seconds(0.3):g} s (--reward.timeout)",
        ),
        (["pass", "await asyncio.sleep(1000 * (states['label'] == 'bad')); return states"], "the agent's reset took"),
        (["if label == 'bad': {}['key']"], "KeyError: 'key'"),
        (["if label == 'bad': sys.exit(3)"], "SystemExit: 3"),
        (["if label == 'bad': raise asyncio.CancelledError"], "the agent's step was cancelled"),
    ],
    ids=["step hangs", "reset hangs", "raises", "exits", "cancels itself"],
)
def test_an_agent_whose_turn_fails_is_a_failed_reward_and_its_response_is_kept(bodies, shown):
    good, bad = run_all(agent(*bodies), ["good", "bad"], seconds=seconds(0.3))
    assert good["reward"] == 1.0 and ERROR_KEY not in good
    assert bad["reward"] is None and shown in bad[ERROR_KEY]
    assert [range_of["action_ranges"] for range_of in (good, bad)] == [[(6, 8)], [(5, 7)]]


def test_samples_of_a_prompt_keep_observations_of_different_lengths():
    executor = agent("pass", "return {**states, 'observation': 'o' * int(states['label'])}")
    found = run_all(executor, ["10", "28", "20"])
    assert [response["action_ranges"] for response in found] == [[(10, 12)], [(28, 30)], [(20, 22)]]


@pytest.mark.parametrize("estimator", ["ebpo", "rloo"])
def test_the_length_of_a_response_counts_generated_tokens_alone(estimator, rollout_args, to_samples):
    """The overlong penalty reads it: upstream also counts an agent's tool output, here four tokens."""
    turns = "good.update(environment_feedback='tool', done='tool' in states['observation_text'])"
    (sample,) = to_samples(run_all(agent(turns), ["q"]), rollout_args(estimator, G=1))
    assert sample.response_length.tolist() == [4] and sample.action_mask.sum() == 4


@pytest.mark.parametrize("kind", ["file", "server", "agent"])
def test_a_timeout_names_its_flag(tmp_path, kind):
    from openrlhf.utils.agent import SingleTurnAgentExecutor

    (tmp_path / "reward.py").write_text(REWARD_FILE)
    if kind == "agent":
        executor = agent("await asyncio.sleep(1000)")
    else:
        executor = SingleTurnAgentExecutor("http://127.0.0.1:1/" if kind == "server" else str(tmp_path / "reward.py"))
    (response,) = run_all(executor, ["hangs"], seconds=0.2)
    assert "(--reward.timeout)" in response[ERROR_KEY]


def test_an_agent_that_does_not_let_itself_be_cancelled_is_not_waited_for():
    executor = agent("if label == 'bad': await asyncio.shield(asyncio.sleep(1000))")
    limit = 0.2
    (bad,) = run_all(executor, ["bad"], seconds=limit)
    assert f"took longer than {limit:g} s" in bad[ERROR_KEY]
