"""What the Space reads of a run's rollouts to draw distributions over training."""

import time
from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from patience import seconds
from space_runs import hostile_run, learning_run

from openrlhf_ebpo.space import distributions
from openrlhf_ebpo.space.binning import levels, means, places, shares, stretches
from openrlhf_ebpo.space.distributions import OTHER, Reader, spread
from openrlhf_ebpo.space.runs import Run


@pytest.fixture(scope="module")
def learnt(tmp_path_factory):
    path = learning_run(tmp_path_factory.mktemp("runs") / "ebpo", steps=12, seed=3, name="ebpo", prompts=10)
    return Run("ebpo", path, 0)


def whole(reader: Reader):
    """Once everything has been looked at."""
    until = time.monotonic() + seconds(60)
    while not (seen := reader.read(wait=1.0)).whole:
        assert time.monotonic() < until
    return seen


def table_of(run: Run):
    files = sorted((run.path / "rollouts").glob("step-*.parquet"))
    return pa.concat_tables([pq.read_table(file) for file in files]).to_pandas()


def test_what_is_kept_is_what_the_rows_say(learnt):
    seen = whole(Reader(learnt))
    rows = table_of(learnt)
    valid = rows[rows.valid]
    assert seen.files == seen.looked == 12 and seen.every == 1 and not seen.problems
    assert seen.responses.step.tolist() == valid.step.tolist()
    for kept, column in (("reward", "reward"), ("length", "response_length"), ("grpo_advantage", "grpo_advantage")):
        assert getattr(seen.responses, kept) == pytest.approx(valid[column].to_numpy())
    assert [seen.clusters[number] for number in seen.responses.cluster] == valid.cluster.tolist()
    groups = valid.groupby(["step", "group"])
    assert seen.groups.success == pytest.approx(groups.reward.mean().to_numpy())
    assert seen.groups.shrinkage == pytest.approx(groups.shrinkage.first().to_numpy(), rel=1e-6)
    name = Counter(valid.cluster).most_common(1)[0][0]
    number = seen.clusters.index(name)
    assert len(seen.only(name).responses.step) == (valid.cluster == name).sum() and seen.clusters[number] == name
    assert not len(seen.only("nowhere").groups.step)


def test_a_run_that_grows_and_drops_rollouts_is_followed(tmp_path):
    path = learning_run(tmp_path / "run", steps=4, seed=1, name="run", prompts=4)
    reader = Reader(Run("run", path, 0))
    assert whole(reader).files == 4
    file = path / "rollouts" / "step-000004.parquet"
    (path / "rollouts" / "step-000009.parquet").write_bytes(file.read_bytes())
    (path / "rollouts" / "step-000001.parquet").unlink()
    assert np.unique(whole(reader).responses.step).tolist() == [2, 3, 4, 9]


def test_of_too_many_responses_every_kth_step_is_looked_at(learnt, monkeypatch):
    monkeypatch.setattr(distributions, "MOST", 120)
    seen = whole(Reader(learnt))  # 12 steps of 40
    assert (seen.every, seen.files) == (4, 3) and np.unique(seen.responses.step).tolist() == [4, 8, 12]


def test_damaged_files_and_foreign_columns_are_named_and_the_rest_is_read(tmp_path):
    seen = whole(Reader(Run("evil", hostile_run(tmp_path / "evil", megabytes=0.05), 0)))
    assert seen.problems and all("rollouts/" in problem for problem in seen.problems)
    folder = tmp_path / "odd" / "rollouts"
    folder.mkdir(parents=True)
    columns = {"group": ["a"], "prompt": ["p"], "response": ["r"], "reward": [1.0]}
    pq.write_table(pa.table(columns), folder / "step-000001.parquet")
    pq.write_table(pa.table({**columns, "group": [0], "reward": [float("inf")]}), folder / "step-000002.parquet")
    seen = whole(Reader(Run("odd", tmp_path / "odd", 0)))
    assert len(seen.problems) == 1 and seen.problems[0].startswith("rollouts/step-000001.parquet is left out: ")
    assert not len(seen.responses.step) and seen.looked == 2


def test_no_more_names_of_clusters_are_kept_than_a_menu_can_show(tmp_path, monkeypatch):
    monkeypatch.setattr(distributions, "CLUSTERS", 3)
    folder = tmp_path / "run" / "rollouts"
    folder.mkdir(parents=True)
    columns = {"group": range(9), "prompt": ["p"] * 9, "response": ["r"] * 9, "reward": [1.0] * 9}
    names = [None, *(f"c{i}" for i in range(8))]
    pq.write_table(pa.table({**columns, "cluster": names}), folder / "step-000001.parquet")
    seen = whole(Reader(Run("run", tmp_path / "run", 0)))
    assert seen.clusters == ("c0", "c1", "c2", OTHER) and seen.groups.cluster.tolist() == [-1, 0, 1, 2, 3, 3, 3, 3, 3]


def test_what_was_looked_at_covers_the_run_at_any_time():
    names = [f"{i}" for i in range(100)]
    order = spread(names)
    assert sorted(order, key=int) == names and order[0] == "99"
    first = sorted(int(name) for name in order[:16])
    assert max(np.diff(first)) <= 8


def test_stretches_are_single_logged_steps_where_they_are_few():
    assert stretches(np.array([1, 2, 4]), 10).tolist() == [0.5, 1.5, 2.5, 3.5, 4.5]
    assert stretches(np.array([10, 20, 40]), 10).tolist() == [5, 15, 25, 35, 45]
    assert len(stretches(np.arange(5000), 120)) == 121 and not len(stretches(np.zeros(0), 9))


def test_a_level_is_a_value_where_these_are_few():
    assert levels([np.array([0, 1, 1.0])], 40).tolist() == [-0.5, 0.5, 1.5]
    assert levels([np.array([0, 0.5]), np.array([1.0])], 40).tolist() == [-0.25, 0.25, 0.75, 1.25]
    assert levels([np.full(3, 0.7)], 40) == pytest.approx([0.2, 1.2]) and not len(levels([np.array([np.nan])], 40))
    normal = np.random.default_rng(1).standard_normal(20_000)
    edges = levels([np.append(normal, 1e9)], 40)
    assert len(edges) == 41 and edges[-1] < 10, "one absurd value does not squeeze the rest"
    assert levels([np.array([0, 1e-9, 1.0])], 40).size == 41, "levels of very different height are bins"


def test_shares_of_a_stretch_sum_to_one_and_gaps_stay_gaps():
    at, edges = np.array([0.5, 1.5, 2.5, 3.5]), np.array([-0.5, 0.5, 1.5])
    place = places(np.array([1, 1, 1, 1, 3, 3]), at)
    found = shares(place, np.array([0, 0, 0, 1, 5.0, np.nan]), 3, edges)
    assert found[:, 0].tolist() == [0.75, 0.25] and np.isnan(found[:, 1]).all()
    assert found[:, 2].tolist() == [0, 1], "what lies beyond counts with the last level"
    assert means(np.array([0, 0, 2]), np.array([1, 3, np.nan]), 3)[0] == 2
