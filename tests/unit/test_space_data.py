"""What the Space reads of a run: metrics, groups, search, results."""

import dataclasses
import shutil
import socket
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from space_runs import RunLog, hostile_run, large_run, learning_run

from openrlhf_ebpo.run.run_log import read_metrics
from openrlhf_ebpo.run.run_writer import roll_back
from openrlhf_ebpo.space import hub, results
from openrlhf_ebpo.space.cards import history_bar
from openrlhf_ebpo.space.errors import RunError
from openrlhf_ebpo.space.groups import Index, rows_of
from openrlhf_ebpo.space.links import clean
from openrlhf_ebpo.space.metrics import Follower, decimate, outside, smooth
from openrlhf_ebpo.space.runs import Run, Runs, describe, inside, keys
from openrlhf_ebpo.space.search import Filter, answers, choose, history, position_of, prompts_of
from openrlhf_ebpo.space.workspace import Workspace

ROOT = Path(__file__).parents[2]


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
    log = RunLog(tmp_path, None)
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
        return choose(index, Filter(**wanted)).positions

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
    positions = choose(index, Filter("all", text="TRIANGLE has legs")).positions
    assert set(groups.cluster[positions]) == {"Geometry"} and len(positions) == (groups.cluster == "Geometry").sum()
    row = answers(learnt, groups, int(positions[0]))[2]
    assert positions[0] in choose(index, Filter("all", text=row["response"][-40:])).positions
    assert not len(choose(index, Filter("all", text="nobody wrote this")).positions)


def test_a_visit_without_valid_answers_is_not_called_wrong(learnt):
    groups, _ = Index(learnt).read()
    visits = max((history(groups, prompt) for prompt in set(groups.prompt_id)), key=len)
    success = groups.success.copy()
    success[visits[0]] = np.nan
    bar = history_bar(dataclasses.replace(groups, success=success), visits, int(visits[-1]))
    assert f'aria-label="Step {groups.step[visits[0]]}: no valid answer"' in bar
    assert bar.count(" % right") == len(visits) - 1


def test_answers_and_history(learnt):
    index = Index(learnt)
    groups, _ = index.read()
    p = position_of(groups, 7, 4)
    prompts = prompts_of(index, groups, np.array([p + 1, p, 0]))
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
    found = choose(Index(run), Filter(steps="all", text="problem"))
    assert len(found.positions) == 500 and "More than 500" in found.note


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
    for cached in (results._questions, results._rates):
        cached.cache_clear()
    asked, rates = results.questions(learnt, result), results.rates(learnt, result)
    assert {question.key: question.rate for question in asked} == rates
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
    assert len(results.columns(shown, [column.name for column in results.checkpoints(shown)])) == results.COLUMNS
    assert len(results.columns(shown[:6])) == 6


# runs


def test_a_folder_that_may_not_be_read_does_not_hide_the_runs_beside_it(tmp_path, monkeypatch):
    for name in ("lost+found", "ours"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "metrics.jsonl").write_text('{"step": 1}\n')
    is_file = Path.is_file

    def refused(path):  # tests may run as root, who may read everything
        if path.parent.name == "lost+found":
            raise PermissionError(13, "Permission denied", str(path))
        return is_file(path)

    monkeypatch.setattr(Path, "is_file", refused)
    assert Runs([str(tmp_path)]).listed() == ["ours"]


def test_runs_are_found_below_folders_in_a_stable_order(learnt, tmp_path):
    (tmp_path / "a" / "run").mkdir(parents=True)
    (tmp_path / "a" / "run" / "run.json").write_text("{}")
    (tmp_path / "b" / "x").mkdir(parents=True)
    (tmp_path / "b" / "x" / "metrics.jsonl").touch()
    (tmp_path / "a" / "run" / "superseded" / "y").mkdir(parents=True)
    (tmp_path / "a" / "run" / "superseded" / "y" / "metrics.jsonl").touch()
    runs = Runs([str(tmp_path), str(learnt.path)])
    assert runs.listed() == ["a", "x", "ebpo"]
    assert runs.get("a").path == tmp_path / "a" / "run"


