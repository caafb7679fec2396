"""Returns of reward functions and agents: what is accepted, and what is said of another."""

import json
import math

import numpy as np
import pytest
import torch

from openrlhf_ebpo.rewards.processes.reward_values import RewardError, check_reward, describe


@pytest.mark.parametrize(
    "returned",
    [
        {"rewards": 1},
        {"rewards": 0.5},
        {"rewards": True},
        {"rewards": [1.0]},
        {"rewards": torch.tensor(1.0)},
        {"rewards": torch.tensor([1.0])},
        {"rewards": torch.tensor([[1]])},
        {"rewards": [torch.tensor(1.0)]},
        {"rewards": np.float32(0.5)},
        {"rewards": np.array([0.5])},
        {"rewards": 0.0, "scores": None},
        {"rewards": 1.0, "scores": torch.tensor([0.0])},
        {"rewards": 1.0, "extra_logs": None},
        {"rewards": 1.0, "extra_logs": {}},
        {"rewards": 1.0, "extra_logs": {"length": 3, "judge": torch.tensor([0.5])}},
        {"rewards": 1.0, "something_else": "left out"},
    ],
    ids=str,
)
def test_a_good_return_becomes_plain_numbers(returned):
    checked = check_reward(returned)
    assert checked["rewards"] == float(np.asarray(returned["rewards"]).item())
    assert checked["extra_logs"] == (returned.get("extra_logs") or {})
    assert ("scores" in checked) == (returned.get("scores") is not None)
    assert json.loads(json.dumps(checked)) == checked


@pytest.mark.parametrize(
    ("returned", "shown"),
    [
        (None, "reward_func returned NoneType None; it must return a dict with the key 'rewards'"),
        ("1.0", "reward_func returned str '1.0'"),
        ([1.0, 0.0], "gave 2 values as 'rewards' for one response: list [1.0, 0.0]"),
        (math.nan, "gave float nan as 'rewards'"),
        ([{"rewards": 1.0}], "as 'rewards'; one finite number is needed"),
        ({}, "'rewards' is missing or None"),
        ({"reward": 1.0}, "'rewards' is missing or None in dict {'reward': 1.0}"),
        ({"rewards": None}, "'rewards' is missing or None"),
        ({"rewards": math.nan}, "gave float nan as 'rewards'; one finite number is needed"),
        ({"rewards": math.inf}, "gave float inf as 'rewards'"),
        ({"rewards": torch.tensor([-math.inf])}, "tensor([-inf]) as 'rewards'"),
        ({"rewards": "1.0"}, "gave str '1.0' as 'rewards'"),
        ({"rewards": b"1"}, "gave bytes b'1' as 'rewards'"),
        ({"rewards": []}, "gave 0 values as 'rewards'"),
        ({"rewards": torch.tensor([1.0, 0.0])}, "gave 2 values as 'rewards'"),
        ({"rewards": np.array([1.0, 0.0])}, "as 'rewards'"),
        ({"rewards": ["a"]}, "gave str 'a' as 'rewards'; one finite number is needed"),
        ({"rewards": [None]}, "as 'rewards'; one finite number is needed"),
        ({"rewards": {"a": 1}}, "gave dict {'a': 1} as 'rewards'; one finite number is needed"),
        ({"rewards": 1.0, "scores": math.nan}, "gave float nan as 'scores'"),
        ({"rewards": 1.0, "scores": [1, 2]}, "gave 2 values as 'scores'"),
        ({"rewards": 1.0, "extra_logs": [0.5]}, "extra_logs"),
        ({"rewards": 1.0, "extra_logs": {"step": 1.0}}, "'extra_logs' has step"),
        ({"rewards": 1.0, "extra_logs": {"time": 1.0}}, "'extra_logs' has time"),
    ],
    ids=lambda value: str(value)[:50],
)
def test_a_bad_return_is_named_with_what_was_found(returned, shown):
    with pytest.raises(RewardError) as error:
        check_reward(returned)
    assert shown in str(error.value)


@pytest.mark.parametrize(
    "returned", [1, 1.0, True, [1.0], np.float32(1), np.array([1.0]), torch.tensor(1.0), torch.tensor([1.0])], ids=str
)
def test_the_reward_alone_is_taken(returned):
    """As OpenRLHF's own example returned it up to 0.8.2."""
    assert check_reward(returned) == {"rewards": 1, "extra_logs": {}}


def test_a_log_without_a_number_is_left_out_with_a_warning_and_the_reward_stays(caplog):
    empty = {"tensor": torch.tensor([]), "list": [], "array": np.array([]), "none": None, "text": "x", "dict": {}}
    kept = {"pair": torch.tensor([0.25, 1.0]), "one": [0.5], "array of one": np.array([2]), "flag": True}
    for _ in range(2):
        checked = check_reward({"rewards": 1.0, "extra_logs": {**empty, **kept}})
    assert checked == {"rewards": 1.0, "extra_logs": {"pair": 0.25, "one": 0.5, "array of one": 2, "flag": True}}
    assert sorted(message.split("'")[1] for message in caplog.messages) == sorted(empty)


def test_a_long_return_is_cut_in_the_message():
    with pytest.raises(RewardError) as error:
        check_reward(("x" * 10_000,))
    assert len(str(error.value)) < 500


def test_an_error_is_described_in_one_line_with_its_place():
    def reward_func():
        return {}["answer"]

    with pytest.raises(KeyError) as error:
        reward_func()
    described = describe(error.value)
    assert described.startswith("KeyError: 'answer' (")
    assert f"{__file__}:" in described
    assert described.endswith("in reward_func)")
    assert "\n" not in described


def test_our_own_verdict_stands_without_a_place_and_an_error_never_raised_has_none():
    assert describe(RewardError("two values")) == "two values"
    assert describe(ValueError("x")) == "ValueError: x"


def test_a_message_of_several_lines_becomes_one():
    assert "\n" not in describe(ValueError("first\nsecond"))
