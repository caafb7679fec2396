"""The Space's pages for a view, without a browser; and views as addresses."""

import html
import json
import re
from collections import Counter
from urllib.parse import parse_qsl

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from panels import board, values
from space_runs import learning_run

from openrlhf_ebpo.run.catalogue import HELD_OUT, Shown, metrics_for
from openrlhf_ebpo.space import document, pages
from openrlhf_ebpo.space.links import PARAMETERS, address, clean
from openrlhf_ebpo.space.metric_panels import SPEED, panel_csv
from openrlhf_ebpo.space.metrics import Metrics, positions
from openrlhf_ebpo.space.pages import configuration, dynamics, evaluation, samples, understand
from openrlhf_ebpo.space.picture import picture
from openrlhf_ebpo.space.runs import Run, Runs
from openrlhf_ebpo.space.search import KINDS, position_of
from openrlhf_ebpo.space.server import chunk
from openrlhf_ebpo.space.workspace import LoadedRun, Workspace

PAGES = {
    "configuration": configuration,
    "dynamics": dynamics,
    "samples": samples,
    "evaluation": evaluation,
    "understand": understand,
}


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    learning_run(folder / "ebpo", steps=12, seed=1, name="ebpo", prompts=8)
    learning_run(
        folder / "grpo", steps=12, seed=2, name="grpo", prompts=8, estimator="group_norm", status="running", pace=0.5
    )
    return Workspace(Runs([str(folder)]))


def show(workspace, page, **view):
    return PAGES[page].render(clean({"runs": "ebpo,grpo", **view}), workspace)


def zeros(workspace) -> set[str]:
    said = show(workspace, "dynamics")["zeros"]
    return {metric.name for metric in metrics_for(Shown.SPACE) if metric.title in said}


def test_dynamics_has_every_panel_of_the_runs(workspace):
    found = board(show(workspace, "dynamics", smooth=0.2))
    later = {"mismatch/k3_kl", HELD_OUT} | zeros(workspace)  # not measured in these runs, or 0
    assert set(found) - {SPEED.name} == {metric.name for metric in metrics_for(Shown.SPACE)} - later
    both, own = found["rollout/reward_mean"], found["ebpo/shrinkage"]
    assert [v["name"] for v in both["values"]] == ["ebpo", "grpo"] and [v["name"] for v in own["values"]] == ["ebpo"]
    metrics = workspace.open("ebpo").metrics
    raw = both["figure"]["data"][0]
    assert values(raw["x"]).tolist() == metrics.steps.tolist()
    assert values(raw["y"]) == pytest.approx(metrics.columns["rollout/reward_mean"])


def test_the_x_axis_can_be_rollouts_or_time(workspace):
    metrics = workspace.open("ebpo").metrics
    assert positions(metrics, metrics.steps, "rollouts").tolist() == [32.0 * step for step in metrics.steps]
    hours = positions(metrics, metrics.steps, "time")
    assert hours[0] == 0 and hours[-1] == pytest.approx(
        (metrics.columns["time"][-1] - metrics.columns["time"][0]) / 3600
    )


def test_every_figure_is_one_that_plotly_reads(workspace):
    graph_objects = pytest.importorskip("plotly.graph_objects")
    view = {"log": 1, "paper": "Qwen3-8B,4"}
    for page in ("dynamics", "evaluation"):
        assert board(show(workspace, page, **view))
        for panel in board(show(workspace, page, **view)).values():
            text = re.sub(r'"@[\w-]+"', '"#112233"', json.dumps(panel["figure"]))
            figure = json.loads(text)
            for trace in figure["data"]:
                trace.get("marker", {}).pop("color", None)
                for name in {"x", "y", "z"} & set(trace):
                    trace[name] = values(trace[name]).tolist() if isinstance(trace[name], dict) else trace[name]
            graph_objects.Figure(figure)
            assert panel["summary"] and panel["title"]


def test_samples_show_the_group_that_was_asked_for(workspace):
    found = show(workspace, "samples", at="5.3")
    assert (
        found["view"]["at"] == "5.3"
        and "Step 5, group 3" in found["decision"]
        and found["answers"].count('class="tile') == 4
        and found["answers"].count("<article") == 1
    )
    missing = show(workspace, "samples", at="99.0")
    assert "no group 99.0" in missing["notes"] and not missing.keys() & {"decision", "answers"}
    assert "latest" in show(workspace, "samples", steps="soon")["notes"]


