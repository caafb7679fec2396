"""The catalogue of metrics: whole, read by whoever shows metrics, and open to a run's own."""

import ast
import json
import re
from pathlib import Path

import pytest
from marked_runs import PLOTLY, SHORT, UNIT, marked_run

from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.files import append_json_line, write_json
from openrlhf_ebpo.hub import data_card
from openrlhf_ebpo.run import custom_metrics as own
from openrlhf_ebpo.run.catalogue import GROUPS, METRICS, Shown, find, metrics_for
from openrlhf_ebpo.run.run_log import open_run, read_metrics, read_run
from openrlhf_ebpo.run.settings import RunSettings
from openrlhf_ebpo.space import metric_panels
from openrlhf_ebpo.space.links import clean
from openrlhf_ebpo.space.pages import dynamics
from openrlhf_ebpo.space.runs import Runs
from openrlhf_ebpo.space.workspace import Workspace

ROOT = Path(__file__).parents[2]
WRITTEN = re.compile(r"(ebpo|policy|hub|timing|rollout)/[a-z_]+|math_(no_answer|timeout)")
EXAMPLE = ROOT / "examples" / "metric" / "metrics.json"
NAME = "own/distinct_characters"
ARGS = {
    "actor": {"model_name_or_path": "m"},
    "data": {"prompt_dataset": "d"},
    "train": {"seed": 7},
    "ckpt": {"path": "c"},
    "algo": {"advantage": {"estimator": "ebpo"}},
}


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
    assert len(names) > 30 and [name for name in sorted(names) if name not in own.COLUMNS and not find(name)] == []


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


def test_picture_and_card_show_what_the_catalogue_says():
    assert "rollout/reward_mean" in {metric.name for metric in metrics_for(Shown.CARD)}
    picture = ["rollout/reward_mean", "actor_grad_norm", "policy/entropy", "ebpo/shrinkage", "ebpo/all_fail_fraction"]
    assert [metric.name for metric in metrics_for(Shown.PICTURE)] == picture


def run_with(folder: Path, entries: object, *names: str, steps: int = 3) -> Path:
    write_json(folder / "run.json", {"schema": 1, "metrics": entries})
    for step in range(1, steps + 1):
        row = {"step": step, "time": 1.7e9 + step, "ebpo/shrinkage": 0.5, **dict.fromkeys(names, step / 10)}
        append_json_line(folder / "metrics.jsonl", row)
    return folder


def board(*folders: Path, **view) -> list[dict]:
    found = dynamics.render(clean(view), Workspace(Runs([str(folder) for folder in folders])))
    return json.loads(found["board"])["sections"]


def others(folder: Path) -> dict:
    return next(section for section in board(folder) if "Other" in section["title"])


def panels(section: dict) -> list[str]:
    return [panel["id"] for panel in section["panels"]]


def test_a_metric_of_somebody_elses_is_shown_under_other(tmp_path):
    sections = board(run_with(tmp_path / "run", [], "own/b", "<img src=x>", "eval_math_pass1"))
    assert [section["title"] for section in sections] == ["Outcome · Estimator", "Other"], "a lone panel joins"
    assert panels(sections[1]) == ["<img src=x>", "own/b"] and sections[1]["panels"][1]["title"] == "own/b"
    assert "moving mean" in sections[0]["note"] and "moving mean" not in sections[1]["note"]


def test_any_metric_is_found_by_words_of_its_name_or_title(tmp_path):
    run = run_with(tmp_path / "run", [], "own/b", "kl", "ppo_kl")
    (section,) = board(run, metric="OWN shrink")
    assert panels(section) == ["ebpo/shrinkage", "own/b"] and section["panels"][0]["title"] == "Shrinkage S"
    assert [panels(each) for each in board(run, metric="kl")] == [["kl"]], "a name that is one is meant alone"
    assert board(run, metric="nothing like it") == []


def test_of_many_unknown_ones_the_rest_is_counted(tmp_path):
    names = [f"x/{i:03}" for i in range(40)]
    other = others(run_with(tmp_path / "run", [{"name": "x/039", "title": "Last"}], *names, "y" * 301))
    assert panels(other) == ["x/039", *names[: metric_panels.MAX_OTHERS - 1]] and "28 more are found" in other["note"]


