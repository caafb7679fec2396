"""Which two groups and answers are laid side by side, for whatever a view asks."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from space_runs import learning_run

from openrlhf_ebpo.space.errors import RunError
from openrlhf_ebpo.space.groups import Index
from openrlhf_ebpo.space.metrics import Metrics
from openrlhf_ebpo.space.runs import Run
from openrlhf_ebpo.space.search import history
from openrlhf_ebpo.space.sides import counterpart, first_side, second_side
from openrlhf_ebpo.space.workspace import Opened


def opened(path) -> tuple[Opened, Index]:
    run = Run(path.name, path, 0)
    return Opened(run, {}, Metrics(), ()), Index(run)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    for seed, name in ((1, "a"), (1, "b"), (5, "other")):
        learning_run(folder / name, steps=12, seed=seed, name=name, prompts=8, pace=1.0 if name == "a" else 0.4)
    return {name: opened(folder / name) for name in ("a", "b", "other")}


def same_prompt(a, b) -> bool:
    return a.prompt == b.prompt


def test_without_a_wish_it_is_a_prompt_that_came_twice_with_its_earliest_group(runs):
    first = first_side(*runs["a"], "", None)
    second = second_side(*runs["a"], first, "", None)
    assert len(first.visits) > 1 and 0 < first.groups.success[first.position] < 1
    assert same_prompt(first, second) and second.position == first.visits[0] != first.position
    assert first.rows[first.picked]["reward"] == max(row["reward"] for row in first.rows)


def test_a_prompt_that_came_once_is_compared_with_itself_by_a_right_and_a_wrong_answer(runs):
    groups, _ = runs["a"][1].read()
    mixed = (groups.success > 0) & (groups.success < 1)
    once = next(p for p in np.flatnonzero(mixed) if len(history(groups, groups.prompt_id[p])) == 1)
    first = first_side(*runs["a"], f"{groups.step[once]}.{groups.group[once]}", None)
    second = second_side(*runs["a"], first, "", None)
    assert second.position == first.position and second.picked != first.picked
    assert {side.rows[side.picked]["reward"] for side in (first, second)} == {0.0, 1.0}


def test_another_run_shows_the_prompt_at_the_nearest_step(runs):
    first = first_side(*runs["a"], "7.3", 2)
    second = second_side(*runs["b"], first, "", None)
    assert same_prompt(first, second) and (first.picked, second.opened.run.key) == (2, "b")
    groups, visits = second.groups, second.visits
    assert abs(groups.step[second.position] - 7) == np.abs(groups.step[visits] - 7).min()


def test_a_run_without_the_prompt_says_so(runs):
    first = first_side(*runs["a"], "7.3", None)
    with pytest.raises(RunError, match="other has no group of this prompt"):
        second_side(*runs["other"], first, "", None)


def test_named_places_are_shown_whatever_their_prompts_and_absent_ones_are_said(runs):
    first = first_side(*runs["a"], "3.1", 99)
    assert first.place == "3.1" and first.picked == 3, "the last answer"
    assert second_side(*runs["other"], first, "4.2", 0).place == "4.2"
    with pytest.raises(RunError, match=r"no group 99\.1 in a"):
        first_side(*runs["a"], "99.1", None)
    with pytest.raises(RunError, match=r"no group 3\.99 in b"):
        second_side(*runs["b"], first, "3.99", None)


def test_a_run_without_rollouts_or_rewards_has_an_answer_too(runs, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(RunError, match="no rollouts"):
        first_side(*opened(tmp_path / "empty"), "", None)
    (tmp_path / "bare" / "rollouts").mkdir(parents=True)
    table = {
        "group": [0, 0],
        "prompt": ["p", "p"],
        "response": [None, "b"],
        "reward": pa.array([None, None], pa.float32()),
    }
    pq.write_table(pa.table(table), tmp_path / "bare" / "rollouts" / "step-000001.parquet")
    first = first_side(*opened(tmp_path / "bare"), "", None)
    second = second_side(*opened(tmp_path / "bare"), first, "", None)
    assert (first.answer, second.answer, first.visits.tolist()) == ("", "b", [0])
    assert counterpart(first.groups, first.visits, first, True) == 0