def test_one_answer_is_shown_and_the_others_are_one_click_away(workspace):
    second = show(workspace, "samples", at="5.3", answer="2")["answers"]
    assert "Answer 2 <small>of 4" in second and "Answer 1 <small>" not in second
    assert show(workspace, "samples", at="5.3", answer="64")["answers"].count("Answer 4 <small>of 4") == 1
    assert "data-find" not in second


def test_a_search_opens_the_answer_that_has_the_hit(workspace):
    found = show(workspace, "samples", steps="all", text="NOTHING was counted")
    assert 'data-hits="1"' in found["answers"] and "data-hits" not in show(workspace, "samples", steps="all")["answers"]


def test_groups_that_are_pushed_down_do_not_look_like_success(workspace):
    found = show(workspace, "samples", kind="rescued", steps="all", run="ebpo")
    for name in ("groups", "decision", "quick"):
        assert "all fail, penalised" in found[name] and "rescued by" not in found[name]
    assert 'class="good"' not in found["groups"] + found["decision"].partition("<section")[0]


def test_samples_offer_the_same_prompt_in_the_other_run(tmp_path):
    for name, pace in (("a", 1.0), ("b", 0.4)):
        learning_run(tmp_path / name, steps=6, seed=1, name=name, prompts=8, pace=pace)
    learning_run(tmp_path / "other", steps=6, seed=5, name="other", prompts=8)
    both = Workspace(Runs([str(tmp_path)]))
    found = samples.render(clean({"runs": "a,b,other", "at": "3.2"}), both)["decision"]
    wishes = [json.loads(html.unescape(each)) for each in re.findall(r'data-set="([^"]*)"', found)]
    (there,) = [wish for wish in wishes if wish.get("run") == "b"]
    here, beyond = (both.index(both.open(key)).read()[0] for key in "ab")
    prompt = here.prompt_id[position_of(here, 3, 2)]
    assert beyond.prompt_id[position_of(beyond, *map(int, there["at"].split(".")))] == prompt
    assert there["at"].startswith("3."), "the nearest step"
    assert samples.render(clean({"runs": "a,b,other", **there}), both)["view"]["at"] == there["at"]
    assert not [wish for wish in wishes if wish.get("run") == "other"], "a run that never had the prompt"


def buttons(text: str) -> list[dict]:
    return [json.loads(html.unescape(each)) for each in re.findall(r'data-set="([^"]*)"', text)]


def test_answers_of_a_prompt_stand_side_by_side_with_those_of_another_run_or_step(tmp_path):
    for name, pace in (("a", 1.0), ("b", 0.4)):
        learning_run(tmp_path / name, steps=12, seed=1, name=name, prompts=8, pace=pace)
    both = Workspace(Runs([str(tmp_path)]))
    found = samples.render(clean({"runs": "a,b", "at": "7.2"}), both)
    assert "two-answers" not in found["answers"]
    seconds = [wish for wish in buttons(found["decision"]) if wish.get("other_at")]
    assert {wish["other_run"] for wish in seconds} == {"", "b"}, "another step of this run, and the other run"
    for wish in seconds:
        shown = samples.render(clean({"runs": "a,b", "at": "7.2", **wish, "other_answer": 3}), both)
        first, second = re.findall(r"<h2>Answer (\d)", shown["answers"])
        assert shown["answers"].count("<article") == 2 and (first, second) == ("1", "3")
        assert {"other_answer": 2} in buttons(shown["answers"])
        assert {**wish, "other_at": ""} in buttons(shown["decision"]), "a second click ends it"


