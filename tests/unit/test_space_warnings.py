"""Warnings: made-up series that must and must not fire, and runs that went well."""

from pathlib import Path

import numpy as np
import pytest

from openrlhf_ebpo.space.metrics import Follower, Metrics
from openrlhf_ebpo.space.search import KINDS
from openrlhf_ebpo.space.warnings import COPIED, PROMPTS, RULES, find_warnings

ROOT = Path(__file__).parents[2]
RNG = np.random.default_rng(0)
N = 100
NOISE = RNG.standard_normal(N)
STEPS = np.arange(1, N + 1)


def metrics(steps=STEPS, **columns) -> Metrics:
    named = {name.replace("__", "/"): np.asarray(values, float) for name, values in columns.items()}
    return Metrics(np.asarray(steps), named)


def at(values, step, value) -> np.ndarray:
    changed = np.array(values, float)
    changed[np.asarray(step) - 1] = value
    return changed


REWARD = 0.3 + 0.03 * NOISE
GRADIENT = 0.3 * np.exp(0.3 * NOISE)
KL = 1e-3 * np.exp(NOISE)
FALLING = 0.8 * np.exp(-STEPS / 20) + 0.01

FIRES = {
    "zero": ({"rollout__reward_mean": np.where(STEPS <= 20, 0.0, REWARD)}, 1),
    "errors": ({"ebpo__reward_error_fraction": at(np.zeros(N), [70, 71], 0.1)}, 70),
    "nothing": ({"ebpo__zero_advantage": at(np.zeros(N), [30, 33, 36], 1.0)}, 30),
    "fallen": ({"rollout__reward_mean": np.where(STEPS < 60, REWARD, 0.4 * REWARD)}, 66),
    "entropy": ({"policy__entropy": FALLING, "rollout__reward_mean": REWARD}, 45),
    "gradient": ({"actor_grad_norm": at(GRADIENT, 50, 4.0)}, 50),
    "kl": ({"policy__kl_per_step": at(KL, 80, 0.3)}, 80),
    "reference": ({"kl": at(0.01 * STEPS, 50, 9.0)}, 50),
    "truncated": ({"truncated": np.where(STEPS < 20, 0.02, 0.3)}, 20),
    "no_answer": ({"rollout__no_answer": at(np.full(N, 0.2), 30, 0.3)}, 30),
    "mismatch": ({"vllm_kl": np.where(STEPS < 30, 0.004, -0.08)}, 30),
    "stale": ({"mismatch__stale": at(np.zeros(N), 30, 1.0)}, 30),
    "corrected": ({"is_filter_ratio": np.where(STEPS < 30, 0.01, 0.2)}, 30),
    "length": (
        {"response_length": np.where(STEPS < 40, 8.8, 1.8), "rollout__reward_mean": np.linspace(0.1, 0.9, N)},
        46,
    ),
    "held_out": (
        {"eval_x_pass1": at(np.full(N, np.nan), [1, 50, 90], [0.05, 0.05, 0.0]), "reward": np.linspace(0.1, 0.9, N)},
        90,
    ),
    "copied": ({"reward": REWARD}, 60),
    "missing": ({"steps": np.delete(STEPS, [10, 11])}, 13),
}


@pytest.mark.parametrize("name", FIRES)
def test_each_rule_fires_where_its_trouble_begins(name):
    columns, begins = FIRES[name]
    measured = {COPIED: (np.array([20, 60, 100]), np.array([0.1, 0.7, 0.9]))} if name == "copied" else {}
    warned = find_warnings(metrics(**columns), measured=measured)
    assert [each.rule.name for each in warned] == [name]
    assert abs(warned[0].begins - begins) <= 3, warned
    assert f"step {warned[0].begins}" in warned[0].since or f"from {warned[0].begins}" in warned[0].since


