"""The Space's readers of a run: metrics, groups, search, results."""

import dataclasses

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from space_runs import RunWriter, hostile_run, large_run, learning_run

from openrlhf_ebpo.run.plot import smooth
from openrlhf_ebpo.run.run_log import read_metrics
from openrlhf_ebpo.run.run_writer import roll_back
from openrlhf_ebpo.space import results
from openrlhf_ebpo.space.cards import history_bar
from openrlhf_ebpo.space.errors import RunError
from openrlhf_ebpo.space.groups import Index
from openrlhf_ebpo.space.metrics import Follower, decimate, outside
from openrlhf_ebpo.space.parquet import rows_of
from openrlhf_ebpo.space.runs import Run
from openrlhf_ebpo.space.search import Filter, answers, choose, history, position_of, prompts_of


@pytest.fixture(scope="module")
def learnt(tmp_path_factory):
    path = learning_run(tmp_path_factory.mktemp("learnt") / "ebpo", steps=12, seed=3, name="ebpo", prompts=10)
    return Run("ebpo", path, 0)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    return Run("hostile", hostile_run(tmp_path_factory.mktemp("hostile") / "run", megabytes=0.1), 0)


# metrics


def test_metrics_are_those_of_the_run_log(learnt):
    found = Follower(learnt.path / "metrics.jsonl").read()
    rows = read_metrics(learnt.path)
    assert found.steps.tolist() == [row["step"] for row in rows]
    for name in ("rollout/reward_mean", "ebpo/shrinkage", "time"):
        assert found.columns[name].tolist() == [row[name] for row in rows]


def test_metrics_are_followed_while_they_grow_and_after_a_roll_back(tmp_path):
    log = RunWriter(tmp_path, None)
    follower = Follower(tmp_path / "metrics.jsonl")
    assert len(follower.read().steps) == 0
    for step in (1, 2, 3):
        log.write_metrics(step, {"a": step / 2})
    assert follower.read().series("a")[1].tolist() == [0.5, 1.0, 1.5]
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write('{"step": 4, "a": ')
        file.flush()
        assert follower.read().steps.tolist() == [1, 2, 3], "a torn line waits"
        file.write('9.0, "b": null}\n{"step": 3, "eval_x_pass1": 0.25}\n')
    found = follower.read()
    assert found.steps.tolist() == [1, 2, 3, 4]
    assert found.at(3, "eval_x_pass1") == 0.25 and found.at(3, "a") == 1.5 and found.at(4, "a") == 9.0
    roll_back(tmp_path, 2)
    log.write_metrics(3, {"a": 7.0})
    assert follower.read().series("a")[1].tolist() == [0.5, 1.0, 7.0]


def test_damaged_lines_are_counted_and_the_rest_is_read(hostile):
    found = Follower(hostile.path / "metrics.jsonl").read()
    assert len(found.steps) == 31 and found.problems == ("metrics.jsonl: 4 damaged lines are left out.",)


def test_one_bad_value_drops_only_that_point(tmp_path):
    path = tmp_path / "metrics.jsonl"
    lines = ['{"step": 1, "a": 1, "b": 2}', '{"step": 2, "a": null, "b": NaN}', '{"step": 3, "a": 1e999, "b": 4}']
    path.write_text("\n".join([*lines, f'{{"step": 4, "a": 1{"0" * 400}, "b": -Infinity, "c": "text"}}', ""]))
    follower = Follower(path)
    found = follower.read()
    assert not found.problems and found.steps.tolist() == [1, 2, 3, 4]
    assert found.series("b")[0].tolist() == [1, 3]
    assert found.series("a")[0].tolist() == [1] and "c" not in found.columns
    with open(path, "a") as file:
        file.write('{"step": 2, "b": 3.0}\n')
    assert follower.read().series("b")[0].tolist() == [1, 2, 3], "a value that came later counts"


def test_an_absurd_step_lies_outside_and_a_new_regime_does_not():
    usual = np.sin(np.arange(400.0))
    assert not outside(usual).any() and not outside(np.zeros(9)).any() and not outside(np.array([0.0, 1e9])).any()
    usual[137] = 1e9
    assert np.flatnonzero(outside(usual)).tolist() == [137]
    usual[137] = 0.0
    usual[200:] += 1e6  # half of the run: no accident
    assert not outside(usual).any()
    sparse = np.zeros(400)
    sparse[7] = 0.01  # the one reward error of a run is what its panel is for
    assert not outside(sparse).any()


def test_smoothing_and_decimation_keep_what_matters():
    values = np.ones(1000)
    values[617] = 50.0
    x, y = decimate(np.arange(1000), values, 100)
    assert len(x) <= 102 and 617 in x and (x[0], x[-1]) == (0, 999) and y.max() == 50.0
    assert smooth(np.arange(100.0), 0.1)[50] == pytest.approx(50)
    assert smooth(np.full(7, 3.0), 0.3).tolist() == [3.0] * 7
    values = np.ones(2000)
    values[100] = 1e15
    assert smooth(values, 0.01)[200:] == pytest.approx(1.0, abs=1e-3), "one large value does not spoil later means"