def test_prompts_are_listed_with_those_never_solved_first(workspace):
    found = show(workspace, "samples", list="prompts", run="ebpo")
    groups, _ = workspace.index(workspace.open("ebpo")).read()
    right = {}
    for prompt, rate, valid in zip(groups.prompt_id, groups.success, groups.valid, strict=True):
        right.setdefault(prompt, []).append((0 if np.isnan(rate) else rate * valid, valid))
    never = sum(sum(passed for passed, _ in visits) == 0 for visits in right.values())
    assert f"<b>{never}</b> of {len(right)} prompts were never solved." in found["prompts"] and never > 0
    rows = re.findall(r"<tr><th scope=\"row\">(.*?)</tr>", found["prompts"])
    assert all("never" in row for row in rows[:never]) and "never" not in rows[never]
    wish = json.loads(html.unescape(re.search(r'data-set="([^"]*)"', rows[0])[1]))
    opened = show(workspace, "samples", run="ebpo", **wish)
    assert opened["view"]["at"] == wish["at"] and "groups" in opened and "prompts" not in opened
    best = show(workspace, "samples", list="prompts", run="ebpo", prompts_by="-pass rate")["prompts"]
    assert "never" not in re.findall(r"<tr><th scope=\"row\">(.*?)</tr>", best)[0]
    few = show(workspace, "samples", list="prompts", run="ebpo", text="TRIANGLE has legs")["prompts"]
    assert 0 < few.count("<tr>") - 1 < len(rows) and re.search(r"solved\. \d+ fit\.", few)


def test_a_panel_is_all_of_its_values_as_csv(workspace):
    found = board(show(workspace, "dynamics"))["rollout/reward_mean"]
    metric, runs = (dict(parse_qsl(found["csv"].partition("?")[2]))[name] for name in ("metric", "runs"))
    lines = panel_csv([workspace.open(key) for key in runs.split(",")], metric).splitlines()
    assert lines[0] == "step,ebpo,grpo" and len(lines) == 13
    assert [float(line.split(",")[1]) for line in lines[1:]] == workspace.open("ebpo").metrics.rewards()[1].tolist()
    odd = LoadedRun(Run("=1+1", None), {}, Metrics(np.array([1]), {"x": np.array([2.0])}), ())
    assert panel_csv([odd], "x") == "step,'=1+1\n1,2.0\n", "no spreadsheet runs the name of a run"


def test_metrics_that_are_0_throughout_are_one_line(tmp_path):
    path = learning_run(tmp_path / "run", steps=4, seed=1, name="run", prompts=2)
    rows = [json.loads(line) | {"truncated": 0.0} for line in (path / "metrics.jsonl").read_text().splitlines()]
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    opened = Workspace(Runs([str(tmp_path)]))
    found = dynamics.render(clean({}), opened)
    assert "truncated" not in board(found) and "0 at every step: " in found["zeros"] and "Truncated" in found["zeros"]
    assert "truncated" in board(dynamics.render(clean({"metric": "truncated"}), opened))


def test_rollouts_are_an_axis_only_where_batches_differ(workspace, tmp_path):
    assert "rollouts" not in show(workspace, "dynamics")["quick"]
    for name, prompts in (("a", 2), ("b", 4)):
        learning_run(tmp_path / name, steps=2, seed=1, name=name, prompts=prompts)
    assert "rollouts" in dynamics.render(clean({}), Workspace(Runs([str(tmp_path)])))["quick"]


def test_evaluation_marks_the_papers_numbers(workspace):
    found = show(workspace, "evaluation", paper="Qwen3-8B,4")
    assert "reported in the paper" in found["table"] and "50.21" in found["table"] and "±" in found["table"]
    assert {"steps-aime24", "pass-aime24", "steps-amc23", "pass-amc23"} == set(board(found))
    assert re.search(r'<small class="vote">maj@8 [\d.]+ \([\d.]+ to [\d.]+\)</small>', found["table"])
    key = re.search(r"question&#34;: &#34;(\w+)", found["questions"])[1]
    opened = show(workspace, "evaluation", question=key)["questions"]
    assert "of 8 right" in opened and "Sample 8" in opened
    assert "not in the paper" in show(workspace, "evaluation", paper="GPT,1")["notes"]


def test_without_runs_every_page_says_what_to_do():
    nothing = Workspace(Runs([]))
    for page in pages.PAGES.values():
        assert ("--runs" in page.show(clean({}), nothing).get("notes", "")) == bool(page.reads)
    assert "GRPO" in understand.render(clean({}), nothing)["story"]


@pytest.mark.parametrize("right", [0, 1, 4])
def test_understand_says_when_estimators_learn_nothing(right):
    found = understand.render(clean({"right": right, "g": 4}))
    assert ("learns nothing here" in found["story"]) == (right in (0, 4))