@pytest.mark.parametrize("count", [12, 30, 60, 400])
@pytest.mark.parametrize("growth", [0.2, 2.5])
def test_a_hacked_reward_is_found_in_short_and_long_runs(count, growth):
    along = np.clip(np.linspace(-0.2, 1.2, count), 0, 1)
    reward = np.random.default_rng(0).binomial(64, 0.07 + 0.88 * along) / 64
    held_out = np.full(count, np.nan)
    held_out[[0, count // 2, -1]] = 0.052 * (1 - along[[0, count // 2, -1]])
    length = 8.8 * (1 + (growth - 1) * along)
    steps = np.arange(1, count + 1)
    warned = find_warnings(metrics(steps, rollout__reward_mean=reward, response_length=length, eval_x_pass1=held_out))
    assert {each.rule.name for each in warned} == {"length", "held_out"}


QUIET = {
    "sparse reward": {"rollout__reward_mean": (RNG.random(N) < 0.4) / 512},
    "noisy reward": {"rollout__reward_mean": RNG.binomial(512, 0.006, N) / 512},
    "reward of a curriculum": {"rollout__reward_mean": 0.7 - 0.3 * STEPS / N},
    "one error in a thousand": {"ebpo__reward_error_fraction": np.full(N, 0.001)},
    "one step of zero advantages": {"ebpo__zero_advantage": at(np.zeros(N), 7, 1.0)},
    "entropy falls to a half": {"policy__entropy": 0.4 + 0.4 * np.exp(-STEPS / 20)},
    "entropy of a solved task": {"policy__entropy": FALLING, "rollout__reward_mean": np.minimum(STEPS / 30, 0.99)},
    "gradient of a usual spread": {"actor_grad_norm": np.exp(0.5 * NOISE)},
    "gradients after steps without": {"actor_grad_norm": np.where(STEPS < 40, 0.0, 0.2)},
    "first step's gradient": {"actor_grad_norm": at(GRADIENT, 1, 90.0)},
    "kl of a small model": {"policy__kl_per_step": at(KL, [30, 60], 0.046)},
    "kl grows slowly": {"kl": 0.05 * STEPS},
    "one long batch": {"truncated": at(np.full(N, 0.03), 40, 0.5)},
    "bf16": {"vllm_kl": 0.004 + 0.003 * NOISE},
    "mismatch of every step": {
        "mismatch__k3_kl": 2e-3 * np.exp(NOISE),
        "mismatch__stale": np.zeros(N),
        "vllm_kl": NOISE,
    },
    "longer answers at one reward": {"response_length": 100 * np.exp(STEPS / 60), "rollout__reward_mean": REWARD},
    "some longer answers with the reward": {
        "response_length": 100 + STEPS * 0.8,
        "rollout__reward_mean": np.linspace(0.1, 0.9, N),
    },
    "held-out moves a little": {
        "eval_x_pass1": at(np.full(N, np.nan), [1, 50, 90], [0.40, 0.44, 0.41]),
        "reward": np.linspace(0.1, 0.9, N),
    },
    "held-out falls with the reward": {
        "eval_x_pass1": at(np.full(N, np.nan), [1, 50, 90], [0.40, 0.30, 0.20]),
        "reward": np.linspace(0.5, 0.3, N),
    },
    "resumed elsewhere": {"steps": STEPS + 40},
    "holes": {"policy__entropy": at(np.full(N, 0.5), range(1, 100, 2), np.nan)},
    "nothing there": {"policy__entropy": np.full(N, np.nan)},
}


@pytest.mark.parametrize("case", QUIET)
def test_no_false_alarm(case):
    assert find_warnings(metrics(**QUIET[case])) == []


@pytest.mark.parametrize("count", [0, 1, 2, 3, 9, 10, 11, 21])
def test_short_runs_and_huge_numbers_stand(count):
    for value in (0.5, 0.0, 1e308, -1e308, 1e-320):
        columns = {name: np.full(count, value) for rule in RULES for name in rule.metrics if name != "step"}
        find_warnings(Metrics(np.arange(count), columns))


def test_rewards_of_minus_and_plus_one():
    failed = metrics(rollout__reward_mean=at(2 * REWARD - 1, range(90, 101), -1.0))
    assert {each.rule.name for each in find_warnings(failed, (-1.0, 1.0))} == {"zero", "fallen"}
    assert find_warnings(metrics(rollout__reward_mean=2 * REWARD - 1), (-1.0, 1.0)) == []
    assert find_warnings(failed, (1.0, 1.0)) is not None  # run.json may say anything


def test_a_short_run_that_collapses_is_warned_of():
    reward = np.array([0.1, 0.2, 0.3, 0.4, 0.45, 0.5, 0.6, 0.6, 0.7, 0.8, 0.0, 0.0])
    short = metrics(np.arange(1, 13), rollout__reward_mean=reward)
    (warned,) = find_warnings(short, measured={PROMPTS: (short.steps, np.full(12, 16.0))})
    assert warned.rule.name == "fallen" and warned.begins == 11 and warned.lasts
    assert find_warnings(short) == [], "how many answers a step has is not known"


def test_a_reward_that_was_there_and_is_lost_has_fallen_too():
    lost = find_warnings(metrics(rollout__reward_mean=np.where(STEPS < 60, REWARD, 0.0)))
    assert [each.rule.name for each in lost] == ["zero", "fallen"] and all(each.lasts for each in lost)


def test_what_goes_on_and_what_is_over():
    on = find_warnings(metrics(truncated=np.where(STEPS < 20, 0.02, 0.3)))[0]
    over = find_warnings(metrics(truncated=np.where((STEPS > 20) & (STEPS < 40), 0.3, 0.02)))[0]
    twice = find_warnings(metrics(actor_grad_norm=at(GRADIENT, [50, 90], 4.0)))[0]
    assert on.lasts and on.since == "since step 20" and not over.lasts
    assert twice.count == 2 and twice.since == "2 steps from 50 to 90" and twice.worst == 4.0


@pytest.mark.parametrize(
    ("gone", "said"),
    [([27], "at step 27"), (range(27, 42), "15 steps from 27 to 41"), ([3, 30], "2 steps from 3 to 30")],
)
def test_missing_steps_are_named(gone, said):
    steps = np.setdiff1d(np.arange(1, 60), list(gone))
    (warned,) = find_warnings(metrics(steps=steps, truncated=np.zeros(len(steps))))
    assert warned.rule.name == "missing" and warned.since == said


def test_a_run_that_fails_from_its_start_is_told_after_three_steps():
    assert find_warnings(metrics(steps=[1, 2], reward=[0, 0])) == []
    assert [each.rule.name for each in find_warnings(metrics(steps=[1, 2, 3], reward=[0, 0, 0]))] == ["zero"]


def test_a_real_training_that_went_well_has_no_warning():
    assert find_warnings(Follower(ROOT / "tests" / "data" / "quickstart_run" / "metrics.jsonl").read()) == []


def test_rules_name_kinds_of_groups():
    assert {rule.groups for rule in RULES} <= {*KINDS, ""} and list(FIRES) == [rule.name for rule in RULES]
