"""Rewards of this package read a response without the tokenizer's own special tokens at its end, as evaluation does."""

import json
import os

import pytest
from tiny_tokenizers import save

from openrlhf_ebpo.quickstart.tasks import example
from openrlhf_ebpo.rewards.math import math
from openrlhf_ebpo.rewards.processes.reward_values import check_reward
from openrlhf_ebpo.rewards.special_tokens import KEPT, MAX_LIST_CHARS, MAX_TOKEN_CHARS, VARIABLE, bounded, without_end
from openrlhf_ebpo.upstream.rendering import announce_special_tokens, tokenizer_of


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    monkeypatch.setenv(VARIABLE, "")


@pytest.mark.usefixtures("grader")
@pytest.mark.parametrize("end", ["[EOS]", "<seed:eos>", "<turn|>", "<|im_end|>"])
def test_training_and_evaluation_read_the_same_answer(end, tmp_path):
    settings = {"size": 1, "seed": 1, "min_terms": 2, "max_terms": 2, "max_digits": 1}
    entry, label = next(example("make").tasks("chain_sum", settings))
    right = entry["answer"]
    model = save(tmp_path, begins=False, special=("<bos>", end, "<turn_end>", *sorted(KEPT)), end=end)
    announce_special_tokens(model)

    def reward(reward_func, response: str, label: str) -> float:
        tokens = tokenizer_of(model)(f"p {response}{end}\n{end}", add_special_tokens=False)["input_ids"]
        query = tokenizer_of(model).decode(tokens, skip_special_tokens=False)  # as upstream gives it to rewards
        return check_reward(reward_func([query], ["p "], [label]))["rewards"]

    of_gym = example("reward").reward_func
    assert [reward(of_gym, text, label) for text in (right, f"<think>7</think>{right}")] == [1, 1]
    assert reward(of_gym, f"<think>7</think><answer>{right}</answer>", label) == 1
    assert reward(math.reward_func, "Answer: 42", "42") == reward(math.reward_func, r"\boxed{42}", "42") == 1


def test_what_stands_elsewhere_stays(monkeypatch):
    monkeypatch.setenv(VARIABLE, json.dumps(["[EOS]", "S]", "[PAD]"]))
    assert without_end("[EOS] a [EOS] b ") == "[EOS] a [EOS] b "
    assert without_end("a \n[EOS] [PAD]\n[PAD] ") == "a \n"
    assert without_end("[EOS]") == without_end("") == ""
    assert without_end("a" + "[PAD]\n" * 50_000) == "a"
    assert math.response_of("p x[EOS]", "p ") == math.response_of("p  x[EOS]", "p ").strip() == "x"
    monkeypatch.delenv(VARIABLE)
    assert without_end("a [EOS]\n") == "a [EOS]\n"


def test_the_names_are_few_enough_for_the_environment():
    many = bounded(f"<extra {i} \0\ud800>" for i in range(10_000))
    assert many[0] == "<extra 0 \0\ud800>" and len(json.dumps(many)) <= MAX_LIST_CHARS
    assert bounded(iter([None, "", " ", 3, "<think>", "x" * (MAX_TOKEN_CHARS + 1), " </s>\n", "</s>"])) == ["</s>"]


def test_the_end_token_comes_first(tmp_path):
    announce_special_tokens(
        save(
            tmp_path,
            begins=False,
            special=("<bos>", *(f"<{i}>" for i in range(5000)), "<turn_end>", "[EOS]"),
            end="[EOS]",
        )
    )
    names = json.loads(os.environ[VARIABLE])
    assert names[0] == "[EOS]" and len(os.environ[VARIABLE]) <= MAX_LIST_CHARS


def test_a_tokenizer_that_cannot_be_read_leaves_no_names_of_another(monkeypatch, tmp_path):
    monkeypatch.setenv(VARIABLE, '["[EOS]"]')
    announce_special_tokens(str(tmp_path / "none"))
    assert VARIABLE not in os.environ


def test_engines_with_a_reward_announce_them_before_their_processes_start(monkeypatch):
    from openrlhf_ebpo.engines import engines
    from openrlhf_ebpo.rewards.reward_settings import RewardSettings

    found = []
    monkeypatch.setattr(engines, "announce_special_tokens", found.append)
    for name in ("prepare_process", "_check_window"):
        monkeypatch.setattr(engines, name, lambda *_: None)
    monkeypatch.setattr(engines, "ray_with", lambda *_, **__: pytest.fail("started"))
    for reward in ((), ("math.py",)):
        settings = engines.EngineSettings("m", 8, rewards=RewardSettings(reward))
        with pytest.raises(pytest.fail.Exception), engines.started(settings):
            pass
        assert found == (["m"] if reward else [])