# groups


def test_the_index_says_what_the_rows_say(learnt):
    groups, problems = Index(learnt).read()
    assert not problems and len(groups) == 12 * 10
    table = pq.read_table(learnt.path / "rollouts" / "step-000012.parquet").to_pandas()
    for group, rows in table.groupby("group"):
        p = position_of(groups, 12, group)
        valid = rows[rows.valid]
        assert groups.size[p] == 4 and groups.valid[p] == len(valid)
        assert groups.mean[p] == pytest.approx(valid.reward.mean()) == pytest.approx(rows.group_mean.iloc[0])
        assert groups.success[p] == pytest.approx((valid.reward == 1).mean())
        assert groups.rescued[p] == ((valid.grpo_advantage == 0) & (valid.advantage != 0)).sum()
        assert groups.errors[p] == rows.error.notna().sum() and groups.truncated[p] == rows.truncated.sum()
        assert groups.prompt_id[p] == rows.prompt_id.iloc[0] and groups.cluster[p] == rows.cluster.iloc[0]


def test_filters(learnt):
    index = Index(learnt)
    groups, _ = index.read()

    def found(**wanted):
        return choose(index.run, index.read()[0], Filter(**wanted))[0]

    assert set(groups.step[found()]) == {12} and len(found(steps="all")) == 120
    assert set(groups.step[found(steps="3-5")]) == {3, 4, 5}
    assert groups.step[found(steps="all")][0] == 12, "latest first"
    rescued = found(steps="all", kind="rescued")
    assert len(rescued) and (groups.highest[rescued] == 0).all() and (groups.pushed_down[rescued] > 0).all()
    kinds = [len(found(steps="all", kind=kind)) for kind in ("all_fail", "mixed", "all_pass")]
    assert sum(kinds) == 120 and min(kinds) > 0
    assert set(groups.cluster[found(steps="all", cluster="Algebra")]) == {"Algebra"}
    half = found(steps="all", success=(0.4, 0.6))
    assert len(half) and ((groups.success[half] >= 0.4) & (groups.success[half] <= 0.6)).all()
    assert (groups.truncated[found(steps="all", kind="truncated")] > 0).all()
    with pytest.raises(RunError, match="10-20"):
        found(steps="soon")


def test_text_is_found_in_prompts_answers_and_labels(learnt):
    index = Index(learnt)
    groups, _ = index.read()
    positions = choose(index.run, index.read()[0], Filter("all", text="TRIANGLE has legs"))[0]
    assert set(groups.cluster[positions]) == {"Geometry"} and len(positions) == (groups.cluster == "Geometry").sum()
    row = answers(learnt, groups, int(positions[0]))[2]
    assert positions[0] in choose(index.run, index.read()[0], Filter("all", text=row["response"][-40:]))[0]
    assert not len(choose(index.run, index.read()[0], Filter("all", text="in no answer"))[0])


def test_a_visit_without_valid_answers_is_not_called_wrong(learnt):
    groups, _ = Index(learnt).read()
    visits = max((history(groups, prompt) for prompt in set(groups.prompt_id)), key=len)
    success = groups.success.copy()
    success[visits[0]] = np.nan
    bar = history_bar(dataclasses.replace(groups, success=success), visits, int(visits[-1]))
    assert f'aria-label="Step {groups.step[visits[0]]}: no valid answer"' in bar
    assert bar.count(' % right" aria') == len(visits) - 1


def test_answers_and_history(learnt):
    index = Index(learnt)
    groups, _ = index.read()
    p = position_of(groups, 7, 4)
    prompts = prompts_of(index.run, groups, np.array([p + 1, p, 0]))
    assert prompts == {at: answers(learnt, groups, at)[0]["prompt"] for at in (p + 1, p, 0)}
    rows = answers(learnt, groups, p)
    table = pq.read_table(learnt.path / "rollouts" / "step-000007.parquet")
    assert rows == table.slice(16, 4).to_pylist()
    visits = history(groups, groups.prompt_id[p])
    assert p in visits and set(groups.prompt_id[visits]) == {groups.prompt_id[p]}


def test_new_files_enter_the_index_and_removed_ones_leave(tmp_path):
    path = learning_run(tmp_path / "r", steps=3, seed=1, name="r", prompts=4)
    index = Index(Run("r", path, 0))
    assert len(index.read()[0]) == 12
    first = path / "rollouts" / "step-000001.parquet"
    (path / "rollouts" / "step-000004.parquet").write_bytes(first.read_bytes())
    groups, _ = index.read()
    assert len(groups) == 16 and groups.step.max() == 4, "the step is the file's"
    roll_back(path, 1)
    assert set(index.read()[0].step) == {1}


def test_broken_files_are_named_and_the_rest_is_read(hostile):
    groups, problems = Index(hostile).read()
    assert set(groups.step) == {1} and len(groups) == 10
    assert [problem.split()[0] for problem in problems] == [f"rollouts/step-00000{i}.parquet" for i in (2, 3, 4, 5)]
    assert "leads out of the run" in problems[-1] and "another schema" in problems[2]


