"""The list of estimators, and what a user's own gets told."""

import argparse
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.estimator import registry, stored
from openrlhf_ebpo.estimator.advantage import EstimatorError, estimate
from openrlhf_ebpo.estimator.config import PRESETS, EstimatorConfig
from openrlhf_ebpo.estimator.contract import Batch, Estimator, Step
from openrlhf_ebpo.estimator.stored import PriorMismatch, rehearse

ROOT = Path(__file__).parents[2]
CONFIG = EstimatorConfig(n_samples_per_prompt=2)
BATCH = Batch.of([[1.0, 0.0], [0.0, 0.0]], [[True, True], [True, False]])


@pytest.fixture
def example(monkeypatch):
    """The example outside the package, as a user's current folder has it."""
    monkeypatch.chdir(ROOT / "examples" / "estimator")
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "running_mean", raising=False)
    return registry.build("running_mean:RunningMean", CONFIG)


def test_the_example_estimates_keeps_its_state_and_gets_it_back(example):
    first = estimate(example, BATCH, example.initial())
    assert first.advantages.flatten().tolist() == pytest.approx([2 / 3, -1 / 3, -1 / 3, 0.0])
    assert first.metrics["running_mean/mean"] == pytest.approx(1 / 3)
    kept = stored.pack(example, first.state)
    assert kept["identity"]["estimator"] == "running_mean:RunningMean"
    again = stored.unpack(example, kept)
    assert again == first.state == {"reward_sum": 1.0, "count": 3.0}
    assert estimate(example, BATCH, again).metrics["running_mean/mean"] == pytest.approx(1.9 / 5.7)


def test_a_custom_estimators_damaged_state_is_refused_by_default(example):
    damaged = {**stored.pack(example, example.initial()), "sum": 1.0}
    with pytest.raises(PriorMismatch, match=r"damaged.*'sum'"):
        stored.unpack(example, damaged)


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("no_such_module:X", "there is no module no_such_module, neither in this folder"),
        ("broken_estimator:X", "importing broken_estimator failed: ZeroDivisionError"),
        ("json:NoSuchName", "has no NoSuchName"),
        ("json:loads", "is not a subclass of openrlhf_ebpo.estimator.contract.Estimator"),
    ],
)
def test_a_path_that_names_no_estimator_is_an_error_that_says_why(path, shown, tmp_path, monkeypatch):
    (tmp_path / "broken_estimator.py").write_text("1 / 0\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    with pytest.raises(UsageError) as error:
        registry.build(path, CONFIG)
    assert str(error.value).startswith(f"--advantage_estimator {path}:") and shown in str(error.value)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("epbo", "ebpo"),
        ("ebpo.robst", "ebpo.robust"),
        ("GRPO", "group_norm"),
        ("RLOO", "rloo"),
        ("?", ""),
        ("../evil:X", ""),
        ("a.b:", ""),
        ("mine.Mine", "mine:Mine"),
        ("a:b:c", ""),
    ],
)
def test_an_unknown_name_is_answered_with_the_list_and_the_nearest(name, hint):
    with pytest.raises(argparse.ArgumentTypeError) as error:
        registry.parse_name(name)
    assert (f"Did you mean {hint}? " in str(error.value)) == bool(hint)
    assert all(known in str(error.value) for known in registry.ESTIMATORS)


@pytest.mark.parametrize("name", registry.VARIANTS)
def test_a_variant_of_ebpo_is_a_name_like_any_other_and_its_state_is_that_of_the_preset(name):
    preset = name.removeprefix("ebpo.")
    assert registry.parse_name(name, of_openrlhf=[]) == name and registry.computed_here(name)
    assert registry.title(name) == f"EBPO {preset}" and registry.split_preset(name) == ("ebpo", preset)
    named, chosen = (
        registry.build(each, EstimatorConfig(4, preset=setting))
        for each, setting in ((name, "paper"), ("ebpo", preset))
    )
    assert named.name == "ebpo" and named.identity() == chosen.identity()


def test_the_variants_are_the_presets():
    assert {registry.split_preset(name)[1] for name in ("ebpo", *registry.VARIANTS)} == set(PRESETS)


def test_what_the_installed_openrlhf_has_decides():
    assert registry.parse_name("new_one", of_openrlhf=["new_one"]) == "new_one"
    assert registry.parse_name("ebpo", of_openrlhf=["new_one"]) == "ebpo"
    with pytest.raises(argparse.ArgumentTypeError, match=r"Choose from ebpo, .*, new_one, ebpo.corrected, .*, or"):
        registry.parse_name("rloo", of_openrlhf=["new_one"])


def test_what_openrlhf_computes_in_training_can_be_computed_from_rollouts_but_for_a_critics():
    for name, entry in registry.ESTIMATORS.items():
        assert (registry.build(name, CONFIG) is None) == entry.upstream == (not registry.computed_here(name))
        assert (registry.build_offline(name, CONFIG) is None) == (name == "gae")
    assert registry.computed_here("my_package:Mine")
    assert not registry.computed_here("nonsense from a run file")


def gives(result):
    class Own(Estimator):
        def step(self, batch, state):
            return result

    return Own(CONFIG, "mine:Own")


OK = np.zeros((2, 2))


