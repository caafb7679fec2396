"""The per-prompt tracker: what it keeps, what it forgets, and how it comes back."""

import json

import numpy as np
import pytest
from batches import CONFIG, of_rewards, run

from openrlhf_ebpo.estimator import registry, stored, tracker
from openrlhf_ebpo.estimator.tracker import Tracker, visit

START = (1.0, 1.0)


def once(state, ids, passes, failures, keep=0.5):
    return visit(state, ids, np.array(passes, float), np.array(failures, float), keep, START)


def test_a_prompt_seen_again_goes_on_from_its_discounted_counts():
    _, _, state = once(Tracker(), ("a", "b"), [3, 0], [1, 4])
    before, after, state = once(state, ("b", "c"), [4, 2], [0, 2])
    assert before.tolist() == [[0.5, 4.5], [1.0, 1.0]]
    assert after.tolist() == [[4.25, 2.25], [2.5, 2.5]]
    assert state.counts == {"a": (3.5, 1.5), "b": (4.25, 2.25), "c": (2.5, 2.5)}


def test_a_prompt_twice_in_a_batch_is_one_visit_of_both_groups():
    before, after, state = once(Tracker(), ("a", "b", "a"), [3, 1, 1], [1, 3, 3])
    assert before.tolist() == [[1, 1]] * 3
    assert after[0].tolist() == after[2].tolist() == [4.5, 4.5]
    assert state.counts["a"] == (4.5, 4.5)


def test_a_group_without_a_valid_response_is_no_visit():
    _, _, state = once(Tracker(), ("a",), [3], [1])
    before, after, later = once(state, ("a", "b"), [0, 1], [0, 0])
    assert before[0].tolist() == after[0].tolist() == [3.5, 1.5]
    assert later.counts["a"] == (3.5, 1.5)


def test_without_ids_nothing_is_kept_and_groups_are_strangers():
    _, after, state = once(Tracker({"0": (9.0, 9.0)}), (), [1, 2], [1, 0])
    assert after.tolist() == [[1.5, 1.5], [2.5, 0.5]]
    assert state.counts == {"0": (9.0, 9.0)}


def test_those_drawn_longest_ago_are_forgotten(monkeypatch):
    monkeypatch.setattr(tracker, "MAX_PROMPTS", 3)
    state = Tracker()
    for ids in (("a", "b"), ("c",), ("a",), ("d", "e")):
        *_, state = once(state, ids, [1] * len(ids), [0] * len(ids))
    assert list(state.counts) == ["a", "d", "e"]


def test_what_was_drawn_longest_ago_is_known_after_a_resume(monkeypatch):
    state = Tracker({"z": (1.0, 2.0), "a": (0.1, 0.2)})
    again = Tracker.from_dict(json.loads(json.dumps(state.as_dict())))
    assert list(again.counts.items()) == list(state.counts.items())
    monkeypatch.setattr(tracker, "MAX_PROMPTS", 1)
    assert list(again.with_counts([]).counts) == ["a"]


def test_an_id_may_hold_anything():
    state = Tracker({"a b": (1.0, 2.0), "": (0.0, 3.0), "ß\n 1 2": (1e-300, 7.0)})
    assert Tracker.from_dict(state.as_dict()) == state


def test_a_step_leaves_the_state_that_it_was_given():
    state = Tracker({"a": (1.0, 2.0)})
    once(state, ("a", "b"), [1, 1], [0, 0])
    assert state == Tracker({"a": (1.0, 2.0)})


@pytest.mark.parametrize(
    "damaged",
    [
        {},
        {"prompts": {}},
        {"prompts": [], "more": 1},
        {"prompts": ["a 1"]},
        {"prompts": [["a", 1, 2]]},
        {"prompts": ["a 1 -2"]},
        {"prompts": ["a nan 1"]},
        {"prompts": ["a inf 1"]},
        {"prompts": ["a 1 x"]},
        {"prompts": ["a 1 2", "a 1 2"]},
    ],
    ids=str,
)
@pytest.mark.parametrize("name", ["dbb", "spo"])
def test_a_damaged_tracker_is_refused(name, damaged):
    estimator = registry.build(name, CONFIG)
    kept = {"schema": stored.SCHEMA, "identity": estimator.identity(), **damaged}
    with pytest.raises(stored.PriorMismatch, match="damaged"):
        stored.unpack(estimator, kept)


@pytest.mark.parametrize("name", ["dbb", "spo"])
def test_rewards_beyond_pass_and_fail_never_take_counts_below_zero(name):
    state = None
    for _ in range(4):
        result = run(name, of_rewards([[1.7, -3.0, 0.5, 1.0]], ("a",)), state)
        state = result.state
        assert np.isfinite(result.advantages).all() and min(state.counts["a"]) >= 0
