"""`ebpo` through the patched classes: micro-batches in any order, excluded samples, penalties, clipping, KL."""

import copy
import math

import pytest
import torch
from estimates import ebpo_step

from openrlhf_ebpo.estimator.config import EstimatorConfig
from openrlhf_ebpo.estimator.prior import Prior
from openrlhf_ebpo.rewards.processes.reward_values import ERROR_KEY, RewardError, check_reward
from openrlhf_ebpo.upstream.controller.experience_maker import token_returns

REWARDS = [1.0, 0.0, 0.0, 0.5, 1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0]
FAILED, EMPTY = 2, 7  # by their place: a reward that failed, a response without action tokens


@pytest.fixture
def run(rollout_args, to_samples, make_maker, patched_class):
    """Responses -> (experiences, maker). `maker` continues an earlier step, `settings` are flat arguments."""

    def step(responses, G=4, maker=None, kl_coef=0.0, reference=True, **settings):
        args = maker.args if maker else rollout_args("ebpo", G=G, **settings)
        maker = maker or make_maker(patched_class, args, kl_coef, reference)
        return maker.make_experience_batch(to_samples(copy.deepcopy(responses), args)), maker

    return step


def with_exclusions(responses: list[dict]) -> list[dict]:
    responses[FAILED] = {**responses[FAILED], "reward": None, "scores": None, "extra_logs": {}, ERROR_KEY: "KeyError"}
    responses[EMPTY] = {**responses[EMPTY], "action_ranges": []}
    return responses


def rows(experiences, name: str) -> list[torch.Tensor]:
    """One tensor a response, in prompt order."""
    found = {}
    for experience in experiences:
        values = experience.info[name[5:]] if name.startswith("info.") else getattr(experience, name)
        found.update(zip(experience.index, values, strict=True))
    assert sorted(found) == list(range(len(found)))
    return [found[i] for i in range(len(found))]


def scalar(tokens: torch.Tensor) -> float:
    return tokens[0].item()  # without KL every token up to the last action has the value


MICRO_BATCHES = [{"train.dynamic_batch_enable": True}, {"rollout.micro_batch_size": 5}, {"rollout.micro_batch_size": 1}]


@pytest.mark.parametrize("settings", MICRO_BATCHES, ids=["shuffled", "5", "1"])
def test_every_response_gets_its_own_advantage_whatever_the_micro_batches(run, answers, settings):
    experiences, maker = run(answers(REWARDS).responses(), **settings)
    rewards = torch.tensor(REWARDS).reshape(3, 4)
    expected = ebpo_step(rewards, rewards >= 0, Prior(), EstimatorConfig(n_samples_per_prompt=4))
    if "train.dynamic_batch_enable" in settings:
        assert [i for e in experiences for i in e.index] != list(range(12))
    for i, (advantages, mask) in enumerate(
        zip(rows(experiences, "advantages"), rows(experiences, "action_mask"), strict=True)
    ):
        value = expected.advantages.reshape(-1)[i].float()
        assert torch.equal(advantages, token_returns(value[None], mask[None])[0][0])
    assert maker.state == expected.state
    assert maker.rollouts.result.advantages.tolist() == expected.advantages.tolist()
    assert [r.item() for r in rows(experiences, "info.reward")] == REWARDS
    stds = rewards.std(-1, keepdim=True).expand(3, 4).reshape(-1)
    torch.testing.assert_close(torch.stack(rows(experiences, "info.group_reward_std")), stds)


@pytest.mark.parametrize("kl_coef", [0.0, 0.1])
@pytest.mark.parametrize("settings", MICRO_BATCHES, ids=["shuffled", "5", "1"])
def test_an_excluded_sample_trains_no_token_and_enters_no_statistic(run, answers, settings, kl_coef):
    experiences, maker = run(with_exclusions(answers(REWARDS).responses()), kl_coef=kl_coef, **settings)
    valid = torch.ones(12, dtype=torch.bool)
    valid[[FAILED, EMPTY]] = False
    rewards = torch.tensor(REWARDS).reshape(3, 4)
    expected = ebpo_step(rewards, valid.reshape(3, 4), Prior(), EstimatorConfig(n_samples_per_prompt=4))
    assert maker.state == expected.state
    masks, advantages = rows(experiences, "action_mask"), rows(experiences, "advantages")
    for i in (FAILED, EMPTY):
        assert not masks[i].any()
        assert not advantages[i].any()
        assert not rows(experiences, "returns")[i].any()
    assert all(masks[i].any() for i in range(12) if valid[i])
    if not kl_coef:
        found = [scalar(a) for a in advantages]
        assert found == pytest.approx(expected.advantages.reshape(-1).tolist(), rel=1e-6)
    for experience in experiences:
        for name, value in experience.info.items():
            assert torch.as_tensor(value).float().isfinite().all(), name
    logged = torch.stack([r.reshape(()) for r in rows(experiences, "info.reward")])
    assert logged.mean().item() == pytest.approx(rewards.reshape(-1)[valid].mean().item())
    assert maker.metrics["ebpo/reward_error_fraction"] == pytest.approx(1 / 12)
    assert maker.metrics["ebpo/prior_count"] == 10