@pytest.mark.parametrize(
    ("result", "shown"),
    [
        (None, "step() gave NoneType"),
        ((OK, OK), "step() gave tuple"),
        (Step(OK, np.zeros(4), {}), "advantages is a ndarray of shape (4,), float64; expected a numpy array of"),
        (Step(np.zeros(2), OK, {}), "baselines is a ndarray of shape (2,), float64; expected"),
        (Step(0.5, OK, {}), "baselines is a float; expected a numpy array of floats of shape (2, 1) or (2, 2)"),
        (
            Step(OK, torch.zeros(2, 2), {}),
            "advantages is a Tensor of shape (2, 2), torch.float32; expected a numpy array",
        ),
        (Step(OK, OK > 0, {}), "advantages is a ndarray of shape (2, 2), bool; expected a numpy array of floats"),
        (Step(OK, OK, {}, shrinkage=OK), "shrinkage is a ndarray of shape (2, 2), float64; expected"),
        (Step(OK, np.full((2, 2), np.nan), {}), "the advantages of 3 valid responses are not finite"),
        (Step(OK, np.full((2, 2), 1e300), {}), "the advantages of 3 valid responses are not finite"),
        (Step(OK, OK, {}, metrics=None), "metrics is a NoneType, it must be a dictionary"),
        (Step(OK, OK, {}, metrics={1: 2.0}), "the metric 1 is a float"),
        (Step(OK, OK, {}, metrics={"a": np.ones(3)}), "the metric 'a' is a ndarray"),
        (Step(OK, OK, {}, metrics={"a": "x"}), "the metric 'a' is a str"),
        (
            Step(OK, OK, {}, metrics={"step": 3.5}),
            "the metric 'step' is a float; names are strings other than step and time",
        ),
    ],
    ids=str,
)
def test_a_broken_contract_names_the_estimator_and_what_was_wrong(result, shown):
    with pytest.raises(EstimatorError) as error:
        estimate(gives(result), BATCH, {})
    assert "--advantage_estimator mine:Own" in str(error.value) and shown in str(error.value)


def test_a_step_that_changes_its_batch_is_refused():
    class Own(Estimator):
        def step(self, batch, state):
            batch.rewards[:] += 1
            return Step(OK, OK, {})

    batch = Batch.of(np.ones((2, 2)), np.ones((2, 2), bool))
    with pytest.raises(EstimatorError, match="mine:Own"):
        estimate(Own(CONFIG, "mine:Own"), batch, {})


def test_what_an_excluded_response_gets_is_ignored():
    result = estimate(gives(Step(OK, np.array([[1.0, -1.0], [2.0, np.nan]]), {})), BATCH, {})
    assert result.advantages.tolist() == [[1.0, -1.0], [2.0, 0.0]]


@pytest.mark.parametrize(
    "state",
    [
        *({"a": object()}, {"a": float("nan")}, {"schema": 3}, ["a"], {"a": (1, 2)}),
        *({"by": {0: 1.0}}, {1: 1.0, "1": 2.0}, {"a prompt": 0.5}),  # keys that `initial` has not
    ],
    ids=str,
)
def test_a_state_that_would_not_come_back_is_an_error_at_once(state):
    with pytest.raises(EstimatorError, match="mine:Own"):
        stored.pack(gives(None), state)


def test_an_identity_comes_back_as_it_is():
    class Own(Estimator):
        def identity(self):
            return {**super().identity(), "layers": (1, 2)}

    with pytest.raises(EstimatorError, match="JSON"):
        stored.pack(Own(CONFIG), {})


BROKEN = {
    "no step": ("", "NotImplementedError: Broken has no step"),
    "no super": ("    def __init__(self, config, name): pass", "AttributeError"),
    "another signature": ("    def __init__(self, scale): pass", "TypeError"),
    "no words": ("    def __init__(self, *args): raise ValueError", "ValueError"),
    "initial": ("    initial = 1 / 1", "TypeError: 'float' object is not callable"),
    "per-prompt keys": (
        "    def step(self, batch, state):\n"
        "        return Step(batch.rewards, batch.rewards, {**state, **dict.fromkeys(batch.prompt_ids, 0.5)})",
        "EstimatorError: mine:Broken would not take its own state back",
    ),
    "no valid response in a group": (
        "    def step(self, batch, state):\n        return Step(batch.rewards, batch.rewards / 0, state)",
        "EstimatorError: --advantage_estimator mine:Broken: the advantages of",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_what_is_broken_in_ones_own_is_found_before_the_run(case, tmp_path, monkeypatch):
    body, shown = BROKEN[case]
    head = "from openrlhf_ebpo.estimator.contract import Estimator, Step\nclass Broken(Estimator):\n    pass\n"
    module = f"broken_{list(BROKEN).index(case)}"
    (tmp_path / f"{module}.py").write_text(f"{head}{body}\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    with pytest.raises(UsageError) as error:
        rehearse(registry.build(f"{module}:Broken", CONFIG))
    assert str(error.value).startswith(f"--advantage_estimator {module}:Broken")
    assert shown.replace("mine:", f"{module}:") in str(error.value)


def test_the_rehearsal_passes_what_works(example):
    rehearse(example)
    rehearse(registry.build("ebpo", CONFIG))
