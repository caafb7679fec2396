"""Seeds of one configuration: which runs they are, and their band."""

import copy
from types import SimpleNamespace

import numpy as np
import pytest

from openrlhf_ebpo.space import seeds


def run(key="a", seed=1, started="t", **changes):
    args = {
        "actor": {"model_name_or_path": "Qwen/Qwen3-8B", "adam": {"lr": 1e-6}},
        "data": {"prompt_dataset": f"data/train-seed-{seed}.jsonl"},
        "train": {"seed": seed, "batch_size": 8},
        "ckpt": {"path": f"out/{key}", "load_enable": seed == 2},
        "logger": {"run_dir": f"out/{key}/run", "wandb": {"run_name": key}},
    }
    args |= copy.deepcopy(changes)
    return SimpleNamespace(run=SimpleNamespace(key=key), about={"args": args, "started": started})


def keys(found):
    return [[each.run.key for each in runs] for runs in found]


def test_seeds_are_runs_that_differ_in_seed_names_and_paths_alone():
    other = run("c", 3, actor={"model_name_or_path": "Qwen/Qwen3-8B", "adam": {"lr": 2e-6}})
    assert keys(seeds.group_by_configuration([run("a", 1), other, run("b", 2)])) == [["a", "b"], ["c"]]


@pytest.mark.parametrize(
    "changes",
    [
        {"train": {"seed": 2, "batch_size": 16}},
        {"data": {"prompt_dataset": "data/other-seed-2.jsonl"}},
        {"data": {"prompt_dataset": "data/train-seed-21.jsonl"}},
        {"rollout": {"n_samples_per_prompt": 8}},
    ],
)
def test_another_setting_is_another_configuration(changes):
    assert len(seeds.group_by_configuration([run("a", 1), run("b", 2, **changes)])) == 2


def test_a_copy_is_not_counted_twice_and_a_repetition_is():
    assert keys(seeds.group_by_configuration([run("a", 1), run("owner/a", 1)])) == [["a"], ["owner/a"]]
    assert keys(seeds.group_by_configuration([run("a", 1), run("again", 1, started="later")])) == [["a", "again"]]


@pytest.mark.parametrize(
    "about",
    [
        {},
        {"args": None},
        {"args": {"train": {"seed": "1"}}},
        {"args": {"train": {"seed": True}}},
        {"args": {"train": 3}},
        {"args": {"train": {"seed": 10**400}}},
        {"args": {"train": {"seed": 1}, "x": {1: {"y"}, None: float("nan")}}},
    ],
)
def test_a_run_that_does_not_say_what_ran_stands_alone(about):
    odd = [SimpleNamespace(run=SimpleNamespace(key=key), about={**about, "started": key}) for key in "ab"]
    found = seeds.group_by_configuration(odd)
    assert len(found) == (1 if "x" in (about.get("args") or {}) else 2)


def test_a_deeply_nested_configuration_is_ignored():
    deep = {}
    for _ in range(100_000):
        deep = {"x": deep}
    assert seeds.configuration({"args": {"train": {"seed": 1}, "deep": deep}}) is None


@pytest.mark.parametrize(
    ("given", "name"),
    [
        (["seed-1/ebpo", "seed-2/ebpo"], "seed-*/ebpo"),
        (["ebpo-1", "ebpo-12"], "ebpo-1*"),
        (["a", "a"], "a*"),
        (["aba", "abba"], "ab*a"),
        (["x"], "x"),
        (["left", "right"], "*t"),
    ],
)
def test_a_name_for_all_seeds(given, name):
    assert seeds.name(given) == name


def test_the_band_of_three_is_a_t_interval_and_of_two_their_range():
    steps = np.arange(1, 5)
    _, mean, _, high = seeds.band([(steps, steps + shift) for shift in (-1.0, 0.0, 1.0)])
    assert mean.tolist() == [1, 2, 3, 4]
    assert (high - mean) == pytest.approx(4.30265 / 3**0.5)
    _, _, low, high = seeds.band([(steps, steps - 1.0), (steps, steps + 1.0)])
    assert low.tolist() == [0, 1, 2, 3] and high.tolist() == [2, 3, 4, 5]


def test_the_band_ends_with_the_shortest_run_and_leaves_out_what_one_lacks():
    shared, mean, *_ = seeds.band(
        [(np.array([1, 2, 3, 4]), np.array([1.0, np.nan, 3.0, 4.0])), (np.array([1, 2, 3]), np.ones(3))]
    )
    assert shared.tolist() == [1, 3] and mean.tolist() == [1.0, 2.0]
    shared, mean, *_ = seeds.band(
        [(np.array([1, 2, 3]), np.array([9.0, 2.0, 3.0])), (np.array([2, 3]), np.array([4.0, 5.0]))]
    )
    assert shared.tolist() == [2, 3] and mean.tolist() == [3.0, 4.0], "values belong to their steps"
    assert seeds.band([(np.array([1]), np.ones(1))]) is None
    assert seeds.band([(np.array([1]), np.ones(1)), (np.array([2]), np.ones(1))]) is None
    assert seeds.band([]) is None
