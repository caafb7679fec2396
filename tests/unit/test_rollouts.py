"""A rollout batch as a table: micro-batches in any order, rows in prompt order."""

import json
import sys
from types import SimpleNamespace

import pytest
import torch
from estimates import ebpo_step

from openrlhf_ebpo.estimator.config import EstimatorConfig
from openrlhf_ebpo.estimator.prior import Prior
from openrlhf_ebpo.upstream.controller.rollouts import DECODE_BATCH_SIZE, SCHEMA, Rollouts, prompt_id

# index, prompt, tokens, first action token, response's text, raw reward, truncated, length
SAMPLES = {
    0: ("p", [1, 2, 10, 11], 2, "10 11", 1.0, False, 2),
    1: ("p", [1, 2, 12], 2, "12", 0.0, False, 1),
    2: ("q", [3, 13, 14, 15, 16], 1, "13 14 15 16", 0.5, True, 4),
    3: ("q", [3], 1, "", float("nan"), False, 0),
}
ERRORS = ["", "", "", "ValueError: no answer"]
CLUSTERS = ["algebra", "algebra", None, None]


class Tokenizer:
    def batch_decode(self, rows, skip_special_tokens):
        assert not skip_special_tokens
        return [" ".join(map(str, row)) for row in rows]


def micro_batch(index: list[int], width: int) -> SimpleNamespace:
    rows = [SAMPLES[i] for i in index]
    attention = torch.tensor([[1] * len(r[1]) + [0] * (width - len(r[1])) for r in rows])
    # position t of an action mask stands for token t + 1
    actions = torch.tensor([[int(r[2] <= t + 1 < len(r[1])) for t in range(width - 1)] for r in rows])
    return SimpleNamespace(
        index=index,
        sequences=torch.tensor([r[1] + [0] * (width - len(r[1])) for r in rows]),
        attention_mask=attention,
        action_mask=actions,
        action_log_probs=torch.log1p(-torch.tensor(0.5)).expand(actions.shape),
        rewards=torch.tensor([r[4] for r in rows]),
        truncated=torch.tensor([r[5] for r in rows]),
        response_length=torch.tensor([r[6] for r in rows]),
        prompts=[r[0] for r in rows],
        labels=[f"label {i}" for i in index],
    )


LAYOUTS = [[[0, 1, 2, 3]], [[2, 0], [3, 1]], [[3, 2, 1], [0]], [[1], [3], [0], [2]]]


def table_of(layout):
    experiences = [micro_batch(index, width=5 + n) for n, index in enumerate(layout)]
    rollouts = Rollouts.before_shaping(experiences, ERRORS, CLUSTERS)
    for experience in experiences:  # the advantage stage shapes rewards in place afterwards
        experience.rewards += 100.0
        experience.action_mask = experience.action_mask * 0
    rewards = rollouts.raw_rewards.reshape(2, 2)
    result = ebpo_step(rewards, rewards.isfinite(), Prior(), EstimatorConfig(n_samples_per_prompt=2))
    return rollouts.with_result(result).table(7, Tokenizer()), result


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_every_column_stands_in_prompt_order_whatever_the_micro_batches(layout):
    table, result = table_of(layout)
    assert table.schema == SCHEMA
    found = table.to_pydict()
    labels = [f"label {i}" for i in range(4)]
    expected = {
        "step": [7] * 4,
        "prompt_id": [prompt_id(p, label) for p, label in zip("ppqq", labels, strict=True)],
        "group": [0, 0, 1, 1],
        "sample": [0, 1, 0, 1],
        "cluster": CLUSTERS,
        "prompt": ["p", "p", "q", "q"],
        "response": [SAMPLES[i][3] for i in range(4)],
        "label": labels,
        "raw_reward": [1.0, 0.0, 0.5, None],
        "reward": [1.0, 0.0, 0.5, None],
        "valid": [True, True, True, False],
        "error": [None, None, None, "ValueError: no answer"],
        "group_mean": [0.5] * 4,
        "baseline": result.baselines.expand(2, 2).reshape(-1).tolist(),
        "shrinkage": result.shrinkage.expand(2, 2).reshape(-1).tolist(),
        "advantage": result.advantages.reshape(-1).tolist(),
        "grpo_advantage": result.grpo_advantages.reshape(-1).tolist(),
        "response_length": [2, 1, 4, 0],
        "truncated": [False, False, True, False],
        "action_tokens": [2, 1, 4, 0],
        "score_weight": [0.5, 0.25, 1.0, 0.0],
    }
    assert list(found) == list(expected)
    for column, values in expected.items():
        assert found[column] == values, column
    assert found["advantage"][0] > 0 > found["advantage"][1]


