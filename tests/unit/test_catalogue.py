"""The catalogue of metrics is complete, read wherever metrics are shown, and open to a run's own."""

import ast
import json
import re
import runpy
from pathlib import Path

import pytest
from marked_runs import PLOTLY, marked_run

from openrlhf_ebpo.files import append_json_line, write_json
from openrlhf_ebpo.run.catalogue import GROUPS, METRICS, NOT_METRICS, find
from openrlhf_ebpo.run.run_log import read_metrics
from openrlhf_ebpo.space import metric_panels
from openrlhf_ebpo.space.links import clean
from openrlhf_ebpo.space.pages import dynamics
from openrlhf_ebpo.space.runs import Runs
from openrlhf_ebpo.space.workspace import Workspace

ROOT = Path(__file__).parents[2]
WRITTEN = re.compile(r"(ebpo|policy|hub|timing|rollout)/[a-z_]+|math_(no_answer|timeout)")
NAME = "own/distinct_characters"


def test_each_name_stands_once_and_texts_are_plain_and_fit_a_panel():
    names = [metric.name for metric in METRICS]
    assert len(set(names)) == len(names) and len({group.title for group in GROUPS}) == len(GROUPS)
    assert all(find(metric.stand_in) for metric in METRICS if metric.stand_in)
    for metric in METRICS:
        texts = (metric.title, metric.unit, metric.description, metric.warning)
        assert metric.title and metric.description and not re.search(r"[|<>*`\\$]", "".join(texts)), metric.name
        assert all(len(text) <= longest for text, longest in zip(texts, (40, 20, 90, 90), strict=True)), metric.name


def test_every_metric_of_the_source_is_in_the_catalogue():
    names = set()
    for path in (ROOT / "openrlhf_ebpo").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and WRITTEN.fullmatch(node.value):
                names.add(node.value)
    assert {"ebpo/shrinkage", "policy/kl_per_step", "policy/cov_mean", "timing/run_log"} <= names
    assert [name for name in sorted(names) if not find(name)] == []


def test_every_metric_of_a_recorded_run_is_in_the_catalogue():
    names = {name for row in read_metrics(ROOT / "tests" / "data" / "quickstart_run") for name in row}
    names = {name for name in names if not name.startswith("reasoning_gym_")}  # of its reward, as of any custom one
    assert len(names) > 30 and [name for name in sorted(names) if name not in NOT_METRICS and not find(name)] == []


def test_a_name_with_a_part_that_differs_is_found():
    found = {
        "eval_math_pass1": "eval_<data set>_pass1",
        "eval_a_pass1_pass16": "eval_<data set>_pass<k>",
        "eval_math_truncated_rate": "eval_<data set>_truncated_rate",
        "eval_truncated_rate": "eval_truncated_rate",
        "timing/something_new": "timing/<part>",
        "phase/run_log": "phase/<phase>",
    }
    assert {name: find(name).name for name in found} == found
    assert not any(map(find, ("", "ebpo/", "eval_math_passk", "xtiming/y", "correct_format", "ebpo/shrinkage2")))


def run_with(folder: Path, *names: str, steps: int = 3) -> Path:
    write_json(folder / "run.json", {"schema": 1})
    for step in range(1, steps + 1):
        row = {"step": step, "time": 1.7e9 + step, "ebpo/shrinkage": 0.5, **dict.fromkeys(names, step / 10)}
        append_json_line(folder / "metrics.jsonl", row)
    return folder


def board(*folders: Path, **view) -> list[dict]:
    found = dynamics.render(clean(view), Workspace(Runs([str(folder) for folder in folders])))
    return json.loads(found["board"])["sections"]


def others(folder: Path) -> dict:
    return next(section for section in board(folder) if "More metrics" in section["title"])


def panels(section: dict) -> list[str]:
    return [panel["id"] for panel in section["panels"]]


def test_a_metric_of_custom_code_is_shown_under_more_metrics(tmp_path):
    sections = board(run_with(tmp_path / "run", "own/b", "<img src=x>", "eval_math_pass1"))
    assert [section["title"] for section in sections] == ["Outcome · Estimator", "More metrics"], "a lone panel joins"
    assert panels(sections[1]) == ["<img src=x>", "own/b"] and sections[1]["panels"][1]["title"] == "own/b"
    assert "moving mean" in sections[0]["note"] and "moving mean" not in sections[1]["note"]


def test_the_example_logs_its_metric():
    example = runpy.run_path(str(ROOT / "examples" / "metric" / "reward.py"))
    assert example["reward_func"](["Q: aab"], ["Q: "], ["x"])["extra_logs"] == {NAME: pytest.approx(2 / 3)}


def test_any_metric_is_found_by_words_of_its_name_or_title(tmp_path):
    run = run_with(tmp_path / "run", "own/b", "kl", "ppo_kl")
    (section,) = board(run, metric="OWN shrink")
    assert panels(section) == ["ebpo/shrinkage", "own/b"] and section["panels"][0]["title"] == "Shrinkage S"
    assert [panels(each) for each in board(run, metric="ppo_kl kl")] == [["kl", "ppo_kl"]]
    assert [panels(each) for each in board(run, metric="kl")] == [["kl", "ppo_kl"]], "a name that is one comes first"
    assert board(run, metric="nothing like it") == []


def test_of_many_unknown_ones_the_rest_is_counted(tmp_path):
    names = [f"x/{i:03}" for i in range(40)]
    other = others(run_with(tmp_path / "run", *names, "y" * 301))
    assert panels(other) == names[: metric_panels.MAX_MORE] and "28 others are found" in other["note"]


def test_markup_in_a_metrics_name_is_text(tmp_path):
    run = marked_run(tmp_path / "run")
    panel = next(each for each in others(run)["panels"] if each["id"] == PLOTLY)
    assert panel["title"] == PLOTLY  # space.js shows it by textContent
