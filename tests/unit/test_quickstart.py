"""The quickstart's own parts: tasks, statistics, picture, table, and what it finds in its directory."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pytest

from openrlhf_ebpo.eval.results import SCHEMA, find_results
from openrlhf_ebpo.files import append_json_line
from openrlhf_ebpo.quickstart import __main__ as quickstart
from openrlhf_ebpo.quickstart import tasks, tiny_model
from openrlhf_ebpo.quickstart.evaluate import (
    MAX_NEW_TOKENS,
    N_SAMPLES,
    Sample,
    all_fail_fraction,
    answer_classes,
    evaluate,
    graded,
    paired_difference,
)
from openrlhf_ebpo.quickstart.tasks import TEMPLATE
from openrlhf_ebpo.record.plot import PANELS, plot_run, smooth
from openrlhf_ebpo.rewards import gym

SIZES = {"heldout": 30, "validation": 10, "train": 50, "warm_start": 40}


def test_the_splits_share_no_prompt_and_are_the_same_every_time():
    first, second = tasks.split(SIZES), tasks.split(SIZES)
    assert first == second
    assert {name: len(rows) for name, rows in first.items()} == SIZES
    tasks.check_disjoint(first)
    assert len({row["prompt"] for row in first["train"]}) == SIZES["train"]


def test_shared_prompts_are_noticed():
    same = [{"prompt": "p", "label": "a"}]
    with pytest.raises(AssertionError, match="heldout and train share prompts"):
        tasks.check_disjoint({"heldout": same, "train": same})


def test_each_task_brings_what_the_reward_needs():
    for row in tasks.split(SIZES)["train"]:
        assert gym.readable(row["entry"]) == row["label"]
    held_out = tasks.split(SIZES)["heldout"]
    responses = [[Sample(text, 9, False) for text in (f" {row['label']}\n", row["label"] + "x")] for row in held_out]
    assert graded(held_out, responses) == [[True, False]] * SIZES["heldout"]


def test_the_paired_interval_is_the_normal_one_over_questions():
    before = np.array([[0, 0, 0, 0], [0, 1, 0, 1], [0, 0, 0, 1], [1, 1, 1, 1]], bool)
    after = np.array([[0, 0, 1, 1], [0, 1, 0, 1], [1, 1, 0, 1], [1, 1, 1, 1]], bool)
    rise, low, high = paired_difference(before, after)
    difference = np.array([0.5, 0, 0.5, 0])
    assert rise == pytest.approx(0.25)
    assert high - low == pytest.approx(2 * 1.959964 * difference.std(ddof=1) / 2, rel=1e-5)
    assert (low + high) / 2 == pytest.approx(rise)


def test_the_evaluation_is_a_result_of_the_harness(tmp_path):
    held_out = tasks.split(SIZES)["heldout"][:3]
    texts = [TEMPLATE.format(task["prompt"]) + task["label"] for task in held_out]
    tiny_model.build(tmp_path / "model", texts)
    correct = evaluate(tmp_path / "model", held_out, tmp_path / "run", 7)
    (result,) = find_results(tmp_path / "run")
    assert (result.step, result.task, result.n) == (7, tasks.DATASET, N_SAMPLES) and correct.shape == (3, N_SAMPLES)
    assert result.summary["schema"] == SCHEMA and result.summary["metrics"]["pass@1"]["value"] == correct.mean()
    assert (result.samples.correct == correct).all() and result.samples.lengths.max() <= MAX_NEW_TOKENS
    assert (result.samples.lengths[result.samples.truncated] == MAX_NEW_TOKENS).all()


def test_equal_answers_of_a_group_are_of_one_class():
    group = [Sample(text, 3, False) for text in ("maj ", "x", "maj", " ")]
    assert answer_classes(group) == [0, 1, 0, -1]


def test_smoothing_is_a_mean_over_the_values_around():
    values = np.arange(60.0)
    values[30] = 330.0
    smoothed = smooth(values)
    assert smoothed[30] == pytest.approx(np.mean(values[27:34]))
    assert smoothed[0] == pytest.approx(np.mean(values[:4]))


def test_the_picture_is_a_small_png(tmp_path):
    for step in range(1, 30):
        append_json_line(tmp_path / "metrics.jsonl", {"step": step, **{name: step / 30 for name, _ in PANELS}})
    append_json_line(tmp_path / "metrics.jsonl", {"step": 30, "policy/entropy": None, "rollout/reward_mean": 1.0})
    plot_run(tmp_path, tmp_path / "training.png", "title")
    data = (tmp_path / "training.png").read_bytes()
    assert data.startswith(b"\x89PNG") and 10_000 < len(data) < 300_000


def test_a_finished_run_prints_its_table_and_does_nothing_else(tmp_path, capsys):
    (tmp_path / "data").mkdir()
    result = {
        "heldout_questions": 256,
        "samples_per_question": 8,
        "before": 0.3,
        "after": 0.5,
        "rise": [0.2, 0.15, 0.25],
        "steps": 120,
        "all_fail_first_ten_steps": 0.4,
        "all_fail_gradient": {"ebpo": 12.3, "group_norm": 0.0},
    }
    (tmp_path / "result.json").write_text(json.dumps(result))
    before = sorted(tmp_path.rglob("*"))
    quickstart.main([str(tmp_path)])
    text = capsys.readouterr().out
    assert "+0.200  [+0.150, +0.250]" in text and "EBPO 12.3, GRPO 0" in text and "40%" in text
    assert sorted(tmp_path.rglob("*")) == before


def test_an_unfinished_run_of_an_earlier_version_is_refused_before_anything_starts(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "train.jsonl").write_text('{"prompt": "Spell", "label": "maj"}\n')
    with pytest.raises(quickstart.StageFailed, match=r"earlier version(.*)--force"):
        quickstart.check_directory(tmp_path, force=False)
    tasks.write(tmp_path / "data", {"train": [{"prompt": "p", "label": "a", "entry": "{}"}]})
    quickstart.check_directory(tmp_path, force=False)


def test_a_directory_of_something_else_is_refused_and_force_moves_it_aside(tmp_path):
    directory = tmp_path / "run"
    directory.mkdir()
    (directory / "precious.txt").write_text("keep me")
    with pytest.raises(quickstart.StageFailed, match="holds something else"):
        quickstart.check_directory(directory, force=False)
    quickstart.check_directory(directory, force=True)
    assert not directory.exists()
    assert [p.read_text() for p in tmp_path.glob("run.*/precious.txt")] == ["keep me"]


def test_a_run_goes_on_with_its_own_estimator_and_no_other(tmp_path):
    assert quickstart.check_estimator(tmp_path, None) == "ebpo"
    assert quickstart.check_estimator(tmp_path, "rloo") == "rloo"
    run = {"schema": 1, "args": {"algo": {"advantage": {"estimator": "group_norm"}}}}
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text(json.dumps(run))
    assert quickstart.check_estimator(tmp_path, None) == "group_norm"
    with pytest.raises(quickstart.StageFailed, match="holds a run with --estimator group_norm"):
        quickstart.check_estimator(tmp_path, "ebpo")


def test_groups_whose_responses_all_fail_are_counted():
    rollouts = pa.table({"group": [0, 0, 1, 1, 2, 2], "reward": [0.0, 0.0, 0.0, 1.0, 0.0, 0.0]})
    assert all_fail_fraction(rollouts) == pytest.approx(2 / 3)


def test_a_stage_that_fails_shows_the_end_of_its_log(tmp_path):
    with pytest.raises(quickstart.StageFailed, match=r"train_sft failed \(exit status 2\)(.|\n)*--no.such.flag"):
        quickstart.launch("train_sft", {"no.such.flag": 1}, tmp_path)


def test_in_a_file_a_line_every_tenth_step_says_how_far_it_is(tmp_path, capsys):
    bar = quickstart.tqdm(total=40, disable=True)
    quickstart.show_progress(bar, tmp_path)
    for step in range(1, 40):
        append_json_line(tmp_path / "metrics.jsonl", {"step": step, "rollout/reward_mean": step / 100})
        if step not in (10, 19):  # it looks now and then only
            quickstart.show_progress(bar, tmp_path)
    lines = capsys.readouterr().out.splitlines()
    assert lines == [f"      step {s} of 40: reward {s / 100:.2f}" for s in (11, 20, 30)]
