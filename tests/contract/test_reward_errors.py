"""A failing reward function, from the rollout actor's executor to the sample, through upstream's own code."""

import asyncio
import math
from types import SimpleNamespace

import pytest

from openrlhf_ebpo.rewards.guard import ERROR_KEY, INFO_KEY, RewardError

REWARD_FILE = """
def reward_func(queries, prompts, labels):
    label = labels[0]
    if label == "raises":
        return {"rewards": {}["answer"]}
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
        return SimpleNamespace(outputs=[SimpleNamespace(token_ids=[52, 50], finish_reason="stop", logprobs=None)])


@pytest.fixture
def responses(tmp_path):
    """Labels -> what the executor sends back for each, all computed at the same time."""
    from openrlhf.utils.agent import SingleTurnAgentExecutor

    (tmp_path / "reward.py").write_text(REWARD_FILE)
    executor = SingleTurnAgentExecutor(str(tmp_path / "reward.py"))
    params = SimpleNamespace(max_tokens=4, logprobs=None)

    async def run_all(labels):
        calls = [executor.execute(f"q {label}", label, params, 32, Tokenizer(), Engine()) for label in labels]
        return await asyncio.gather(*calls)

    return lambda *labels: asyncio.run(run_all(labels))


@pytest.mark.parametrize(
    ("label", "shown"),
    [
        ("raises", ["KeyError: 'answer'", "reward.py:5 in reward_func"]),
        ("none", ["reward_func returned NoneType None"]),
        ("nan", ["gave float nan as 'rewards'"]),
        ("two", ["gave 2 values as 'rewards'"]),
        ("list", ["reward_func returned list [1.0]"]),
    ],
)
def test_a_response_whose_reward_failed_says_why(responses, label, shown):
    (response,) = responses(label)
    assert response["reward"] is None
    for part in shown:
        assert part in response[ERROR_KEY]


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