def test_the_logged_deviation_of_a_group_runs_over_its_valid_samples(run, answers):
    experiences, _ = run(with_exclusions(answers(REWARDS).responses()))
    stds = [std.item() for std in rows(experiences, "info.group_reward_std")]
    assert stds[0] == pytest.approx(torch.tensor([1.0, 0.0, 0.5]).std().item())
    assert stds[4] == pytest.approx(0.0)
    assert stds[8] == 0.0


def test_the_run_log_keeps_an_excluded_samples_text_and_error(run, answers):
    class Tokenizer:
        def batch_decode(self, tokens, skip_special_tokens):
            return [" ".join(map(str, row)) for row in tokens]

    responses = with_exclusions(answers(REWARDS, gaps=False).responses())
    _, maker = run(responses, **{"train.dynamic_batch_enable": True})
    found = maker.rollouts.table(1, Tokenizer()).to_pydict()
    texts = [
        " ".join(str(t) for start, end in r["action_ranges"] for t in r["observation_tokens"][start:end])
        for r in responses
    ]
    assert found["response"] == texts
    assert found["prompt"] == [r["prompt"] for r in responses]
    assert found["error"] == ["KeyError" if i == FAILED else None for i in range(12)]
    assert found["valid"] == [i not in (FAILED, EMPTY) for i in range(12)]
    assert found["truncated"] == [r["truncated"] for r in responses]
    assert found["raw_reward"] == [None if i == FAILED else REWARDS[i] for i in range(12)]


@pytest.mark.parametrize("shape", [lambda r: [r], lambda r: torch.tensor([r]), lambda r: torch.tensor(r)])
def test_a_failed_reward_batches_with_rewards_of_every_accepted_shape(run, answers, shape):
    """check_reward lets a list of one number pass (what reward servers send): it must not crash next to a failure."""
    responses = with_exclusions(answers(REWARDS).responses())
    for i, response in enumerate(responses):
        if i != FAILED:
            response["reward"] = response["scores"] = check_reward({"rewards": shape(REWARDS[i])})["rewards"]
    experiences, maker = run(responses, **{"rollout.micro_batch_size": 12})
    assert experiences[0].advantages.shape == experiences[0].action_mask.shape
    assert maker.metrics["ebpo/prior_count"] == 10


def test_nothing_is_clamped_a_rare_success_stands_far_out(run, answers):
    rewards = [0.0] * 512
    rewards[5] = rewards[200] = rewards[401] = 1.0
    experiences, _ = run(answers(rewards).responses(), **{"rollout.micro_batch_size": 64})
    advantages = [scalar(a) for a in rows(experiences, "advantages")]
    assert 11 < advantages[5] < 14
    assert advantages[5] == pytest.approx(advantages[200], rel=1e-6)
    assert sum(advantages) == pytest.approx(0.0, abs=1e-3)


def test_upstreams_default_clip_range_changes_nothing_and_an_explicit_one_changes_the_reward(run, answers):
    scale = {"algo.advantage.ebpo.pass_reward": 100.0}
    responses = answers([100 * r for r in REWARDS]).responses()
    plain, _ = run(responses, **scale)
    clipped, _ = run(responses, **scale, **{"algo.advantage.ebpo.reward_clip_range": (0.0, 60.0)})
    assert [r.item() for r in rows(plain, "info.reward")] == [100 * r for r in REWARDS]
    expected = [min(100 * r, 60.0) for r in REWARDS]
    assert [r.item() for r in rows(clipped, "info.reward")] == expected
    rewards = torch.tensor(expected).reshape(3, 4)
    wanted = ebpo_step(rewards, rewards >= 0, Prior(), EstimatorConfig(4, pass_reward=100.0)).advantages
    assert [scalar(a) for a in rows(clipped, "advantages")] == pytest.approx(wanted.reshape(-1).tolist(), rel=1e-6)