@pytest.mark.parametrize(
    "key",
    [
        "../secret",
        "/etc",
        "stranger/run",
        "owner/../x",
        "owner/run/extra",
        "",
        "a\x00b",
        "owner2/run",
        "tests/unit",
        "friend",
        "friend/",
        "friend/..",
        "friend/../x",
        "friend/a/b",
        "friend/a--b",
        "friend/.x",
        "friend/a\n",
        "/friend",
    ],
)
def test_what_is_not_given_or_allowed_is_refused(key, monkeypatch):
    monkeypatch.chdir(ROOT)
    runs = Runs(["tests", "owner/other"], ["friend", "owner2/other"], fetch=lambda *_: pytest.fail("fetched"))
    with pytest.raises(
        RunError, match=r"(?s)no run called .* not on this app's list .*\(allowed: friend, owner2/other\)"
    ):
        runs.get(key)


def test_a_path_cannot_lead_out_of_its_run(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "secret.json").write_text("{}")
    (tmp_path / "run" / "run.json").symlink_to(tmp_path / "secret.json")
    run = Run("r", tmp_path / "run", 0)
    for parts in (("..", "secret.json"), ("run.json",), ("/etc/passwd",)):
        with pytest.raises(RunError, match="leads out"):
            inside(run, *parts)
    (tmp_path / "run" / "metrics.jsonl").mkdir()  # as a repo of the Hub may have it
    with pytest.raises(RunError, match="is not a file"):
        inside(run, "metrics.jsonl")


@pytest.mark.parametrize(
    ("text", "said"), [("{", "damaged"), ("[]", "no run"), ('{"schema": 9}', "schema 9"), ("[" * 10**5, "damaged")]
)
def test_a_run_json_that_cannot_be_used_says_why(tmp_path, text, said):
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(RunError, match=said):
        describe(Run("r", tmp_path, 0))


# the Hub


def test_only_names_of_a_run_are_downloaded_within_the_limits():
    mib = 2**20
    files = [
        *(
            ("run.json", 100),
            ("metrics.jsonl", mib),
            ("README.md", 10),
            ("model.safetensors", 10),
            ("evil.pkl", 1),
            ("../run.json", 1),
        ),
        *(
            ("rollouts/step-000001.parquet", 40 * mib),
            ("rollouts/step-000002.parquet", 40 * mib),
            ("rollouts/step-000003.parquet", 900 * mib),
        ),
        *(
            ("eval/default+n=8/aime24/step-000010/summary.json", 10),
            ("eval/../../x/step-000001/summary.json", 1),
            ("prior.json", None),
        ),
    ]
    names, left_out = hub.wanted(files, total=50 * mib, single=512 * mib)
    assert names == [
        "README.md",
        "eval/default+n=8/aime24/step-000010/summary.json",
        "metrics.jsonl",
        "run.json",
        "rollouts/step-000002.parquet",
    ]
    assert len(left_out) == 3 and "900 MiB" in left_out[1]


@pytest.mark.parametrize("name", ["https://huggingface.co/owner", "owner/a/b", "", "..", "owner/"])
def test_what_cannot_be_allowed_is_said_at_the_start(name, capsys):
    from openrlhf_ebpo.space.main import parse

    with pytest.raises(SystemExit):
        parse(["--allow", name])
    assert "neither an owner nor owner/name" in capsys.readouterr().err


def test_runs_and_allowed_names_come_from_the_environment_too(monkeypatch):
    from openrlhf_ebpo.space.main import parse

    monkeypatch.setenv("EBPO_SPACE_RUNS", "a/b, c/d")
    monkeypatch.setenv("EBPO_SPACE_ALLOW", "a,c/e")
    options = parse([])
    assert options.runs == ["a/b", "c/d"] and options.allow == ["a", "c/e"]


def test_a_run_comes_from_the_hub(use_hub, api, learnt, tmp_path):
    api.create_repo("owner/run", repo_type="dataset")
    api.upload_folder(repo_id="owner/run", repo_type="dataset", folder_path=learnt.path)
    api.upload_file(repo_id="owner/run", repo_type="dataset", path_or_fileobj=b"import os", path_in_repo="evil.py")
    runs = Runs(["owner/run", "owner/nothing"], cache=tmp_path / "cache")
    run = runs.get("owner/run")
    assert len(Index(run).read()[0]) == 120 and describe(run)["name"] == "ebpo"
    assert not list((tmp_path / "cache").rglob("*.py"))
    api.upload_file(
        repo_id="owner/run",
        repo_type="dataset",
        path_or_fileobj=b'{"schema": 1, "name": "later"}',
        path_in_repo="run.json",
    )
    api.delete_file("rollouts/step-000012.parquet", repo_id="owner/run", repo_type="dataset")
    assert describe(runs.get("owner/run"))["name"] == "ebpo", "not asked again at once"
    runs._fetched.copies["owner/run"].at -= 1000
    assert describe(runs.get("owner/run"))["name"] == "later" and Index(run).read()[0].step.max() == 11
    with pytest.raises(RunError, match="neither a directory here nor a public data set"):
        runs.get("owner/nothing")