def test_rescued_is_shown_only_for_ebpo(tmp_path):
    path = learning_run(tmp_path / "grpo", steps=2, seed=1, name="g", prompts=8, estimator="group_norm")
    file = path / "rollouts" / "step-000001.parquet"
    table = pq.read_table(file)  # a KL penalty in the reward moves every advantage away from zero
    moved = table.set_column(table.schema.get_field_index("advantage"), "advantage", [[-0.01] * len(table)])
    pq.write_table(moved, file)
    groups, _ = Index(Run("grpo", path, 0)).read()
    assert groups.all_fail(0.0).any() and not groups.rescued.any()


def test_one_group_of_a_file_with_many_rows_is_that_group(tmp_path):
    run = Run("large", large_run(tmp_path / "large", 4096), 0)
    groups, _ = Index(run).read()
    rows = answers(run, groups, 400)
    whole = pq.read_table(run.path / "rollouts" / "step-000001.parquet").slice(400 * 8, 8).to_pylist()
    assert rows == whole and {row["group"] for row in rows} == {400}


def test_a_search_says_when_there_is_more_than_it_lists(tmp_path):
    run = Run("large", large_run(tmp_path / "large", 8191), 0)
    positions, note = choose(run, Index(run).read()[0], Filter(steps="all", text="problem"))
    assert len(positions) == 500 and "More than 500" in note


# results


def test_results_with_intervals_and_questions(learnt):
    found, problems = results.find(learnt)
    assert not problems and [(r.task, r.step) for r in found[:2]] == [("aime24", 0), ("aime24", 3)]
    result = found[-1]
    metric = result.metrics["pass@1"]
    assert metric["interval"][0] < metric["value"] < metric["interval"][1]
    assert [k for k, _ in result.pass_curve()] == [1, 2, 4, 8]
    asked = results.questions(learnt, result)
    assert len(asked) == 15 and np.mean([q.rate for q in asked]) == pytest.approx(metric["value"])
    for question in asked[:3]:
        rows = results.samples(learnt, result, question.key)
        assert len(rows) == 8 and {row["question_id"] for row in rows} == {question.key}
        assert np.mean([row["correct"] for row in rows]) == question.rate
    assert results.samples(learnt, result, "no such question") == []


def test_questions_are_counted_without_a_dict_for_every_sample(learnt, monkeypatch):
    result, made = results.find(learnt)[0][-1], []
    monkeypatch.setattr(results, "rows_of", lambda table: made.append(len(table)) or rows_of(table))
    results._questions.cache_clear()
    assert len(results.rates(learnt, result)) == len(results.questions(learnt, result)) == 15
    assert made == [15], "the text and the gold answer of each question, of 120 samples"


IDS = {
    "texts": (["a", "b", "a", "c", "b"], {"a": [0, 2], "b": [1, 4], "c": [3]}),
    "not in every row": (["b", None, "", "b", None], {"b": [0, 3], "q1": [1], "q2": [2], "q4": [4]}),
    "a text is another's": (["q1", None, "q1", "x", "x"], {"q1": [0, 1, 2], "x": [3, 4]}),
    "numbers": ([7, None, 7, 8, 8], {"7": [0, 2], "q1": [1], "8": [3, 4]}),
    "nothing": ([None] * 5, {f"q{i}": [i] for i in range(5)}),
}


@pytest.mark.parametrize("kind", IDS)
def test_which_samples_are_of_a_question(kind):
    ids, expected = IDS[kind]
    columns = {"question": [f"q{i}" for i in range(5)], "correct": [True, None, False, True, True]}
    table = pa.table({"question_id": pa.array(ids), **columns})
    for whole in (table, pa.concat_tables([table.slice(0, 2), table.slice(2)])):
        found = results.by_question(whole)
        assert dict(zip(found["key"].to_pylist(), found["row_list"].to_pylist(), strict=True)) == expected
        rates = [np.isin(rows, (0, 3, 4)).mean() for rows in expected.values()]
        assert found["correct_mean"].to_pylist() == pytest.approx(rates)
    assert not len(results.by_question(table.slice(0, 0)))


def test_damaged_results_are_named(hostile):
    found, problems = results.find(hostile)
    assert [r.task for r in found] == ["amc23"]
    assert len(problems) == 3 and any("schema 99" in p for p in problems)


def test_of_many_checkpoints_the_ends_of_each_run_or_the_wanted_ones_are_the_columns():
    shown = [
        (number, results.Result(run, "default", "aime24", step, {}, 30, 8, ""))
        for number, run in enumerate(("a", "b@c"))
        for step in range(0, 50, 10)
    ]
    assert [(c.run, c.step) for c in results.columns(shown)] == [("a", 0), ("a", 40), ("b@c", 0), ("b@c", 40)]
    wanted = ["b@c · step 20", "a · step 10", "gone · step 10", "step 1"]
    assert [(c.run, c.step) for c in results.columns(shown, wanted)] == [("a", 10), ("b@c", 20)]
    assert len(results.columns(shown, [column.name for column in results.checkpoints(shown)])) == results.MAX_COLUMNS
    assert len(results.columns(shown[:6])) == 6