def test_length_penalties_come_first_and_the_raw_reward_is_kept(run, answers):
    responses = with_exclusions(answers(REWARDS).responses())
    responses[FAILED]["truncated"] = True  # upstream's penalty then puts a number where the reward failed
    experiences, maker = run(responses, **{"reward.stop_properly_penalty_coef": -0.5})
    expected = torch.tensor([-0.5 if r["truncated"] else REWARDS[i] for i, r in enumerate(responses)])
    valid = torch.ones(12, dtype=torch.bool)
    valid[[FAILED, EMPTY]] = False
    wanted = ebpo_step(expected.reshape(3, 4), valid.reshape(3, 4), Prior(), EstimatorConfig(n_samples_per_prompt=4))
    assert maker.state == wanted.state
    found = [scalar(a) for a in rows(experiences, "advantages")]
    assert found == pytest.approx(wanted.advantages.reshape(-1).tolist(), rel=1e-6)
    raw = maker.rollouts.raw_rewards
    assert math.isnan(raw[FAILED])
    assert [r for i, r in enumerate(raw.tolist()) if i != FAILED] == [r for i, r in enumerate(REWARDS) if i != FAILED]


def test_kl_in_the_reward_is_added_per_token_afterwards(run, answers, make_maker):
    experiences, maker = run(answers(REWARDS).responses(), kl_coef=0.1)
    kl = {}
    for experience in maker.make_experience(copy.deepcopy(experiences)):  # the same seeded numbers again
        kl.update(zip(experience.index, experience.kl, strict=True))
    values = torch.tensor(maker.rollouts.result.advantages).reshape(-1)
    for i, (found, mask) in enumerate(
        zip(rows(experiences, "advantages"), rows(experiences, "action_mask"), strict=True)
    ):
        expected, total = token_returns(values[i][None].float(), mask[None], kl[i][None].clone(), 0.1)
        torch.testing.assert_close(found, expected[0], rtol=0, atol=1e-6)
        assert rows(experiences, "info.return")[i].item() == pytest.approx(total.item(), abs=1e-5)


@pytest.mark.parametrize("settings", [{"algo.kl.use_loss": True}, {"reference": False}, {"kl_coef": 0.0}], ids=str)
def test_kl_stays_out_of_the_advantage_where_it_is_no_part_of_the_reward(run, answers, settings):
    experiences, maker = run(answers(REWARDS).responses(), **{"kl_coef": 0.1, **settings})
    values = torch.tensor(maker.rollouts.result.advantages).reshape(-1).float().tolist()
    assert [scalar(a) for a in rows(experiences, "advantages")] == values
    assert [v.item() for v in rows(experiences, "info.return")] == values


@pytest.mark.parametrize("kl_coef", [0.0, 0.1])
def test_returns_and_advantages_are_separate_contiguous_float32_tensors(run, answers, kl_coef):
    experiences, _ = run(answers(REWARDS).responses(), kl_coef=kl_coef)
    for experience in experiences:
        assert torch.equal(experience.returns, experience.advantages)
        assert experience.returns.data_ptr() != experience.advantages.data_ptr()
        for tensor in (experience.returns, experience.advantages):
            assert tensor.is_contiguous()
            assert tensor.dtype == torch.float32
            assert tensor.shape == experience.action_mask.shape
        assert experience.kl is None


@pytest.mark.parametrize("excluded", [False, True])
def test_info_is_complete_and_upstreams_batching_takes_it(run, answers, rollout_args, excluded):
    from openrlhf.trainer.ppo_utils.experience import balance_experiences

    responses = answers(REWARDS).responses()
    experiences, maker = run(with_exclusions(responses) if excluded else responses)
    keys = {"reward", "score", "judge", "response_clip_ratio", "kl", "logprobs_diff", "group_reward_std", "return"}
    for experience in experiences:
        assert set(experience.info) == keys
        assert all(len(value) == len(experience.index) for value in experience.info.values())
    balanced = balance_experiences(experiences, maker.args)
    assert sum(len(experience.sequences) for experience in balanced) == 12


def test_a_step_in_which_every_reward_failed_stops_with_the_reason(run, answers):
    responses = [{**r, "reward": None, ERROR_KEY: "KeyError: 'x'"} for r in answers(REWARDS).responses()]
    with pytest.raises(RewardError, match="12 x KeyError: 'x'"):
        run(responses)


def test_a_step_without_an_action_token_stops_in_words(run, answers):
    responses = [{**r, "action_ranges": []} for r in answers(REWARDS).responses()]
    with pytest.raises(RuntimeError, match="action tokens"):
        run(responses)


@pytest.mark.parametrize("reward", [None, math.nan, "1.0", torch.tensor([1.0, 0.0])], ids=str)
def test_an_agents_bad_reward_is_excluded_too(run, answers, reward):
    responses = answers(REWARDS).responses()
    responses[FAILED] = {**responses[FAILED], "reward": reward, "scores": reward}
    experiences, maker = run(responses, **{"train.agent_func_path": "agent.py"})
    assert maker.metrics["ebpo/prior_count"] == 11
    assert not rows(experiences, "action_mask")[FAILED].any()
