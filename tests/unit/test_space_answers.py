"""Texts about one answer and about a group's answers: the arithmetic of the advantage, repetition, errors,
order."""

import re
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from space_runs import learning_run

from openrlhf_ebpo.space import reading
from openrlhf_ebpo.space.groups import Index
from openrlhf_ebpo.space.links import clean
from openrlhf_ebpo.space.pages import overview, samples
from openrlhf_ebpo.space.runs import Runs
from openrlhf_ebpo.space.search import batch_scale, error_counts, one_passing_text
from openrlhf_ebpo.space.workspace import Workspace


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    learning_run(folder / "ebpo", steps=12, seed=1, name="ebpo", prompts=8)
    learning_run(folder / "grpo", steps=12, seed=1, name="grpo", prompts=8, estimator="group_norm")
    return folder


@pytest.fixture
def workspace(folder):
    return Workspace(Runs([str(folder)]))


def test_the_arithmetic_leads_from_reward_to_advantage(folder, workspace):
    mean, deviation = batch_scale(workspace.open("ebpo").run, 12)
    rows = pq.read_table(folder / "ebpo" / "rollouts" / "step-000012.parquet").to_pylist()
    rows = [row for row in rows if row["valid"]]
    made = [(row["reward"] - row["baseline"] - mean) / deviation for row in rows]
    assert made == pytest.approx([row["advantage"] for row in rows], abs=1e-3)
    said = samples.render(clean({"runs": "ebpo"}), workspace)["answers"]
    text = re.search(r'class="arithmetic">([^<]*)<', said)[1]
    assert text.startswith("r − V = ") and "less the batch’s mean" in text and "over its deviation" in text


def test_without_a_logged_baseline_there_is_no_arithmetic(workspace):
    assert batch_scale(workspace.open("grpo").run, 12) is None
    assert "arithmetic" not in samples.render(clean({"runs": "grpo"}), workspace)["answers"]


def test_a_text_that_passes_whatever_is_asked_is_found(folder, tmp_path):
    run = shutil.copytree(folder / "ebpo", tmp_path / "gamed")
    for path in (run / "rollouts").iterdir():
        table = pq.read_table(path)
        if int(path.stem[-2:]) > 6:
            alike = pa.array(["the answer"] * len(table), table.schema.field("response").type)
            table = table.set_column(table.column_names.index("response"), "response", alike)
        pq.write_table(table, path)
    gamed, honest = (
        Workspace(Runs([str(tmp_path if name == "gamed" else folder)])).open(name) for name in ("gamed", "ebpo")
    )
    for opened, last in ((gamed, 1.0), (honest, 0.0)):
        steps, shares = one_passing_text(opened.run, Index(opened.run).read()[0], 0.5)
        assert steps[0] == 1 and steps[-1] == 12 and (shares[0], shares[-1]) == (0.0, last)
    said = overview.render(clean({"runs": "gamed"}), Workspace(Runs([str(tmp_path)])))["cards"]
    assert "Passing answers are one text" in said


@pytest.mark.parametrize(
    ("text", "marked"),
    [
        ("Wait, " * 900, True),
        ("Let me check this again.\n" * 60, True),
        ("x" * 5_000_000, False),
        (" ".join(map(str, range(5000))), False),
        ("Wait, no. " * 5, False),
        ("", False),
        (None, False),
    ],
)
def test_an_answer_that_repeats_itself_is_marked(text, marked):
    assert (reading.repetition(text) >= reading.REPETITIVE) == marked


def test_ordinary_reasoning_is_not_marked(folder):
    for path in (folder / "ebpo" / "rollouts").glob("*.parquet"):
        for text in pq.read_table(path, columns=["response"])["response"].to_pylist():
            assert reading.repetition(text) < reading.REPETITIVE


def test_errors_of_rewards_are_counted_by_message(folder, workspace):
    groups, _ = workspace.index(workspace.open("ebpo")).read()
    (message, count), *others = error_counts(workspace.open("ebpo").run, groups, np.arange(len(groups)))
    assert "TimeoutError: the grader took longer than 10 s" in message and not others
    assert count == int(groups.errors.sum()) > 0
    said = samples.render(clean({"runs": "ebpo", "kind": "errors", "steps": "all"}), workspace)["groups"]
    assert f"<b>{count}</b> TimeoutError" in said


def test_answers_are_sorted_by_length(workspace):
    shown = [samples.render(clean({"runs": "ebpo", "longest": wish}), workspace)["answers"] for wish in ("", "1")]
    orders = [re.findall(r'class="tile [^>]*>.*?<span>(\d)', each) for each in shown]
    assert orders[0] == ["1", "2", "3", "4"] and sorted(orders[1]) == orders[0] and orders[1] != orders[0]