def test_a_hub_that_fails_leaves_both_readings_of_a_name(monkeypatch):
    from huggingface_hub import HfApi

    def unreachable(*_, **__):
        raise ConnectionError

    monkeypatch.setattr(HfApi, "repo_info", unreachable)
    with pytest.raises(RunError, match=r"not a directory here.*data set repo of the Hub.*\./owner/name"):
        hub.fetch("owner/name")


# the start


def test_a_file_as_a_run_is_an_error_at_the_start(tmp_path, capsys):
    from openrlhf_ebpo.space.main import parse

    (tmp_path / "file").touch()
    with pytest.raises(SystemExit):
        parse(["--runs", str(tmp_path / "file")])
    assert "is a file" in capsys.readouterr().err


def test_a_port_in_use_is_an_error_at_the_start(capsys):
    from openrlhf_ebpo.space.main import parse

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SystemExit):
            parse(["--port", str(port)])
    assert f"--port {port}" in capsys.readouterr().err


@pytest.mark.parametrize("given", ["runs/later", "./later", "{tmp}/later", "{tmp}", "later", "a/b/later", "new/later"])
def test_a_folder_without_a_run_is_awaited_and_shown_once_it_has_one(tmp_path, monkeypatch, learnt, given):
    from openrlhf_ebpo.space.main import parse
    from openrlhf_ebpo.space.pages import overview

    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    (named,) = parse(["--runs", given.format(tmp=tmp_path)]).runs
    runs = Runs([named])
    workspace, view = Workspace(runs), clean({})
    is_repo = given == "new/later"  # reads as owner/name until the folder is there
    assert runs.listed() == ([named] if is_repo else []) and runs.awaited() == ([] if is_repo else [named])
    assert is_repo or "Waiting for a run" in overview.render(view, workspace)["notes"]
    shutil.copytree(learnt.path, tmp_path / named, dirs_exist_ok=True)
    runs._scanned = 0.0
    assert len(runs.listed()) == 1 and runs.get(runs.listed()[0]).path == (tmp_path / named).resolve()
    assert named not in runs.awaited() and "Waiting for a run" not in overview.render(view, workspace)["notes"]


# names of runs


@pytest.mark.parametrize(
    ("paths", "names"),
    [
        (["/o/ebpo/model/run", "/o/grpo/model/run"], ["ebpo", "grpo"]),
        (["/o/ebpo/run"], ["ebpo"]),
        (["/a/seed/run", "/b/seed/run"], ["a/seed", "b/seed"]),
        (["/q/run", "/q/model/run"], ["q/run", "model/run"]),
        (["/a/b", "/c/a/b"], ["/a/b", "c/a/b"]),
        (["/o/lr,1e-6", "/o/lr_1e-6"], ["/o/lr_1e-6", "/o/lr_1e-6 2"]),
        (["/model", "/run"], ["model", "run"]),
    ],
)
def test_names_of_runs_tell_them_apart_and_can_be_linked(paths, names):
    found = list(keys([Path(path) for path in paths], {}).values())
    assert all("," not in name for name in found)
    assert found == names and len(set(found)) == len(paths)


def test_a_name_stays_when_another_run_comes(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name / "model" / "run").mkdir(parents=True)
    (tmp_path / "a" / "model" / "run" / "run.json").write_text("{}")
    runs = Runs([str(tmp_path)])
    assert runs.listed() == ["a"]
    (tmp_path / "b" / "model" / "run" / "run.json").write_text("{}")
    (tmp_path / "b" / "a").mkdir()
    (tmp_path / "b" / "a" / "metrics.jsonl").write_text("")
    runs._scanned = 0
    found = runs.listed()
    assert found[0] == "a" and sorted(found[1:]) == ["b", "b/a"]
    assert runs.get("a").path == (tmp_path / "a" / "model" / "run").resolve()


def test_a_given_repository_keeps_its_name(tmp_path):
    assert keys([tmp_path / "owner" / "ebpo"], {}, ["ebpo"]) == {tmp_path / "owner" / "ebpo": "owner/ebpo"}