@pytest.mark.parametrize(("right", "gain"), [(0, "−0.10"), (1, "+0.71"), (4, "+0.15")])
def test_understand_has_the_worked_example_of_the_docs(right, gain):
    view = clean({"g": 4, "right": right, "mean": 5 / 12, "within": 35 / 144, "between": 13 / 72})
    story = understand.render(view)["story"]
    assert "(σ²/G) / (σ²/G + τ²) = <b>0.252</b>" in story
    assert ("= <b>0.292</b>" in story) == (right == 1)
    assert gain in story


@pytest.mark.parametrize("mean", [0.01, 0.5, 0.99])
@pytest.mark.parametrize("between", [0.0, 0.25])
@pytest.mark.parametrize("within", [0.0, 0.25])
def test_understand_works_at_slider_ends(mean, between, within):
    found = understand.render(clean({"mean": mean, "between": between, "within": within, "g": 32, "right": 32}))
    assert "nan" not in found["story"].lower()


@pytest.mark.parametrize("steps", ["²", "①", "9" * 300, "1-²", "-1"])
def test_an_invalid_step_is_explained(workspace, steps):
    found = show(workspace, "samples", steps=steps)
    assert "notice" in found["notes"] or "No group fits" in found["groups"]


@pytest.mark.parametrize(
    ("typed", "label"), [("", "step 12"), (" Latest", "step 12"), (" 7 ", "step 7"), ("ALL", "all steps")]
)
def test_steps_may_be_typed_with_blanks_and_capitals(workspace, typed, label):
    assert f"<span>{label}</span>" in show(workspace, "samples", steps=typed)["quick"]


@pytest.mark.parametrize("at", ["9" * 200 + ".1", "1." + "9" * 200, "-1.-1"])
def test_a_place_that_no_run_has_is_said(workspace, at):
    assert "This run has no group" in show(workspace, "samples", at=at)["notes"]


def test_an_address_gives_back_its_view():
    view = clean(
        {
            "tab": "samples",
            "runs": ["a", "owner/b"],
            "steps": "10-20",
            "kind": "rescued",
            "text": "x & y=1+2,#é",
            "raw": True,
            "smooth": 0.1,
            "at": "3.14",
        }
    )
    query = address(view)
    assert clean(dict(parse_qsl(query[1:]))) == view
    assert address(clean({})) == "" and "smooth=0.1" in query


@pytest.mark.parametrize(
    "values",
    [
        {"tab": "<script>", "x": "y", "smooth": "nan", "g": "1e999", "from": "2", "at": "a.b", "kind": "none"},
        dict.fromkeys(PARAMETERS, "\x00" * 5000),
        {name: ["x"] for name in PARAMETERS},
        {name: {"a": 1} for name in PARAMETERS},
    ],
)
def test_nonsense_in_an_address_becomes_a_whole_view(values, workspace):
    view = clean(values)
    assert set(view) == set(PARAMETERS) and view["tab"] in pages.PAGES and view["kind"] in KINDS
    assert 0 <= view["smooth"] <= 0.3 and 2 <= view["g"] <= 32 and view["right"] <= view["g"]
    for page in pages.PAGES.values():
        page.render(view, workspace)


def test_the_picture_says_its_numbers_to_those_who_do_not_see_it():
    drawn = picture(mean=0.0, baseline=0.105, shrinkage=0.25, prior_mean=0.42, within=0.2, between=0.1)
    assert 'aria-label="On the reward axis: group mean 0, prior mean 0.42, baseline 0.105, shrinkage 0.25"' in drawn


def test_answers_are_named_after_the_estimator_that_trained(workspace):
    ebpo, grpo = (show(workspace, "samples", run=run)["answers"] for run in ("ebpo", "grpo"))
    assert "<small>EBPO</small>" in ebpo and "<small>GRPO</small>" in ebpo
    assert "<small>EBPO</small>" not in grpo and "<small>GRPO</small>" in grpo


