"""What the index keeps of a run's responses, and how distributions over training are binned."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from space_runs import learning_run

from openrlhf_ebpo.space import groups as groups_of
from openrlhf_ebpo.space.binning import levels, means, places, shares, stretches
from openrlhf_ebpo.space.groups import Index
from openrlhf_ebpo.space.heatmaps import binned, partly
from openrlhf_ebpo.space.runs import Run


@pytest.fixture(scope="module")
def learnt(tmp_path_factory):
    path = learning_run(tmp_path_factory.mktemp("runs") / "ebpo", steps=12, seed=3, name="ebpo", prompts=10)
    return Run("ebpo", path, 0)


def table_of(run: Run):
    files = sorted((run.path / "rollouts").glob("step-*.parquet"))
    return pa.concat_tables([pq.read_table(file) for file in files]).to_pandas()


def test_what_is_kept_is_what_the_rows_say(learnt):
    groups, problems, kept = Index(learnt).read_all()
    rows = table_of(learnt)
    valid = rows[rows.valid]
    assert not problems and groups.step[kept.group].tolist() == valid.step.tolist()
    assert groups.cluster[kept.group].tolist() == valid.cluster.tolist()
    for name, column in (("reward", "reward"), ("length", "response_length"), ("grpo_advantage", "grpo_advantage")):
        assert getattr(kept, name) == pytest.approx(valid[column].to_numpy())
    assert partly(groups, kept) == ""


def test_of_too_many_responses_those_of_the_latest_steps_are_kept_and_it_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(groups_of, "MAX_RESPONSES", 40)
    path = learning_run(tmp_path / "run", steps=9, seed=1, name="run", prompts=4)  # 16 a step
    index = Index(Run("run", path))
    for newest in (9, 10):  # a live run goes on
        groups, _, responses = index.read_all()
        kept = np.unique(groups.step[responses.group])
        assert kept.tolist() == [newest - 2, newest - 1, newest] and groups.step.max() == newest
        assert partly(groups, responses).startswith(f"From step {newest - 2} on")
        found = binned(groups, responses)["success"]
        assert found.at[0] == newest - 2.5 and np.isfinite(found.mean).all()
        file = path / "rollouts" / "step-000009.parquet"
        (path / "rollouts" / "step-000010.parquet").write_bytes(file.read_bytes())
    for step in range(8, 11):  # rolled back
        (path / "rollouts" / f"step-{step:06d}.parquet").unlink()
    groups, _, responses = index.read_all()
    assert np.unique(groups.step[responses.group]).tolist() == [5, 6, 7] and partly(groups, responses)


def test_a_first_step_whose_rewards_all_failed_is_not_called_left_out(tmp_path):
    path = learning_run(tmp_path / "run", steps=2, seed=1, name="run", prompts=4)
    file = path / "rollouts" / "step-000001.parquet"
    table = pq.read_table(file)
    failed = pa.array([False] * len(table))
    pq.write_table(table.set_column(table.column_names.index("valid"), "valid", failed), file)
    groups, _, responses = Index(Run("run", path)).read_all()
    assert set(groups.step[responses.group]) == {2} and partly(groups, responses) == ""


def summed(tmp_path, **columns):
    usual = {"group": [0] * 4, "prompt": ["p"] * 4, "response": ["r"] * 4, "baseline": [0.1] * 4, "reward": [0.0] * 4}
    (tmp_path / "rollouts").mkdir()
    pq.write_table(pa.table({**usual, **columns}), tmp_path / "rollouts" / "step-000001.parquet")
    return Index(Run("x", tmp_path, 0)).read()


def test_what_grpo_ignores_and_gets_an_advantage_here(tmp_path):
    columns = {"advantage": [-0.5, -0.3, 0.4, -9.0], "grpo_advantage": [0.0, 0.0, 1.0, 0.0]}
    groups, _ = summed(tmp_path, **columns, valid=[True, True, True, False])
    assert [int(getattr(groups, name)[0]) for name in ("compared", "ignored", "rescued", "pushed_down")] == [3, 2, 2, 2]
    assert groups.push[0] == pytest.approx(-0.8) and groups.shift[0] == pytest.approx(0.5 + 0.3 + 0.6)


@pytest.mark.parametrize(
    ("columns", "compared"),
    [
        ({"advantage": ["x"] * 4, "grpo_advantage": [0.0] * 4}, None),
        ({"advantage": [0.1] * 4}, 0),
        ({"advantage": [None] * 4, "grpo_advantage": [float("inf")] * 4}, 0),
        ({"advantage": [0.1] * 4, "grpo_advantage": [0.0] * 4, "valid": ["perhaps"] * 4}, None),
    ],
)
def test_columns_of_another_kind_count_as_nothing_or_are_named(tmp_path, columns, compared):
    groups, problems = summed(tmp_path, **columns)
    assert [bool(problems), len(groups)] == [True, 0] if compared is None else groups.compared.tolist() == [compared]


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