def test_the_label_of_a_reasoning_gym_task_is_shown_as_its_answer():
    experience = micro_batch([0, 1, 2, 3], 5)
    entry = json.dumps({"name": "sums", "settings": {}, "entry": {"question": "p", "answer": "32"}})
    experience.labels = [entry] * 4
    rollouts = Rollouts.before_shaping([experience], ERRORS, CLUSTERS)
    rewards = rollouts.raw_rewards.reshape(2, 2)
    result = ebpo_step(rewards, rewards.isfinite(), Prior(), EstimatorConfig(n_samples_per_prompt=2))
    found = rollouts.with_result(result).table(1, Tokenizer()).to_pydict()
    assert found["label"] == ["32"] * 4
    assert found["prompt_id"][0] == prompt_id("p", entry)


def test_an_unknown_number_is_null():
    experiences = [micro_batch([0, 1, 2, 3], 5)]
    rollouts = Rollouts.before_shaping(experiences, ERRORS, CLUSTERS)
    rewards = torch.tensor([[1.0, 0.0], [0.5, 0.5]])
    unknown = torch.full((2, 1), torch.nan)
    result = ebpo_step(rewards, rewards >= 0, Prior(), EstimatorConfig(n_samples_per_prompt=2))
    result = SimpleNamespace(**{**vars(result), "shrinkage": unknown, "baselines": unknown})
    found = rollouts.with_result(result).table(1, Tokenizer()).to_pydict()
    assert found["shrinkage"] == found["baseline"] == [None] * 4


def test_the_batch_keeps_copies_of_the_responses_and_lets_the_padded_tensors_go():
    experience = micro_batch([0, 1, 2, 3], 5)
    rollouts = Rollouts.before_shaping([experience], ERRORS, CLUSTERS)
    experience.sequences.zero_()
    assert [tokens.tolist() for tokens in rollouts.responses] == [[10, 11], [12], [13, 14, 15, 16], []]
    kept = sum(tokens.untyped_storage().nbytes() for tokens in rollouts.responses)
    assert kept == 4 * 7 < experience.sequences.untyped_storage().nbytes()


def test_more_responses_than_are_decoded_together():
    count = 2 * (DECODE_BATCH_SIZE // 2 + 3)
    experience = micro_batch([i % 2 for i in range(count)], 5)
    experience.index, experience.prompts = list(range(count)), ["p"] * count
    rollouts = Rollouts.before_shaping([experience], [""] * count, [None] * count)
    rewards = rollouts.raw_rewards.reshape(-1, 2)
    result = ebpo_step(rewards, rewards >= 0, Prior(), EstimatorConfig(n_samples_per_prompt=2))
    found = rollouts.with_result(result).table(1, Tokenizer())["response"].to_pylist()
    assert found == ["10 11", "12"] * (count // 2)


def test_a_prompts_id_depends_on_prompt_and_label_and_on_nothing_else():
    assert len({prompt_id("a", "b"), prompt_id("ab", ""), prompt_id("b", "a"), prompt_id("a", "c")}) == 4
    assert prompt_id("1 + 1 =", "2") == "12d19328ea5b3416"  # as in every stored run


def test_score_weights_are_computed_once_when_they_are_asked_for_and_the_padded_tensors_go():
    experience = micro_batch([0, 1, 2, 3], 5)
    log_probs = experience.action_log_probs = experience.action_log_probs.clone()
    kept = sys.getrefcount(log_probs)
    weights = Rollouts.before_shaping([experience], ERRORS, CLUSTERS).score_weights
    assert sys.getrefcount(log_probs) == kept + 1
    assert weights() is weights()
    assert sys.getrefcount(log_probs) == kept