def test_a_long_name_keeps_its_end(tmp_path):
    name = "qwen3-8b-dapo-math-17k-ebpo-corrected-halflife-2048-lr1e-6-seed"
    for seed in (1, 2):
        learning_run(tmp_path / f"{name}{seed}" / "model" / "run", steps=1, seed=seed, name="x", prompts=2)
    runs = Workspace(Runs([str(tmp_path)]))
    assert runs.runs.listed() == [f"{name}1", f"{name}2"]
    for page in ("samples", "evaluation"):
        shown = " ".join(str(text) for text in PAGES[page].render(clean({"seeds": "each"}), runs).values())
        assert "seed1<" in shown and "seed2<" in shown and "more characters" not in shown


def test_non_positive_values_are_noted_on_a_log_scale(workspace):
    found = board(show(workspace, "dynamics", log=True))
    fails = found["ebpo/all_pass_fraction"]
    assert " · linear: has zeros" in fails["note"] and fails["figure"]["layout"]["yaxis"]["type"] == "linear"
    assert found["response_length"]["figure"]["layout"]["yaxis"]["type"] == "log"
    assert "linear" not in found["response_length"]["note"]


def test_a_question_shows_every_column_of_the_table(tmp_path):
    for seed in range(3):
        learning_run(tmp_path / f"run{seed}", steps=8, seed=seed, name="x", prompts=2)
    many = Workspace(Runs([str(tmp_path)]))
    found = evaluation.render(clean({"seeds": "each"}), many)
    key = re.search(r"question&#34;: &#34;(\w+)", found["questions"])[1]
    opened = evaluation.render(clean({"question": key, "seeds": "each"}), many)["questions"]
    assert opened.count("<details") == 4 and opened.count("<details open") == 3, "the base model's once"
    together = evaluation.render(clean({"question": key}), many)["questions"]
    assert together.count("<details open") == 3, "seeds of one column"


def test_the_rest_of_a_long_question_can_be_asked_for(tmp_path):
    learning_run(tmp_path / "run", steps=1, seed=1, name="x", prompts=2)
    for path in (tmp_path / "run" / "eval").rglob("samples.parquet"):
        table = pq.read_table(path)
        long = pa.array(["word " * 10_000] * len(table))
        pq.write_table(table.set_column(table.column_names.index("question"), "question", long), path)
    runs = Workspace(Runs([str(tmp_path)]))
    key = re.search(r"question&#34;: &#34;(\w+)", evaluation.render(clean({}), runs)["questions"])[1]
    opened = html.unescape(evaluation.render(clean({"question": key}), runs)["questions"])
    asked = dict(parse_qsl(re.search(r'aria-label="Question" data-from="[^?]*\?([^"]*)"', opened)[1]))
    assert chunk(runs, {**asked, "from": "20000", "to": "20010"}) == "word word "


OF_ALL = {"tab", "runs", "hidden", "table", "sort", "seeds"}  # values that no page owns


def test_a_page_is_one_line_of_the_table():
    """Its parameters are its own: a second page with one of the same name would change the first's."""
    assert [page.name for page in pages.PAGES.values()] == list(pages.PAGES)
    owners = Counter(name for page in pages.PAGES.values() for name in page.parameters)
    assert set(owners.values()) == {1} and not owners.keys() & OF_ALL
    assert set(PARAMETERS) == {*OF_ALL, *owners}
    assert not PARAMETERS.keys() & {"order", "add", "address"}, "an event has these of its own"


@pytest.mark.parametrize("ending", [".css", ".js"])
def test_every_file_of_static_is_loaded_the_pages_own_last(ending):
    names = document.in_order(ending)
    assert sorted(names) == sorted(path.name for path in document.STATIC.glob(f"*{ending}"))
    own = [name for name in names if name.removesuffix(ending) in pages.PAGES]
    assert names[-len(own) :] == own and all(f"./space/{name}?" in document.head("1") for name in names)


def test_every_attribute_that_a_page_writes_is_read():
    """A button without a script does nothing."""
    folder = document.STATIC.parent
    written = {name for path in folder.rglob("*.py") for name in re.findall(r"data-([a-z-]+)", path.read_text())}
    files = [*document.STATIC.glob("*.js"), *document.STATIC.glob("*.css")]
    read = "".join(path.read_text() for path in files)
    assert "set" in written
    assert not {name for name in written if f"data-{name}" not in read and f"dataset.{name}" not in read}