def test_a_run_says_what_its_own_metrics_are(tmp_path):
    entries = own.read_entries(EXAMPLE)
    panel = others(run_with(tmp_path / "run", entries, NAME))["panels"][-1]
    assert panel["id"] == NAME and panel["title"] == "Distinct characters"
    assert panel["note"] == "different characters among all of a response · fraction"
    assert panel["warning"] == "falls towards 0: the policy repeats itself"
    meaning = data_card.metric_meaning(NAME, own.custom_metrics(entries))
    assert meaning.startswith("Distinct characters&#58; different") and "&#40;fraction&#41;" in meaning


def test_markup_that_a_run_brings_along_is_text(tmp_path):
    run = marked_run(tmp_path / "run")
    panel = next(each for each in others(run)["panels"] if each["id"] == PLOTLY)
    assert panel["title"] == SHORT and panel["note"].endswith(f" · {UNIT}")  # space.js shows both by textContent
    meaning = data_card.metric_meaning(PLOTLY, own.custom_metrics(read_run(run)["metrics"]))
    assert meaning.startswith("&#60;b data&#45;foreign&#62;b") and not re.search(r"[<>|`\[*]", meaning)


WRONG = [
    None,
    7,
    [],
    {"name": "own/x"},
    {"name": "own/x", "title": ""},
    {"name": "own/x", "title": 7},
    {"name": ["own/x"], "title": "X"},
    {"name": "own/x", "title": "X\u202egnp"},
    {"name": "own/x", "title": "two\nlines"},
    {"name": "own/x", "title": "X" * 41},
    {"name": "own/x", "title": "X", "description": "y" * 201},
    {"name": "own/x", "title": "X", "script": "y"},
    {"name": "ebpo/shrinkage", "title": "Mine"},
    {"name": "eval_math_pass4", "title": "Mine"},
    {"name": "time", "title": "Mine"},
]


@pytest.mark.parametrize("entry", WRONG, ids=lambda entry: ascii(entry)[:50])
def test_a_wrong_entry_is_refused_at_the_start_and_left_out_of_a_run(tmp_path, entry):
    good = {"name": "own/good", "title": "Good"}
    path = tmp_path / "metrics.json"
    path.write_text(json.dumps([good, entry]))
    with pytest.raises(UsageError, match=r"--logger\.metrics .*metrics\.json: entry 2: "):
        own.read_entries(path)
    run = run_with(tmp_path / "run", [entry, good], "own/good", "own/x")
    assert [panel["title"] for panel in others(run)["panels"]] == ["Good", "own/x"]


def test_lists_without_end_and_things_that_are_no_list(tmp_path):
    many = [{"name": f"own/{i}", "title": f"{i}"} for i in range(own.MAX_ENTRIES + 1)]
    assert len(own.custom_metrics(many)) == own.MAX_ENTRIES
    deep = json.loads("[" * 900 + "]" * 900)
    for entries in (None, {}, "x", 7, [deep], {"name": "own/x", "title": "X"}, [{"name": deep, "title": deep}]):
        assert own.custom_metrics(entries) == {}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "cannot be read (No such file"),
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ('{"name": "own/x"}', "holds dict; a list of objects is needed"),
        (json.dumps([{"name": f"own/{i}", "title": "X"} for i in range(101)]), "holds 101 entries"),
        (json.dumps([{"name": "own/x", "title": "X"}] * 2), "'own/x' is listed twice"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_in_words(tmp_path, content, said):
    path = tmp_path / "metrics.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(UsageError) as error:
        own.read_entries(path)
    assert said in str(error.value) and str(error.value).startswith(f"--logger.metrics {path}")


def test_a_run_that_goes_on_without_the_file_keeps_what_it_says(tmp_path):
    def claim(metrics, resume):
        open_run(RunSettings(tmp_path, tmp_path / "ckpt", resume=resume), argv=[], args=ARGS, metrics=metrics)
        return read_run(tmp_path)["metrics"]

    first, second = ([{"name": f"own/{i}", "title": "X"}] for i in (1, 2))
    assert claim(first, False) == first and claim([], True) == first and claim(second, True) == second
